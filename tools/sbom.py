"""The bill of materials: `python -m tools.sbom` writes sbom.cdx.json (CycloneDX) from what is installed.

It lists every pinned package that `make` installs with its licence and what it needs, and the one library that is part
of our own sources. Scope "required" is what a server needs, with Redis; "optional" is for benchmarks and tests.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from typing import Any

from tools.pins import PROJECT, RIVALS, ROOT, find_needs, read_pins

BILL = ROOT / "sbom.cdx.json"
CHART = ROOT / "src" / "queen" / "serve" / "admin" / "dashboard" / "uplot.js"
SERVER = f"{PROJECT}[serve,redis]"
LONGEST_NAME = 60  # of a licence; what is longer is its text


def make_bill() -> dict[str, Any]:
    """The whole bill, the same on every machine with the pinned packages."""
    pins = read_pins()
    needs, required = find_needs(pins), find_needs(pins, SERVER)
    names = sorted(set(pins) - RIVALS)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    references = {name: f"pkg:pypi/{name}@{pins[name]}" for name in names}
    own = {"type": "application", "bom-ref": PROJECT, "name": PROJECT, "version": project["version"]}
    packages = [
        {
            "type": "library",
            "bom-ref": references[name],
            "name": name,
            "version": pins[name],
            "scope": "required" if name in required else "optional",
            "licenses": _licences(name),
            "purl": references[name],
        }
        for name in names
    ]
    chart = _chart_library()
    graph = {references[name]: sorted(references[need] for need in needs.get(name, ())) for name in names}
    direct = [*sorted(references[need] for need in needs[PROJECT]), chart["bom-ref"]]
    graph = {PROJECT: direct, **graph, chart["bom-ref"]: []}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**own, "licenses": [{"expression": project["license"]}]}},
        "components": [*packages, chart],
        "dependencies": [{"ref": reference, "dependsOn": direct} for reference, direct in graph.items()],
    }


def _licences(name: str) -> list[dict[str, Any]]:
    """What an installed package says of its licence, in CycloneDX's words; nothing if it says nothing."""
    try:
        said = metadata(name).json
    except PackageNotFoundError:
        return []
    if expression := said.get("license_expression"):
        return [{"expression": expression}]
    named = str(said.get("license", "")).strip()
    if named and "\n" not in named and len(named) <= LONGEST_NAME:
        return [{"license": {"name": named}}]
    classifiers = sorted({line for line in said.get("classifier", ()) if line.startswith("License ::")})
    return [{"license": {"name": line.split(" :: ")[-1]}} for line in classifiers]


def _chart_library() -> dict[str, Any]:
    """uPlot, which draws the dashboard's charts and is part of our sources."""
    source = CHART.read_bytes()
    version = re.search(rb"v(\d+\.\d+\.\d+)", source[:500])
    if version is None:
        raise ValueError(f"expected a version at the head of {CHART.name}, got none: was the file replaced?")
    reference = f"pkg:npm/uplot@{version[1].decode()}"
    return {
        "type": "library",
        "bom-ref": reference,
        "name": "uplot",
        "version": version[1].decode(),
        "scope": "required",
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(source).hexdigest()}],
        "licenses": [{"expression": "MIT"}],
        "purl": reference,
    }


if __name__ == "__main__":
    BILL.write_text(json.dumps(make_bill(), indent=1) + "\n")
    print(f"{BILL.name}: {len(make_bill()['components'])} components")
