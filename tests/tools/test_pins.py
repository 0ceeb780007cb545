"""Everything that `make` installs is pinned, with hashes, and listed in the bill of materials; gaps are noticed."""

from __future__ import annotations

import json
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import ROOT
from tools import pins, sbom

SUM = "0123456789abcdef" * 4
NEEDS = {pins.PROJECT: {"numpy"}, "numpy": set()}


def test_pins_hashes_and_what_is_installed_agree(capsys):
    assert pins.main([]) == 0, capsys.readouterr().out


def test_what_pyproject_asks_for_is_pinned_within_its_bounds():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    pinned = pins.read_pins()
    requirements = [Requirement(line) for line in asked if not line.startswith(f"{pins.PROJECT}[")]
    assert len(requirements) > 20
    assert [
        str(wanted) for wanted in requirements if pinned[canonicalize_name(wanted.name)] not in wanted.specifier
    ] == []


def faults(pinned=None, needs=NEEDS, hashes=None, locked=None):
    """Of lists that agree, but for what is given."""
    real = {"numpy": pins.read_pins()["numpy"]}
    return pins.find_faults(
        real if pinned is None else pinned,
        needs,
        {"numpy": {SUM}} if hashes is None else hashes,
        real if locked is None else locked,
    )


def test_lists_that_agree_have_no_fault():
    assert faults() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"needs": {**NEEDS, "sneaky": set()}}, "sneaky is needed, but not pinned"),
        ({"needs": {pins.PROJECT: set()}}, "numpy is pinned in constraints.txt, but nothing needs it"),
        ({"pinned": {"numpy": "1.0"}}, "numpy 2"),
        ({"locked": {"numpy": "1.0"}}, "numpy is 1.0 in requirements.lock"),
        ({"locked": {}}, "numpy is missing in requirements.lock"),
        ({"hashes": {"numpy": set()}}, "numpy has no hash"),
    ],
)
def test_every_gap_is_named(change, message):
    assert any(message in fault for fault in faults(**change)), faults(**change)


def test_names_and_hashes_are_read_whatever_their_spelling(tmp_path):
    lock = tmp_path / "lock"
    lock.write_text(
        f"# why\nRuamel.Yaml_x==1.0 \\\n    --hash=sha256:{SUM} \\\n    --hash=sha256:{SUM[::-1]}\n"
        f"torch==2.0+cpu ; sys_platform == 'linux' \\\n    --hash=sha256:{SUM}\n"
    )
    assert pins.read_pins(lock) == {"ruamel-yaml-x": "1.0", "torch": "2.0"}
    assert pins.read_hashes(lock) == {"ruamel-yaml-x": {SUM, SUM[::-1]}, "torch": {SUM}}


@pytest.mark.parametrize(
    ("file", "taken"),
    [
        ("some_name-1.0-py3-none-any.whl", True),
        ("some_name-1.0-py2.py3-none-any.whl", True),
        ("some_name-1.0.tar.gz", True),
        ("some_name-1.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("some_name-1.0-cp39-abi3-manylinux_2_28_aarch64.whl", True),
        ("some_name-1.0-cp313-cp313-macosx_14_0_arm64.whl", True),
        ("some_name-1.1-py3-none-any.whl", False),
        ("some_name-1.0-cp310-cp310-manylinux_2_17_x86_64.whl", False),
        ("some_name-1.0-cp311-cp311-win_amd64.whl", False),
        ("some_name-1.0-pp311-pypy311_pp73-manylinux_2_17_x86_64.whl", False),
        ("some_name-1.0-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("some_name-1.0.win32.exe", False),
    ],
)
def test_the_lock_takes_what_our_machines_might_install_and_nothing_else(file, taken):
    page = f'<html><a href="../../files/{file}#sha256={SUM}" data-requires-python="&gt;=3.9">{file}</a></html>'
    assert pins.find_sums(page, "1.0") == ({SUM} if taken else set())


@pytest.mark.parametrize("name", ["requirements.lock", "constraints.txt", "sbom.cdx.json"])
def test_no_list_says_where_packages_came_from(name):
    text = (ROOT / name).read_text()
    assert [word for word in ("index-url", "/simple", "find-links", "file:", ".whl") if word in text] == []


def test_the_bill_of_materials_lists_what_is_pinned_and_the_chart_library():
    bill = json.loads(sbom.BILL.read_text())
    listed = {part["name"]: part["version"] for part in bill["components"]}
    pinned = {name: version for name, version in pins.read_pins().items() if name not in pins.RIVALS}
    chart = sbom.make_bill()["components"][-1]
    assert listed == {**pinned, "uplot": chart["version"]}
    assert bill["components"][-1] == chart  # with the sum of the file that is there
    assert bill["bomFormat"] == "CycloneDX"


def test_every_reference_of_the_bill_leads_somewhere():
    bill = json.loads(sbom.BILL.read_text())
    known = {pins.PROJECT, *(part["bom-ref"] for part in bill["components"])}
    assert {row["ref"] for row in bill["dependencies"]} == known
    assert {need for row in bill["dependencies"] for need in row["dependsOn"]} <= known


def test_a_server_needs_less_than_the_tests():
    scopes = {part["name"]: part["scope"] for part in json.loads(sbom.BILL.read_text())["components"]}
    assert {scopes[name] for name in ("torch", "starlette", "grpcio", "redis")} == {"required"}
    assert {scopes[name] for name in ("pytest", "ray", "matplotlib")} == {"optional"}
