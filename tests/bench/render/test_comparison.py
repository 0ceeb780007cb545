"""Our figures beside the paper's: every cell, marks by the stated rule, shares by their definition."""

from __future__ import annotations

import pytest

from queen.bench.render.comparison import (
    COLLAPSED,
    LESS,
    MORE,
    accuracy_markdown,
    compared_columns,
    is_collapsed,
    pair_up,
    share_markdown,
    summary_markdown,
)
from queen.bench.render.leaderboard import PAPERS_CELLS
from tests.support.benchmarks import result

CHANCE = 13  # of `result`


def paper(queen: float = 10.0, undefended: float = 90.0):
    """A table of the paper's with one figure per defense."""
    row = {"none": undefended, "queen": queen}
    table: dict[str, dict[str, dict[str, float]]] = {}
    for query, attack in PAPERS_CELLS:
        table.setdefault(query, {})[attack] = row
    keys = ("best_thief_accuracy", "best_thief_agreement", "benign_accuracy")
    return {"classes": 10, "thief_accuracy": table, **dict.fromkeys(keys, row)}


def everything(column: str, accuracy: float):
    return [result(column, attack, query=query, accuracy=accuracy) for query, attack in PAPERS_CELLS]


def row_of(text: str, query: str, attack: str) -> str:
    [line] = [line for line in text.splitlines() if line.startswith(f"| {query} | {attack} |")]
    return line


def test_every_cell_of_the_paper_is_there_for_every_column_that_was_run():
    pairs = pair_up([*everything("none", 0.8), result("queen"), result("queen-sentinel")], paper())
    assert [(p.column, p.query, p.attack) for p in pairs] == [
        (c, *cell) for c in ("none", "queen") for cell in PAPERS_CELLS
    ]
    assert [p.ours is None for p in pairs] == [False] * 13 + [True] * 11


def test_other_settings_of_queen_stand_beside_the_papers_queen_and_the_sentinel_does_not():
    results = [result(name) for name in ("none", "queen-paper", "queen-artifact", "queen-sentinel", "modelguard_s")]
    assert set(compared_columns(results, paper())) == {"none", "queen-paper", "queen-artifact"}
    [direct] = [
        p for p in pair_up(results, paper(33)) if (p.column, p.query, p.attack) == ("queen-paper", *PAPERS_CELLS[0])
    ]
    assert direct.theirs == 33


def test_a_share_is_the_accuracy_above_chance_of_what_the_best_undefended_thief_has():
    results = [result("none", "direct", accuracy=0.6), result("none", "ddae", accuracy=0.73), result(accuracy=0.43)]
    [pair] = [
        p for p in pair_up(results, paper(50)) if (p.column, p.query, p.attack) == ("queen", "knockoff", "direct")
    ]
    assert pair.share == pytest.approx(100 * (43 - CHANCE) / (73 - CHANCE))
    assert pair.their_share == pytest.approx(50)


def test_without_an_undefended_thief_there_is_no_share():
    pairs = pair_up([result(accuracy=0.4)], paper())
    assert all(pair.share is None for pair in pairs)
    assert "- / 0" in share_markdown([result(accuracy=0.4)], paper())


@pytest.mark.parametrize(
    ("ours", "mark"), [(0.551, f" {MORE}"), (0.549, ""), (0.50, ""), (0.451, ""), (0.449, f" {LESS}")]
)
def test_differences_of_more_than_five_points_are_marked(ours, mark):
    text = accuracy_markdown([result("none"), result(accuracy=ours)], paper(50))
    assert row_of(text, "knockoff", "direct").endswith(f"| {100 * ours:.1f} / 50.0{mark} |")
    assert row_of(text, "knockoff", "s4l").endswith("| - / 50.0 |")


@pytest.mark.parametrize(("share", "mark"), [(61, f" {MORE}"), (59, ""), (41, ""), (39, f" {LESS}")])
def test_shares_are_marked_from_ten_points_on(share, mark):
    ours = (CHANCE + share / 100 * (80 - CHANCE)) / 100
    text = share_markdown([*everything("none", 0.8), result(accuracy=ours)], paper(50))
    assert row_of(text, "knockoff", "direct").endswith(f"| {share} / 50{mark} |")


@pytest.mark.parametrize(
    ("printed", "classes", "collapsed"),
    [(10.0, 10, True), (10.01, 10, False), (1.0, 100, True), (0.5, 200, True), (0.39, 256, True), (0.4, 256, False)],
)
def test_a_figure_of_exactly_one_classs_share_is_a_collapsed_thief(printed, classes, collapsed):
    assert is_collapsed(printed, classes) is collapsed


def test_the_papers_collapsed_and_our_flagged_thieves_are_marked():
    text = accuracy_markdown([result("none"), result(accuracy=0.12, flags=("collapsed",))], paper(10.0))
    assert row_of(text, "knockoff", "direct").endswith(f"| 12.0* / 10.0 {COLLAPSED} |")


def test_the_best_thief_the_agreement_and_the_benign_client_stand_below():
    results = [result("none"), result(accuracy=0.4), result(attack="pbayes", accuracy=0.6)]
    text = accuracy_markdown(results, paper(58))
    assert "|  | max | " in text
    assert text.count("60.0 / 58.0") == 2  # pbayes, and the best
    assert "| 30.0 / 58.0 ▼ |" in next(line for line in text.splitlines() if line.startswith("|  | max agreement |"))
    assert "85.0 / 58.0" in text


def test_what_was_not_run_is_said():
    text = accuracy_markdown([*everything("none", 0.8)], paper())
    assert "Columns of the paper that were not run yet: queen." in text
    assert "A dash" not in text
    assert "fewer cells here in queen." in accuracy_markdown([*everything("none", 0.8), result()], paper())


def test_the_summary_puts_every_compared_cell_into_exactly_one_list():
    undefended = everything("none", 0.8)
    results = [
        *undefended,
        result(accuracy=0.8),
        result(attack="s4l", accuracy=0.45),
        result(attack="pbayes", accuracy=0.2),
    ]
    [line] = [line for line in summary_markdown(results, paper(50)).splitlines() if line.startswith("| queen |")]
    assert line == "| queen | 3 of 12 | knockoff s4l | knockoff direct | knockoff pbayes |"
