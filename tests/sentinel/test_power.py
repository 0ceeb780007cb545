"""How soon thieves are caught: against a simulation query by query, and on laws whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from queen.sentinel import power
from queen.sentinel.bets import Bets, Betting, Test
from queen.sentinel.power import COVERS, Samples, alarm_after, in_words
from queen.sentinel.ranks import Ranking, robust_spreads
from queen.sentinel.wealth import Winnings, place_bets

TEST = Test(id=1, scores=2, alpha=1e-3, delta=0.05)


def samples(rng: np.random.Generator, count: int, *, shift: float = 0.0, classes: int = 3) -> Samples:
    return Samples(rng.integers(0, classes, count), rng.normal(shift, 1, (count, 2)))


def betting(calibration: Samples, *, margin: float = 0.0, classes: int = 3) -> Betting:
    spreads = robust_spreads(calibration.labels, calibration.scores, classes)
    return Betting(Ranking(calibration.labels, calibration.scores, spreads, classes, margin))


@pytest.fixture
def calibration() -> Samples:
    return samples(np.random.default_rng(0), 600)


def test_plain_foreign_queries_are_caught_as_soon_as_a_client_who_sends_them(calibration):
    """The median of thieves simulated otherwise: one by one, query by query."""
    foreign = samples(np.random.default_rng(1), 400, shift=2.5)
    bets_of = betting(calibration)
    rng, times = np.random.default_rng(2), []
    for _ in range(20):
        thief, time, reached = Winnings.empty(2), 0, None
        while reached is None:
            row = rng.integers(400, size=1)
            bets = Bets(*bets_of.lanes(foreign.labels[row], foreign.scores[row]), [0], [()], TEST, enforce=True)
            [reached] = place_bets([thief], np.zeros(1, np.intp), foreign.labels[row], bets, TEST.bar(1))
            time += 1
        times.append(time)
    found = alarm_after(bets_of, TEST, calibration, foreign, covers=["0:1"])["0:1"]
    assert found["caught"] == 1.0
    assert found["median"] == pytest.approx(np.median(times), rel=0.2)
    assert found["median"] <= found["p95"] <= 2 * max(times)


def test_cover_delays_the_alarm_and_a_further_calibration_too(calibration):
    foreign = samples(np.random.default_rng(1), 400, shift=3.0)
    found = alarm_after(betting(calibration), TEST, calibration, foreign)
    assert list(found) == list(COVERS)
    medians = [found[cover]["median"] for cover in ("0:1", "1:1", "3:1")]
    assert medians == sorted(medians)
    later = alarm_after(betting(calibration), TEST, calibration, foreign, covers=["0:1"], number=30)["0:1"]
    assert later["median"] > medians[0]


def test_each_thief_has_one_kind_of_foreign_images(calibration, monkeypatch):
    """A sentinel that sees one kind and is blind to the other catches half of the thieves, and says so."""
    monkeypatch.setattr(power, "LONGEST", 600)
    rng, bets_of = np.random.default_rng(1), betting(calibration)
    odd, usual = samples(rng, 200, shift=3.0), samples(rng, 200)

    def plain(*parts: Samples, kinds: int) -> dict[str, float | None]:
        joined = Samples(
            np.concatenate([part.labels for part in parts]),
            np.concatenate([part.scores for part in parts]),
            kinds=kinds,
        )
        return alarm_after(bets_of, TEST, calibration, joined, covers=["0:1"])["0:1"]

    for order in ((odd, usual), (usual, odd)):
        found = plain(*order, kinds=2)
        assert found["caught"] == 0.5
        assert found["p95"] is None
        assert found["median"] >= plain(odd, kinds=1)["median"]
    assert plain(odd, usual, kinds=1)["caught"] == 1.0  # a thief who sends both is caught: this hid the other
    assert plain(odd, odd, kinds=2)["caught"] == 1.0


def test_images_that_are_one_picture_to_the_guard_are_evidence_once(calibration, monkeypatch):
    """As if a thief had sent the first of them, and then nothing for every other."""
    monkeypatch.setattr(power, "LONGEST", 300)
    foreign = samples(np.random.default_rng(1), 400, shift=3.0)
    bets_of = betting(calibration)

    def plain(pictures):
        told = Samples(foreign.labels, foreign.scores, pictures)
        return alarm_after(bets_of, TEST, calibration, told, covers=["0:1", "1:1"])

    assert plain(np.arange(400)) == plain(None)
    assert [one["caught"] for one in plain(np.zeros(400, np.int64)).values()] == [0.0, 0.0]
    half = np.where(np.arange(400) % 2, np.arange(400), 0)  # every second query is worth nothing
    assert plain(half)["0:1"]["median"] == pytest.approx(2 * plain(None)["0:1"]["median"], rel=0.3)


@pytest.mark.parametrize("margin", [0.0, 0.2])
def test_who_sends_benign_images_only_is_not_caught(calibration, margin, monkeypatch):
    """Attack queries of the same law as the calibration: cover and attack together are a benign client."""
    monkeypatch.setattr(power, "LONGEST", 1000)
    benign = samples(np.random.default_rng(3), 2000)
    found = alarm_after(betting(calibration, margin=margin), TEST, calibration, benign)
    assert list(found) == list(COVERS)
    assert all(one == {"median": None, "p95": None, "caught": 0.0} for one in found.values())


def test_few_calibration_images_do_not_make_their_own_cover_look_foreign(monkeypatch):
    """Cover alone reaches 1/p with probability at most p, over calibrations too, however few images there are."""
    monkeypatch.setattr(power, "LONGEST", 40)
    test, caught = Test(id=1, scores=2, alpha=0.3, delta=0.3), []
    for draw in range(8):
        few = samples(np.random.default_rng(draw), 40)
        benign = samples(np.random.default_rng(100 + draw), 1000)
        caught.append(alarm_after(betting(few), test, few, benign, covers=["10:1"], seed=draw)["10:1"]["caught"])
    assert np.mean(caught) <= 0.09 + 3 * (0.09 / 160) ** 0.5


def test_ties_stay_ties():
    """Where all scores are equal no bet can win, whatever the cover."""
    equal = Samples(np.zeros(50, np.int64), np.ones((50, 2)))
    found = alarm_after(betting(equal, classes=1), TEST, equal, equal, covers=["0:1", "1:1"])
    assert [one["caught"] for one in found.values()] == [0.0, 0.0]


def test_thieves_nobody_follows_are_stood_for_by_others(calibration, monkeypatch):
    foreign = samples(np.random.default_rng(1), 400, shift=1.0)
    monkeypatch.setattr(power, "LONGEST", 300)
    monkeypatch.setattr(power, "PATIENCE", 300)
    everybody = alarm_after(betting(calibration), TEST, calibration, foreign, covers=["1:1"])["1:1"]
    monkeypatch.setattr(power, "PATIENCE", 40)
    some = alarm_after(betting(calibration), TEST, calibration, foreign, covers=["1:1"])["1:1"]
    assert 0 < everybody["caught"] <= 1
    assert some["caught"] == pytest.approx(everybody["caught"], abs=0.5)


def test_the_same_seed_gives_the_same_answer(calibration):
    foreign = samples(np.random.default_rng(1), 400, shift=2.0)
    one, two, other = (
        alarm_after(betting(calibration), TEST, calibration, foreign, covers=["1:1"], seed=seed) for seed in (0, 0, 1)
    )
    assert one == two
    assert other["1:1"]["caught"] == 1.0


def test_quantiles_are_none_where_fewer_are_caught():
    times = np.array([5.0, 7.0, np.inf, np.inf])
    assert power._summarise(times, np.ones(4)) == {"median": 7, "p95": None, "caught": 0.5}
    assert power._summarise(times, np.array([1.0, 1.0, 1.0, 2.0])) == {"median": None, "p95": None, "caught": 0.4}
    assert power._summarise(np.arange(1.0, 21.0), np.ones(20)) == {"median": 10, "p95": 19, "caught": 1.0}


def test_in_words():
    found = {
        "0:1": {"median": 16, "p95": 26, "caught": 1.0},
        "1:1": {"median": 40, "p95": None, "caught": 0.9},
        "3:1": {"median": None, "p95": None, "caught": 0.35},
        "10:1": {"median": None, "p95": None, "caught": 0.0},
    }
    assert in_words(found) == [
        "plain foreign queries: caught after 16 in the median, 95 % after 26",
        "foreign queries at 1:1 cover: caught after 40 in the median, 90% within 5,000",
        "foreign queries at 3:1 cover: 35% of thieves are caught within 5,000 of them",
        "foreign queries at 10:1 cover: not caught within 5,000 of them",
    ]
