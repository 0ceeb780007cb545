"""The page about attacks names all of them, and says of each what the code says."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from queen.attacks import ATTACKS, QUERIES
from queen.attacks.base import Knowledge, Sizes
from queen.errors import OptionError
from tests.support.attackers import counted_oracle, knowledge, seed
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "attacks.md").read_text()
FIELDS = ("pool_labels", "simulate", "benign", "rebuild", "encoder", "clean")
BUDGET = 44


def rows(heading: str) -> dict[str, list[str]]:
    """The last table below a heading: its rows by the name in their first cell."""
    section = re.split(rf"^#+ {heading}$", PAGE, flags=re.MULTILINE)[1]
    section = re.split(r"^#+ ", section, flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len({row[0] for row in cells}) == len(cells)  # none is told twice
    return {row[0].strip("`"): row[1:] for row in cells}


def names(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


PUBLISHED, OWN = rows("Published"), rows("Made against our own policies")
LISTED = PUBLISHED | OWN


def test_the_page_names_every_query_strategy_and_every_attack():
    assert list(rows("How they ask")) == list(QUERIES)
    assert list(PUBLISHED) == [name for name, attack in ATTACKS.items() if not attack.adaptive]
    assert list(OWN) == [name for name, attack in ATTACKS.items() if attack.adaptive]
    assert set(rows("What they make of the answers")) == set(FIELDS)


@pytest.mark.parametrize("name", ATTACKS)
def test_queries_and_query_strategies_are_those_of(name):
    _, needs, queries, goes_with = LISTED[name]
    assert int(queries) == ATTACKS[name].cost(Sizes())
    assert names(goes_with) == set(ATTACKS[name].queries)
    assert ("clean" in names(needs)) == ("prior" in ATTACKS[name].knows)
    for field in ("benign", "encoder"):
        assert (field in names(needs)) == (field in ATTACKS[name].knows)


def steal(name: str, known: Knowledge) -> None:
    attack = ATTACKS[name]
    attack.steal(QUERIES["knockoff"](counted_oracle(BUDGET), attack, known, BUDGET, seed(7)), known, seed(8))


@pytest.mark.parametrize("name", ATTACKS)
def test_what_it_says_is_needed_is_enough_and_no_more_than_that(name):
    needs = names(LISTED[name][1])
    known = replace(knowledge(), **{field: None for field in FIELDS if field not in needs})
    steal(name, known)
    for field in needs:
        with pytest.raises(OptionError, match=rf"Knowledge\.{field}"):
            steal(name, replace(known, **{field: None}))


@pytest.mark.slow
def test_the_code_of_the_page_runs_and_shows_a_difference(capsys):
    [code] = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    states = np.random.get_state(), random.getstate()
    namespace: dict[str, object] = {"__name__": "page"}
    with torch.random.fork_rng():  # ART and new networks draw from the global states
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        exec(compile(code, "docs/attacks.md", "exec"), namespace)
    np.random.set_state(states[0])
    random.setstate(states[1])
    assert "undefended" in capsys.readouterr().out
    assert namespace["undefended"] > 0.5
    assert namespace["defended"] < namespace["undefended"] - 0.2
