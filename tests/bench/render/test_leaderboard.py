"""The leaderboard: the best thief is the best one, what is missing is said, and owners of the encoder count apart."""

from __future__ import annotations

import random

import pytest

from queen.attacks import ATTACKS
from queen.bench.render.leaderboard import PAPERS_CELLS, make_leaderboard, name_cells
from queen.bench.render.leaderboard_table import leaderboard_markdown
from queen.errors import OptionError
from tests.support.benchmarks import result

CELLS = [(query, attack) for query in ("knockoff", "jbda_tr") for attack in ATTACKS if query in ATTACKS[attack].queries]


def random_results(seed: int, columns=("none", "queen", "queen-sentinel")):
    """Some cells of every column, with several seeds and random accuracies."""
    draw = random.Random(seed)
    return [
        result(column, attack, query=query, seed=number, accuracy=draw.random(), knows=ATTACKS[attack].knows)
        for column in columns
        for query, attack in draw.sample(CELLS, draw.randint(3, len(CELLS)))
        for number in range(draw.randint(1, 3))
    ]


def means(results, column, keep):
    """Mean accuracy over seeds of every attack that `keep` keeps."""
    by_cell: dict[tuple[str, str], list[float]] = {}
    for one in results:
        if one["column"] == column and keep(one):
            by_cell.setdefault((one["query"], one["attack"]), []).append(one["thief"]["accuracy"])
    return {cell: sum(values) / len(values) for cell, values in by_cell.items()}


@pytest.mark.parametrize("seed", range(20))
def test_the_best_thief_is_the_maximum_over_all_attacks_but_owners_of_the_encoder(seed):
    results = random_results(seed)
    for one in make_leaderboard(results, [], {}).standings:
        everybody = means(results, one.column, lambda r: "encoder" not in r["knows"])
        papers = means(results, one.column, lambda r: (r["query"], r["attack"]) in PAPERS_CELLS)
        owners = means(results, one.column, lambda r: "encoder" in r["knows"])
        for best, among in ((one.best, everybody), (one.published, papers), (one.encoder, owners)):
            if not among:
                assert best is None
                continue
            assert best.entry.mean == pytest.approx(max(among.values()))
            assert among[best.query, best.attack.rstrip("°†‡")] == pytest.approx(best.entry.mean)
            assert best.count == len(among)


@pytest.mark.parametrize("seed", range(5))
def test_the_defense_that_leaves_least_to_the_papers_attackers_comes_first(seed):
    stolen = [one.published.entry.mean for one in make_leaderboard(random_results(seed), [], {}).standings]
    assert stolen == sorted(stolen)


def bare_and_other(kept: float, **more):
    """Bare labels, where more attackers were tried, and a defense with this share of right labels."""
    bare = [
        result("label_only", "direct", accuracy=0.7),
        result("label_only", "cover_1", accuracy=0.8, knows=("benign",)),
        result("label_only", "greybox_head", accuracy=0.9, knows=("encoder",)),
    ]
    return [*bare, result("mad", "direct", accuracy=0.3, answers={"label_kept": kept}, **more)]


def test_who_keeps_labels_leaves_at_least_what_bare_labels_leave():
    board = make_leaderboard(bare_and_other(0.9995), [], {})
    mad, text = board.find("mad"), leaderboard_markdown(board)
    assert (mad.best.attack, mad.best.entry.mean) == ("cover_1†¶", 0.8)
    assert (mad.encoder.attack, mad.encoder.entry.mean) == ("greybox_head‡¶", 0.9)
    assert (mad.published.attack, mad.published.entry.mean) == ("direct", 0.3)
    assert "- ¶ takes only the labels" in text
    assert "¶" not in board.find("label_only").best.attack


@pytest.mark.parametrize(
    ("kept", "more"),
    [(0.9985, {}), (1.0, {"queries": {"budget": 300, "sent": 300, "answered": 20}})],
    ids=["wrong labels", "refusals"],
)
def test_bare_labels_say_nothing_of_a_defense_that_changes_labels_or_refuses(kept, more):
    board = make_leaderboard(bare_and_other(kept, **more), [], {})
    assert board.find("mad").stolen == 0.3
    assert board.find("mad").encoder is None
    assert "¶" not in leaderboard_markdown(board)


def test_a_thief_who_uses_more_than_labels_keeps_its_place():
    better = result("mad", "cover_1", accuracy=0.85, knows=("benign",), answers={"label_kept": 1.0})
    board = make_leaderboard([*bare_and_other(1.0), better], [], {})
    assert (board.find("mad").best.attack, board.find("mad").stolen) == ("cover_1†", 0.85)


def test_the_order_of_results_does_not_matter():
    results = random_results(3)
    shuffled = random.Random(0).sample(results, len(results))
    first, second = (leaderboard_markdown(make_leaderboard(some, [], {})) for some in (results, shuffled))
    assert first == second


