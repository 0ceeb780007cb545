"""What the documents say of the re-run follows from the results, whatever of it has been run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import mean

import pytest

from queen.bench.render.leaderboard import PAPERS_CELLS
from queen.bench.render.table import MARKS
from tools.rerun import PAPER_OF, Rerun, heads_only, read_rerun


@pytest.fixture(scope="module")
def whole() -> Rerun:
    return read_rerun("cifar10")


@pytest.fixture
def only(whole) -> Callable[..., Rerun]:
    """The re-run as if no more than some results were there."""
    return lambda keep: replace(whole, results=[r for r in whole.results if keep(r)])


def test_the_sentinels_best_thieves_stand_first_with_how_many_were_run(whole):
    first, own = whole.story().splitlines()[0], whole.board.find("queen-sentinel")
    assert first.startswith("- Behind `queen-sentinel` the best of the paper's twelve attackers (")
    assert f") gets {own.published.entry.mean:.1%}" in first
    if own.published.count < len(PAPERS_CELLS):
        assert f"{own.published.count} of the {len(PAPERS_CELLS)} run so far" in first
    assert f"the best of all that were run {own.best.entry.mean:.1%}" in first


def test_the_story_has_three_to_six_sentences_and_every_figure_of_the_board_is_its_own(whole):
    lines = whole.story().splitlines()
    assert 3 <= len(lines) <= 6
    rivals = [one for one in whole.board.standings if one.column not in ("none", "queen-sentinel")]
    least, *_, most = sorted(rivals, key=lambda one: one.published.entry.mean)
    least, most = (f"{one.published.entry.mean:.1%} (`{one.column}`)" for one in (least, most))
    assert f"leave {least} to {most} to the best of the paper's attackers" in lines[3]


def test_rivals_are_compared_by_what_all_of_them_met(whole, only):
    """More attackers on one of them must not make it look worse than the others."""
    twelve = only(lambda r: (r["query"], r["attack"]) in PAPERS_CELLS)
    assert twelve.story().splitlines()[3] in whole.story()


def test_the_best_thief_who_owns_nothing_of_the_victims_is_named(whole):
    entries: dict[tuple[str, str], list[float]] = {}
    for r in whole.results:
        if r["column"] == "queen-sentinel" and not {"benign", "encoder"} & set(r["knows"]):
            entries.setdefault((r["query"], r["attack"]), []).append(r["thief"]["accuracy"] or 0.0)
    (query, attack), accuracies = max(entries.items(), key=lambda item: mean(item[1]))
    [line] = [line for line in whole.story().splitlines() if "neither images of the victim's kind" in line]
    assert f"{mean(accuracies):.1%} ({query} {attack}" in line


def test_every_attacker_of_the_sentinel_has_a_row_the_best_copy_first(whole, only):
    own = [r for r in whole.results if r["column"] == "queen-sentinel"]
    rows = [line.split(" | ") for line in whole.sentinel_table().splitlines() if line.startswith("| ")][2:]
    assert len(rows) == len({(r["query"], r["attack"]) for r in own})
    thieves = [float(row[-1].rstrip(" |").split("±")[0]) for row in rows]
    assert thieves == sorted(thieves, reverse=True)
    one = next(r for r in own if (r["query"], r["attack"]) == ("knockoff", "cover_3"))
    [found] = [row for row in rows if row[1].startswith("cover_3")]
    assert found[2:4] == [f"{one['queries'][name]:,}" for name in ("sent", "answered")]
    assert len(only(lambda r: r["column"] == "none").sentinel_table().splitlines()) == 3


def test_the_headline_has_a_row_for_every_column_and_explains_its_marks(whole):
    text = whole.headline()
    for one in whole.board.standings:
        assert f"| {one.column}{'' if one.complete else ' (not all run)'} |" in text
    for mark in MARKS.values():
        assert text.count(f"- {mark} ") == (mark in text)


def test_a_partial_column_is_never_called_the_strongest_without_saying_so(only):
    some = only(lambda r: r["column"] in ("none", "label_only", "modelguard_w") and r["query"] == "knockoff")
    assert all(one.published.count == 7 for one in some.board.standings)
    [line] = [line for line in some.story().splitlines() if "The other defenses leave" in line]
    assert "Of `label_only`, `modelguard_w`, `none` not all of them were run yet" in line
    assert "not all of them" not in some.story().replace(line, "")


def test_a_figure_of_one_run_is_never_called_a_mean(whole, only):
    counts: dict[tuple[str, str, str], int] = {}
    for r in whole.results:
        counts[r["column"], r["query"], r["attack"]] = counts.get((r["column"], r["query"], r["attack"]), 0) + 1
    several = sum(count > 1 for count in counts.values())
    assert f"- {several} of the {len(counts)} figures are means over seeds" in whole.story()
    assert "- Each figure is of one run." in only(lambda r: r["seed"] == 0).story()


def test_equal_thieves_behind_the_sentinel_are_counted_once(whole):
    own = [r for r in whole.results if r["column"] == "queen-sentinel" and r["seed"] == 0]
    thieves = {(r["thief"]["accuracy"], r["thief"]["agreement"]) for r in own}
    assert f"the {len(own)} rows are {len(thieves)} different thieves" in whole.sentinel_table()


@pytest.mark.parametrize("missing", ["queen-sentinel", "none", "modelguard_w"])
def test_every_part_is_rendered_whatever_is_missing(only, missing):
    some = only(lambda r: r["column"] != missing)
    assert missing in some.board.not_run
    assert f"`{missing}` was not run yet." in some.story() or missing != "queen-sentinel"
    for part in (some.leaderboard_table, some.accuracy_table, some.share_table, some.summary_table, some.story):
        assert part().endswith("\n")
        assert part() in some.section() or part == some.summary_table
    assert missing in some.leaderboard_table().splitlines()[-1]
    assert some.leaderboard_picture().startswith(b"\x89PNG")


def test_one_cell_is_enough_for_a_page(only):
    cell = ("queen-sentinel", "knockoff", "direct", 0)
    some = only(lambda r: (r["column"], r["query"], r["attack"], r["seed"]) == cell)
    assert "1 of the 12 run so far" in some.story()
    planned = len(some.spec.select(columns=["queen-sentinel"]))
    assert f"| 1 of {planned} |" in some.leaderboard_table()


@pytest.mark.parametrize("name", PAPER_OF)
def test_every_table_of_the_paper_has_a_spec_that_can_be_told_of_before_it_is_run_and_afterwards(name, whole):
    empty = replace(read_rerun(name), results=[])
    assert empty.section() == (
        f"Not run yet: `benchmarks/paper/{name}.yaml` has {len(list(empty.spec.cells()))} cells.\n"
    )
    some = replace(empty, results=whole.results)  # of another set, in the same form
    assert f"`benchmarks/paper/{name}.yaml`" in some.section()
    assert f"with {some.spec.budget:,} queries" in some.scope_line()


def test_columns_with_networks_for_shadows_have_no_time_that_was_measured_with_heads():
    results = [
        {"column": "queen", "defense": {"options": {"shadow_kind": "head"}}},
        {"column": "queen-artifact", "defense": {"options": {"shadow_kind": "vgg11_bn"}}},
        {"column": "mad", "defense": {"options": {}}},
    ]
    times = {"queen": 1.1, "queen-artifact": 1.2, "mad": 2.0, "emdp": 1.0}
    assert heads_only(times, results) == {"queen": 1.1, "mad": 2.0}


def test_the_scope_says_how_many_cells_were_run(whole):
    cells, results = len(list(whole.spec.cells())), len(whole.results)
    expected = f"All {cells} cells" if cells == results else f"{results} of the {cells} cells"
    assert whole.scope_line().startswith(expected)
