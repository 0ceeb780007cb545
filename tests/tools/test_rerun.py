"""What the documents say of the re-run follows from the results, whatever of it has been run."""

from __future__ import annotations

import pytest

from queen.bench.render.leaderboard import PAPERS_CELLS, make_leaderboard
from queen.bench.run import read_results
from queen.bench.spec import read_spec
from tools import rerun


@pytest.fixture
def only(monkeypatch):
    """Take some results for all that were run."""

    def take(keep):
        some = [r for r in read_results(rerun.AFTER) if keep(r)]
        planned = [(cell.column, cell.query, cell.attack, cell.seed) for cell in rerun._spec().cells()]
        board = make_leaderboard(some, planned, rerun.query_times(some))
        monkeypatch.setattr(rerun, "_results", lambda: some)
        monkeypatch.setattr(rerun, "board", lambda: board)
        return board

    return take


def test_the_sentinels_best_thieves_stand_first_with_how_many_were_run():
    first = rerun.story().splitlines()[0]
    own = rerun.board().find("queen-sentinel")
    assert first.startswith("- Behind `queen-sentinel` the best of the paper's twelve attackers (")
    assert f") gets {own.published.entry.mean:.1%}" in first
    if own.published.count < len(PAPERS_CELLS):
        assert f"{own.published.count} of the {len(PAPERS_CELLS)} run so far" in first
    assert f"the best of all that were run {own.best.entry.mean:.1%}" in first


def test_the_story_has_three_to_six_sentences_and_every_figure_of_the_board_is_its_own():
    lines = rerun.story().splitlines()
    assert 3 <= len(lines) <= 6
    rivals = [one for one in rerun.board().standings if one.column not in ("none", "queen-sentinel")]
    assert f"the best thief behind `{rivals[0].column}` gets the least, {rivals[0].stolen:.1%}" in lines[2]


def test_a_partial_column_is_never_called_the_strongest_without_saying_so(only):
    board = only(lambda r: r["column"] in ("none", "label_only", "modelguard_w") and r["query"] == "knockoff")
    assert not board.standings[0].complete
    [line] = [line for line in rerun.story().splitlines() if "gets the least" in line]
    first = board.standings[0]
    assert f"{first.run} of {first.run + len(first.missing)} cells run so far" in line


@pytest.mark.parametrize("missing", ["queen-sentinel", "none", "modelguard_w"])
def test_every_part_is_rendered_whatever_is_missing(only, missing):
    board = only(lambda r: r["column"] != missing)
    assert missing in board.not_run
    assert f"`{missing}` was not run yet." in rerun.story() or missing != "queen-sentinel"
    for part in (rerun.leaderboard_table, rerun.accuracy_table, rerun.share_table, rerun.summary_table, rerun.story):
        assert part().endswith("\n")
    assert missing in rerun.leaderboard_table().splitlines()[-1]
    assert rerun.leaderboard_picture().startswith(b"\x89PNG")


def test_one_cell_is_enough_for_a_page(only):
    only(lambda r: (r["column"], r["query"], r["attack"]) == ("queen-sentinel", "knockoff", "direct"))
    assert "1 of the 12 run so far" in rerun.story()
    planned = len(read_spec(rerun.SPEC).select(columns=["queen-sentinel"]))
    assert f"| 1 of {planned} |" in rerun.leaderboard_table()


def test_columns_with_networks_for_shadows_have_no_time_that_was_measured_with_heads():
    results = [
        {"column": "queen", "defense": {"options": {"shadow_kind": "head"}}},
        {"column": "queen-artifact", "defense": {"options": {"shadow_kind": "vgg11_bn"}}},
        {"column": "mad", "defense": {"options": {}}},
    ]
    assert set(rerun.query_times(results)) == {"queen", "mad"}


def test_the_scope_says_how_many_cells_were_run():
    cells, results = len(list(rerun._spec().cells())), len(read_results(rerun.AFTER))
    expected = f"All {cells} cells" if cells == results else f"{results} of the {cells} cells"
    assert rerun.scope_line().startswith(expected)
