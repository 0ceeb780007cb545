"""The evidence benchmark replays clients as a ledger would, one query after the other, and counts what it says."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from benchmarks.evidence.clients import FIRST_BAR, TEST, Images, alarms, make_betting, orders, summary, with_cover
from benchmarks.evidence.measure import CHANGES, changed
from benchmarks.evidence.threshold import _first_window
from queen.bench.render.sentinel import evidence_markdown, threshold_markdown, tolerance_markdown
from queen.sentinel.ranks import robust_spreads
from tests.reference.bets import Player, lanes_of
from tests.support.paths import ROOT

RESULTS = ROOT / "results" / "sentinel"


def images(rng: np.random.Generator, count: int, shift: float = 0.0) -> Images:
    return Images(rng.integers(0, 2, count), rng.normal(shift, 1, (count, 4)).round(1))


@pytest.mark.parametrize("margin", [0.0, 0.2])
def test_an_alarm_comes_where_bets_by_definition_raise_it(margin):
    rng = np.random.default_rng(0)
    calibration, queries = images(rng, 60), images(rng, 250, shift=1.5)
    clients = orders(rng, len(queries), 250, 3)
    expected = []
    for order in clients:
        player = Player(TEST.scores)
        for number, row in enumerate(order.tolist()):
            label = int(queries.labels[row])
            mine = calibration.scores[calibration.labels == label]
            shifts = margin * robust_spreads(calibration.labels, calibration.scores, 2)[label]
            columns = zip(mine.T.tolist(), queries.scores[row].tolist(), shifts.tolist(), strict=True)
            player.play(number, label, [lanes_of(*column) for column in columns], FIRST_BAR * TEST.size)
        expected.append(250 if player.reached is None else player.reached)
    assert alarms(make_betting(calibration, 2, margin), queries, clients, FIRST_BAR).tolist() == expected
    assert min(expected) < 250


def test_every_attack_query_is_sent_with_its_cover_and_in_order():
    rng = np.random.default_rng(0)
    attack, cover = orders(rng, np.arange(100, 200), 20, 4), orders(rng, 100, 60, 4)
    sent, attacks = with_cover(rng, attack, cover, 3)
    assert (sent.reshape(4, 20, 4) >= 100).sum(2).tolist() == [[1] * 20] * 4
    assert ((sent >= 100) == attacks).all()
    assert sent[attacks].reshape(4, 20).tolist() == attack.tolist()
    assert sorted(sent[~attacks].tolist()) == sorted(cover.ravel().tolist())


def test_orders_repeat_no_image_before_all_were_sent():
    for client in orders(np.random.default_rng(0), 7, 14, 5).tolist():
        assert sorted(client[:7]) == sorted(client[7:]) == list(range(7))


def test_a_summary_counts_those_never_caught():
    numbers = summary([1.0] * 9 + [np.inf])
    assert numbers == {"orders": 10, "caught": 0.9, "median": 1.0, "p95": None}


def test_a_window_counts_only_the_last_queries():
    over = np.array([[1, 0, 0, 1, 0, 1, 0], [1, 0, 0, 1, 0, 0, 1]], bool)
    assert _first_window(over, 3, 2).tolist() == [5, 7]
    assert _first_window(over, 7, 2).tolist() == [3, 3]


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_keeps_images_images_and_grows_with_its_strength(kind):
    x = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    weak, strong = (min, max) if kind in ("noise", "blur") else (max, min)
    levels = [level for one in CHANGES[kind].values() for level in one]
    moved = [(changed(x, kind, pick(levels)) - x).abs().mean() for pick in (weak, strong)]
    assert moved[0] < moved[1]
    for level in levels:
        assert changed(x, kind, level).shape == x.shape
        assert changed(x, kind, level).min() >= 0
        assert changed(x, kind, level).max() <= 1


def test_the_committed_results_accuse_nobody_benign():
    evidence = json.loads((RESULTS / "evidence.json").read_text())["victims"]
    for victim in evidence.values():
        assert victim["benign"]["accused"] == victim["benign"]["one_predicted_class"]["accused"] == 0
        assert victim["benign"]["clients"] == 1000
        assert all(one["0"]["plain"]["caught"] == 1 for one in victim["thieves"].values())
    threshold = json.loads((RESULTS / "threshold.json").read_text())
    assert threshold["certified"]["accused"][-1] == 0


def test_the_tables_have_a_row_for_every_victim_and_every_camera():
    evidence, tolerance, threshold = (
        json.loads((RESULTS / f"{name}.json").read_text()) for name in ("evidence", "tolerance", "threshold")
    )
    table = evidence_markdown(evidence)
    for victim in evidence["victims"].values():
        assert f"| {victim['facts']['about']} |" in table
    rows = tolerance_markdown(tolerance, evidence).count("\n| ")
    assert rows >= 2 + len(tolerance["victims"]["demo"]) + 4 - 1
    assert threshold_markdown(threshold).count("\n| ") == 3 + len(threshold["fixed"])
