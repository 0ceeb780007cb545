"""docs/architecture.md tells the truth: its names exist, its steps go down the layers, its picture is up to date."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.support.paths import ROOT
from tests.support.references import find_reference, references_in
from tools import house

PAGE = (ROOT / "docs" / "architecture.md").read_text()
WALKS = PAGE.split("\n## ")[1:]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def full_names() -> list[list[str]]:
    """The layers of every contract, the highest first, each a list of full module names."""
    return [
        [f"{container}{name.strip()}" for name in layer.split("|")]
        for contract in CONTRACTS
        for container in [f"{c}." for c in contract.get("containers", [])] or [""]
        for layer in contract["layers"]
    ]


def depth(reference: str) -> list[int]:
    """How deep the module of `serve/app.py:App` lies in each contract that knows it: first the house, then its room."""
    module = "queen." + reference.partition(":")[0].removesuffix(".py").replace("/", ".")
    return [i for i, names in enumerate(full_names()) if any(f"{module}.".startswith(f"{name}.") for name in names)]


def steps(walk: str) -> dict[str, tuple[str, str]]:
    """Number -> (reference, number of the caller)."""
    rows = re.findall(r"^\| (\d+) \| `([^`]+)` \| ([^|]+) \|", walk, re.MULTILINE)
    return {number: (reference, caller.strip()) for number, reference, caller in rows}


def test_every_name_exists():
    references = references_in(PAGE)
    assert len(references) > 20
    for reference in references:
        find_reference(reference)


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.partition("\n")[0])
def test_no_step_lies_above_the_one_that_calls_it(walk):
    way = steps(walk)
    assert len(way) > 10
    for reference, caller in way.values():
        if caller in way:
            assert depth(reference) >= depth(way[caller][0]), f"{way[caller][0]} calls up to {reference}"


def test_a_step_upwards_would_be_noticed():
    assert depth("guard.py:Guard") < depth("ledger/decide.py:decide")
    assert depth("serve/app.py:App") < depth("serve/batcher.py:Batcher")
    assert depth("bench/run.py:work") < depth("bench/trials/cell.py:run_trial") < depth("attacks/base.py:train_thief")


def test_the_picture_is_drawn_from_the_imports_of_today():
    assert house.PICTURE.read_text() == house.draw()
