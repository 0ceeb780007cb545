"""The evidence benchmark replays clients as a ledger would, one query after the other, and counts what it says."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from benchmarks.evidence import clients as clients_module
from benchmarks.evidence import odd as odd_module
from benchmarks.evidence.clients import (
    FIRST_BAR,
    TEST,
    Images,
    Measured,
    alarms,
    highest_wealth,
    make_betting,
    orders,
    summary,
    with_cover,
)
from benchmarks.evidence.measure import CHANGES, changed
from benchmarks.evidence.odd import (
    Accuser,
    Kind,
    bursts,
    count_accused,
    drifting_camera,
    drifting_classes,
    make_kinds,
    odd,
    one_camera,
    past_traffic,
    retries,
    study,
)
from benchmarks.evidence.threshold import _first_window
from queen.bench.render.sentinel import evidence_markdown, odd_markdown, threshold_markdown, tolerance_markdown
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


ROWS = np.arange(1, 60, 2)  # what clients may send of 60 images


def test_a_camera_changes_all_images_of_a_client_alike_and_a_drifting_one_ever_more():
    rng = np.random.default_rng(0)
    for level, images_sent in _levels_and_images(one_camera(60, 8, rng, ROWS, 20, 50)):
        assert len(set(level)) == 1
        assert set(images_sent) <= set(ROWS.tolist())
        assert len(set(images_sent)) == 20
    for level, images_sent in _levels_and_images(drifting_camera(60, 5, rng, ROWS, 20, 50)):
        assert level == np.repeat(np.arange(5), 4).tolist()
        assert len(set(images_sent)) == 20


def _levels_and_images(sent):
    return list(zip((sent // 60).tolist(), (sent % 60).tolist(), strict=True))


def test_the_classes_come_one_after_the_other_and_in_another_order_for_every_client():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 4, 4000)
    sent = drifting_classes(truth, rng, np.arange(0, 4000, 2), 2000, 20)
    assert [sorted(client) for client in sent.tolist()] == [list(range(0, 4000, 2))] * 20
    first, last = truth[sent[:, :200]], truth[sent[:, -200:]]
    for early, late in zip(first, last, strict=True):
        assert np.bincount(early, minlength=4).max() > 150
        assert np.bincount(early, minlength=4).argmax() != np.bincount(late, minlength=4).argmax()
    assert len({int(np.bincount(early).argmax()) for early in first}) == 4


@pytest.mark.parametrize("frames", [1, 2, 5])
def test_a_burst_sends_an_image_several_times_in_a_row(frames):
    sent = bursts(frames, np.random.default_rng(0), ROWS, 20, 3).reshape(3, -1, frames)
    assert (sent == sent[:, :, :1]).all()
    assert [len(set(client)) for client in sent[:, :, 0].tolist()] == [20 // frames] * 3


def test_past_traffic_uses_each_image_once_and_no_more_images_than_asked_for():
    rng, even = np.random.default_rng(0), np.arange(0, 600, 2)
    kind = Kind(images(rng, 600 * 8), 600, lambda *drawn: one_camera(600, 8, *drawn))
    sent = past_traffic(rng, kind, even, 100)
    assert len(set((sent % 600).tolist())) == len(sent) == 100
    assert set((sent % 600).tolist()) <= set(even.tolist())
    assert len(set((sent // 600).tolist())) > 1


def test_nobody_reaches_a_bar_above_the_highest_wealth_and_somebody_one_below_it():
    rng = np.random.default_rng(0)
    calibration, queries = images(rng, 60), images(rng, 100, shift=0.5)
    betting, clients = make_betting(calibration, 2, 0.0), orders(rng, 100, 100, 5)
    highest = highest_wealth(betting, queries, clients)
    assert (alarms(betting, queries, clients, highest * (1 - 1e-9)) < 100).any()
    assert (alarms(betting, queries, clients, highest * (1 + 1e-9)) == 100).all()


def test_a_client_is_judged_anew_after_every_calibration():
    rng = np.random.default_rng(0)
    queries = images(rng, 90, shift=1.0)
    accusers = [Accuser(make_betting(images(rng, 60), 2, 0.0), bar) for bar in (1e4, 1e3, 1e2)]
    clients = orders(rng, 90, 90, 30)
    expected = []
    for client in clients:
        for part, accuser in enumerate(accusers):
            at = int(alarms(accuser.betting, queries, client[None, 30 * part : 30 * part + 30], accuser.bar)[0])
            if at < 30:
                expected.append(30 * part + at + 1)
                break
    assert len({(at - 1) // 30 for at in expected}) > 1
    assert count_accused(accusers, queries, clients) == {"accused": len(expected), "median": np.median(expected)}


def test_of_clients_never_accused_there_is_no_median_query():
    rng = np.random.default_rng(0)
    accuser = Accuser(make_betting(images(rng, 60), 2, 0.0))
    assert count_accused([accuser], images(rng, 40), orders(rng, 40, 40, 3)) == {"accused": 0, "median": None}


def test_retries_of_an_odd_input_are_free_but_frames_of_it_are_not(monkeypatch):
    monkeypatch.setattr(odd_module, "HONEST", 10)
    rng = np.random.default_rng(0)
    calibration, queries = images(rng, 400), images(rng, 200)
    assert retries(calibration, queries, 2)["accused"] == 0
    foreign = np.full((1, 200), queries.scores[:, 0].argmax())
    assert alarms(make_betting(calibration, 2, 0.0), queries, foreign, FIRST_BAR)[0] < 20


def test_odd_clients_are_spared_once_their_own_traffic_calibrates(monkeypatch):
    monkeypatch.setattr(odd_module, "HONEST", 20)
    monkeypatch.setattr(odd_module, "SENT", 300)
    rng = np.random.default_rng(0)
    calibration, usual = images(rng, 1000), images(rng, 1000)
    result = study(
        2, calibration, usual, Kind(images(rng, 2000, shift=1.0), 2000), lambda accuser: {"bar": accuser.bar}
    )
    assert [at["accused"] for at in result["margins"].values()][:3] == [20, 20, 20]
    assert result["traffic"] == 1000
    own = result["remedies"]["own"]
    assert (own["accused"], own["usual_accused"], own["thieves"]) == (0, 0, {"bar": FIRST_BAR})
    assert result["remedies"]["bar"]["bar"] >= FIRST_BAR


@pytest.fixture
def victim(tmp_path, monkeypatch):
    """A measured victim of 120 images, and few and short clients."""
    for module, sizes in (
        (odd_module, {"CHANGED": 120, "HONEST": 4, "SENT": 45, "TRUSTED": 3}),
        (clients_module, {"ORDERS": 4, "QUERIES": 100}),
    ):
        for name, size in sizes.items():
            monkeypatch.setattr(module, name, size)
    rng = np.random.default_rng(0)
    names = {f"{kind} {level}" for kind, ranges in CHANGES.items() for levels in ranges.values() for level in levels}
    arrays = {"held out/truth": rng.integers(0, 2, 120), "about": np.array('{"classes": 2, "about": "a victim"}')}
    for name in ("calibration", "held out", "pool letters", *sorted(names)):
        made = images(rng, 120, shift=3.0 * (name == "pool letters"))
        arrays |= {f"{name}/labels": made.labels, f"{name}/scores": made.all_scores}
    np.savez(tmp_path / "victim.npz", **arrays)
    return Measured(tmp_path / "victim.npz")


def test_no_kind_sends_what_calibrates(victim):
    rng = np.random.default_rng(0)
    for kind in make_kinds(victim).values():
        sendable = np.arange(1, kind.count, 2)
        sent = kind.draw(rng, sendable, len(sendable), 3)
        assert set((sent % kind.count).ravel().tolist()) <= set(sendable.tolist())
        assert sent.max() < len(kind.pictures)


def test_every_kind_is_studied_and_has_a_row(victim):
    result = odd(victim)
    assert list(result["kinds"]) == list(make_kinds(victim))
    assert result["retry"]["accused"] == 0
    assert result["thieves"]["plain"]["caught"] == 1
    for name, kind in result["kinds"].items():
        assert ("again" in kind["remedies"]) == (name.startswith("drift") and name != "drift: classes")
    rows = odd_markdown({"queries": 4400, "victims": {"a": result, "b": result}}).splitlines()
    for name in result["kinds"]:
        assert any(row.startswith(f"| {name.replace('jpeg', 'JPEG quality')} |") for row in rows)


def test_of_the_committed_odd_clients_a_larger_margin_spares_more_and_own_traffic_does_unless_it_comes_in_bursts():
    victims = json.loads((RESULTS / "odd.json").read_text())["victims"]
    assert list(victims) == list(json.loads((RESULTS / "tolerance.json").read_text())["victims"])
    for victim in victims.values():
        assert victim["retry"]["accused"] == 0
        assert victim["kinds"]["cascade"]["margins"]["0.2"]["accused"] == 100
        for name, kind in victim["kinds"].items():
            accused = [at["accused"] for at in kind["margins"].values()]
            assert accused == sorted(accused, reverse=True)
            if not name.startswith("bursts"):
                assert kind["remedies"]["own"]["accused"] <= kind["remedies"]["mixed"]["accused"] <= accused[2]