def test_a_column_with_missing_attacks_says_how_many_and_which():
    planned = [(column, *cell, 0) for column in ("none", "queen", "mad") for cell in PAPERS_CELLS]
    results = [result("none", attack, query=query) for query, attack in PAPERS_CELLS]
    results += [result("queen", "direct", accuracy=0.2), result("queen", "pbayes", accuracy=0.3)]
    board = make_leaderboard(results, planned, {})
    text = leaderboard_markdown(board)
    queen, none = board.standings
    assert (queen.column, queen.complete, none.complete) == ("queen", False, True)
    assert "| queen | 30.0 | pbayes | 30.0 (2 run) |" in text
    assert "| 2 of 12 | 0 |" in text
    assert "| 12 of 12 | 0 |" in text
    assert (
        "Not run yet on queen: knockoff label_only, s4l, smoothing, ddae, ddae_plus; "
        "jbda_tr direct, label_only, ddae, ddae_plus, pbayes." in text
    )
    assert "Not run yet at all: mad." in text


def test_a_thief_that_does_not_ask_at_random_is_named_with_how_it_asks():
    text = leaderboard_markdown(make_leaderboard([result(query="jbda_tr", accuracy=0.4)], [], {}))
    assert "| queen | 40.0 | jbda_tr direct |" in text


def test_a_complete_board_lacks_nothing():
    planned = [("none", *cell, 0) for cell in PAPERS_CELLS]
    results = [result("none", attack, query=query) for query, attack in PAPERS_CELLS]
    assert "Not run yet" not in leaderboard_markdown(make_leaderboard(results, planned, {}))


def test_a_seed_that_was_not_run_is_a_missing_cell():
    planned = [("queen", "knockoff", "direct", seed) for seed in range(3)]
    (one,) = make_leaderboard([result(seed=0), result(seed=2)], planned, {}).standings
    assert (one.run, one.missing) == (2, (("knockoff", "direct", 1),))
    assert one.untried == ()


def test_owners_of_the_encoder_have_a_column_of_their_own_where_there_are_any():
    owner = result("queen", "greybox_head", accuracy=0.9, knows=("encoder",))
    without, with_owner = ([result(accuracy=0.2)], [result(accuracy=0.2), owner])
    assert "encoder" not in leaderboard_markdown(make_leaderboard(without, [], {}))
    board = make_leaderboard(with_owner, [], {})
    assert board.standings[0].stolen == pytest.approx(0.2)
    assert "| queen | 20.0 | direct | 20.0 (1 run) | 90.0 (greybox_head‡) |" in leaderboard_markdown(board)


def test_what_benign_clients_get_and_what_leaks_is_shown_and_a_dash_where_it_was_not_measured():
    clients = {"one_client": {"accuracy": 0.64, "l1": 0.0123, "refused": 0.25}, "many_clients": {"accuracy": 0.93}}
    measured = result(utility=clients, verdicts={"honest": 0.0004}, queries={"budget": 50_000, "sent": 50_000})
    text = leaderboard_markdown(make_leaderboard([measured], [], {"queen": 1.044}))
    assert "| 64.0 | 93.0 | 0.012 | 25.0% | 20 | 1.04 | 1 of 1 | 0 |" in text
    assert "| 85.0 | 90.0 | - | - | - | - | 1 of 1 | 0 |" in leaderboard_markdown(make_leaderboard([result()], [], {}))


def test_answers_that_are_no_probabilities_are_named():
    def board(l1: float) -> str:
        clients = {"one_client": {"accuracy": 0.9, "l1": l1}, "many_clients": {"accuracy": 0.9}}
        return leaderboard_markdown(make_leaderboard([result("mine", utility=clients)], [], {}))

    assert "- mine: no two probability vectors are more than 2 apart" in board(2.1)
    assert "probability vectors" not in board(2.0)


def test_flagged_runs_are_counted_and_explained_ones_apart():
    explained = result(attack="pbayes", flags=("odd",), explained={"odd": "no"})
    text = leaderboard_markdown(make_leaderboard([result(flags=("collapsed",)), explained], [], {}))
    assert "| 1 (and 1 explained) |" in text
    assert "| 50.0* | direct |" in text
    assert "* flagged" in text


def test_a_column_without_a_thief_comes_last_with_dashes():
    board = make_leaderboard([result("mine", accuracy=None), result(accuracy=1.0)], [], {})
    assert [one.column for one in board.standings] == ["queen", "mine"]
    assert "| mine | - | - | - |" in leaderboard_markdown(board)


def test_defenses_that_met_far_fewer_attackers_are_named():
    attacks = ("direct", "label_only", "ddae", "pbayes")
    results = [result("none", attack) for attack in attacks] + [result("mad", attack) for attack in attacks[:3]]
    assert make_leaderboard(results, [], {}).less_tried == []
    board = make_leaderboard([*results, result("emdp")], [], {})
    assert board.less_tried == ["emdp"]
    assert "Fewer attackers were run against emdp" in leaderboard_markdown(board)
    planned = [("emdp", "knockoff", attack, 0) for attack in attacks]
    assert make_leaderboard([*results, result("emdp")], planned, {}).less_tried == []  # named as not run yet


def test_two_protectees_are_refused():
    with pytest.raises(OptionError, match=r"of one protectee, got results of \['a', 'b'\]"):
        make_leaderboard([result(protectee="a"), result(protectee="b")], [], {})


def test_cells_are_named_by_query_strategy_each_once():
    assert name_cells([("jbda_tr", "pbayes", 0), ("knockoff", "s4l", 0), ("jbda_tr", "direct", 1)] * 2) == (
        "knockoff s4l; jbda_tr direct, pbayes"
    )
