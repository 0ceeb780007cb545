"""What all detectors share: the threshold, the alarm, and that benign clients are accused as rarely as promised."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy.special import betaincinv

from queen.bench.datasets import digits
from queen.cache import Cache
from queen.defenses import DEFENSES
from queen.defenses.base import Victim
from queen.defenses.detectors.base import FalseAlarms, QueryBatch, choose_threshold
from queen.errors import CalibrationError, OptionError, RefusedError
from queen.training import Schedule, train
from queen.types import Oracle, Verdict
from queen.zoo import build, seeded
from tests.support.detectors import DETECTORS, made_up

torch.set_num_threads(1)  # for networks this small a second thread only waits

TRAIN, CALIBRATION = 700, 700
ALPHA = 0.05
SMALL = {"alpha": ALPHA, "clients": 99, "life": 200}
EVERY = pytest.mark.parametrize("name", DETECTORS)


def seed(number: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def make_network(generator: torch.Generator) -> torch.nn.Module:
    with seeded(generator):
        return build("small_cnn", classes=10, grid=2)


@cache
def shuffled() -> tuple[torch.Tensor, torch.Tensor]:
    """The digits, no longer writer by writer."""
    x, y = digits()
    order = torch.randperm(len(x), generator=seed(1))
    return x[order], y[order]


@cache
def victim() -> Victim:
    x, y = shuffled()
    schedule = Schedule(epochs=8, lr=0.1, batch=32)
    model = train(make_network(seed()), x[:TRAIN], y[:TRAIN], schedule, seed())
    rest = slice(TRAIN, TRAIN + CALIBRATION)
    return Victim(model, (x[:TRAIN], y[:TRAIN]), make_network, schedule, (x[rest], y[rest]))


def fresh() -> torch.Tensor:
    return shuffled()[0][TRAIN + CALIBRATION :]


def start(name: str, **options: object):
    return DEFENSES[name].start(victim(), seed(), **{**SMALL, **options})


def answered(oracle: Oracle, x: torch.Tensor, batch: int = 50) -> int:
    """How many queries get an answer before the alarm; all of them if there is none."""
    for start in range(0, len(x), batch):
        try:
            oracle(x[start : start + batch])
        except RefusedError as refusal:
            return start + int((~refusal.reply.refused).sum())
    return len(x)


def stream(name: str) -> torch.Tensor:
    """What a detector should catch: variants of a few images, as attacks by perturbation send them, or noise."""
    if name in ("d_add", "mmd"):
        return torch.rand(300, 1, 8, 8, generator=seed(2))
    x = fresh()[:20].repeat(15, 1, 1, 1)
    return (x + 0.05 * torch.randn(x.shape, generator=seed(2)).sign()).clamp(0, 1)


class StubWatch:
    """The score of a query is its first pixel."""

    def follow(self, batch: QueryBatch) -> np.ndarray:
        return batch.x.flatten(1)[:, 0].numpy().astype(np.float64)


# The threshold


@pytest.mark.parametrize(("alpha", "clients"), [(0.01, 99), (0.01, 200), (0.05, 19), (0.05, 100), (0.5, 7)])
def test_as_many_simulated_clients_are_above_the_threshold_as_alpha_allows(alpha, clients):
    """Of these clients and one more, a share of alpha at most would be above it."""
    images = made_up(20_000)
    threshold = choose_threshold(StubWatch, images, FalseAlarms(alpha=alpha, clients=clients, life=10), seed(3))
    orders = [torch.randperm(20_000, generator=generator)[:10] for generator in [seed(3)] for _ in range(clients)]
    above = sum(float(images.x[order, 0, 0, 0].max()) > threshold for order in orders)
    assert above + 1 <= alpha * (clients + 1) + 1e-9 < above + 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0.0}, "alpha must be"),
        ({"alpha": 0.6}, "alpha must be"),
        ({"life": 0}, "life must be a whole number of at least 1, got 0"),
        ({"life": 2.5}, "life must be"),
        ({"clients": True}, "clients must be"),
        ({"alpha": 0.01, "clients": 98}, "takes at least 99 simulated clients, got clients=98"),
    ],
)
def test_rates_that_cannot_be_promised_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        start("mmd", **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("prada", {"least": 6}),
        ("prada", {"every": 0}),
        ("seat", {"share": 0}),
        ("seat", {"reference": 1}),
        ("d_add", {"window": 0}),
        ("d_add", {"every": 0}),
        ("mmd", {"window": 1}),
        ("mmd", {"reference": 1}),
    ],
)
def test_options_that_make_no_sense_are_refused(name, options):
    with pytest.raises(OptionError, match=next(iter(options))):
        start(name, **options)


def test_too_few_images_to_judge_a_client_by_are_a_clear_error():
    x, y = victim().calibration
    poor = replace(victim(), calibration=(x[:60], y[:60]))
    with pytest.raises(CalibrationError, match="no benign client is judged within a life of 30 queries: give a larger"):
        DEFENSES["mmd"].start(poor, seed(), **{**SMALL, "life": 30})


class LengthWatch:
    """The score of a client is the number of its queries so far."""

    def __init__(self) -> None:
        self._sent = 0

    def follow(self, batch: QueryBatch) -> np.ndarray:
        scores = self._sent + np.arange(1, len(batch.labels) + 1, dtype=np.float64)
        self._sent += len(batch.labels)
        return scores


@pytest.mark.parametrize(("images", "life", "lived"), [(400, None, 100), (403, None, 100), (3, None, 1), (9, 4, 4)])
def test_simulated_clients_live_as_long_as_promised(images, life, lived):
    """Where scores grow with every query, the threshold is that of a whole life: a quarter of the images if none."""
    assert choose_threshold(LengthWatch, made_up(images), FalseAlarms(life=life), seed()) == lived


def test_a_life_that_the_images_are_too_few_for_is_refused():
    message = "at most half of the calibration images, got 201 with 401 of them: lower life to 200, or give at least"
    with pytest.raises(CalibrationError, match=message):
        choose_threshold(LengthWatch, made_up(401), FalseAlarms(life=201), seed())


def test_a_threshold_from_the_cache_belongs_to_the_training_labels(tmp_path):
    """D-ADD's Gaussians are those of the labels: whoever corrects them gets another threshold."""
    x, y = victim().train
    relabelled = replace(victim(), train=(x, y.roll(1)))
    uncached = DEFENSES["d_add"].start(relabelled, seed(), **SMALL).threshold
    cached = [replace(one, cache=Cache(tmp_path)) for one in (victim(), relabelled)]
    thresholds = [DEFENSES["d_add"].start(one, seed(), **SMALL).threshold for one in cached]
    assert thresholds[1] == uncached != thresholds[0]


# The alarm


@EVERY
def test_the_query_that_trips_the_alarm_and_all_later_ones_are_refused(name):
    x, whole = stream(name), start(name)
    with pytest.raises(RefusedError, match=r"client 'a' stands accused: .* of 300 queries refused") as error:
        whole.client("a")(x)
    reply = error.value.reply
    first = int(reply.refused.argmax())
    assert reply.refused[first:].all()
    assert not reply.refused[:first].any()
    assert (reply.alarmed == reply.refused).all()
    assert (reply.honest == ~reply.refused).all()
    assert set(reply.verdicts) == {Verdict.OUTSIDE}
    clean = victim().clean(x)
    assert torch.allclose(reply.probabilities[:first], clean[:first], atol=1e-6)
    assert (reply.probabilities[first:] == 0.1).all()
    assert whole.verdicts == {"alarmed": 300 - first, "refused": 300 - first, "honest": first}
    assert first < 200
    one_by_one = start(name)
    assert answered(one_by_one.client("a"), x, batch=1) == first
    with pytest.raises(RefusedError):
        one_by_one.client("a")(fresh()[:1])  # once accused, always
    assert torch.allclose(one_by_one.client("b")(fresh()[:1]), victim().clean(fresh()[:1]), atol=1e-6)


def test_the_four_are_registered():
    assert DETECTORS == ["prada", "seat", "d_add", "mmd"]


# Whom they accuse


@pytest.mark.slow
@EVERY
def test_fresh_benign_clients_are_accused_no_more_often_than_promised(name):
    """The lower 99 % Clopper-Pearson limit of the share accused is below alpha; images are divided anew every time."""
    x, y = (part[TRAIN:] for part in shuffled())
    alpha, life, clients, accused = 0.1, 200, 40, 0
    for number in range(clients):
        order = torch.randperm(len(x), generator=seed(number))
        own, others = order[:CALIBRATION], order[CALIBRATION:][:life]
        divided = replace(victim(), calibration=(x[own], y[own]))
        endpoint = DEFENSES[name].start(divided, seed(number), alpha=alpha, life=life, clients=29)
        accused += answered(endpoint.client("benign"), x[others]) < life
    assert (betaincinv(accused, clients - accused + 1, 0.01) if accused else 0) <= alpha


@pytest.mark.long
@pytest.mark.slow
def test_the_rate_is_approximate_and_the_nearer_the_smaller_a_life_is_beside_the_calibration_images():
    """SEAT among made-up images: simulated clients share images with each other, new clients with nobody."""
    alpha, life, clients, draws = 0.01, 200, 100, 12
    shape = (1, 8, 8)

    def share_accused(images: int) -> float:
        accused = 0
        for number in range(draws):
            generator = seed(number)
            train, calibration = (torch.rand(n, *shape, generator=generator) for n in (400, images))
            blank = Victim(
                make_network(seed()),
                (train, torch.zeros(400, dtype=torch.long)),
                make_network,
                calibration=(calibration, torch.zeros(images, dtype=torch.long)),
            )
            endpoint = DEFENSES["seat"].start(blank, generator, alpha=alpha, life=life, share=1e-3)
            streams = torch.rand(clients, life, *shape, generator=generator)
            accused += sum(answered(endpoint.client(str(c)), x, life) < life for c, x in enumerate(streams))
        return accused / (draws * clients)

    half, quarter, tenth = (share_accused(images) for images in (2 * life, 4 * life, 10 * life))
    assert half > 3 * alpha
    assert half > quarter > alpha
    assert 2 * alpha > tenth


@EVERY
def test_a_benign_client_is_answered_where_a_thief_is_not(name):
    endpoint = start(name)
    assert answered(endpoint.client("benign"), fresh()[:200]) == 200
    assert answered(endpoint.client("thief"), stream(name)[:200]) < 200


@EVERY
def test_images_read_once_accuse_every_client_at_the_query_at_which_asking_does(name):
    endpoint, x = start(name), torch.cat([fresh()[:100], stream(name)[:200]])
    alarm_at = endpoint.replay(x)
    orders = [
        torch.arange(100),
        torch.arange(100, 300),
        torch.randperm(300, generator=seed()),
        torch.arange(300).flip(0),
    ]
    for number, rows in enumerate(orders):
        answers = answered(endpoint.client(f"client {number}"), x[rows], batch=300)
        assert alarm_at(rows) == (None if answers == len(rows) else answers + 1)
    assert alarm_at(orders[0]) is None
    assert alarm_at(orders[1]) is not None


def test_thresholds_depend_on_the_seed_alone():
    thresholds = {DEFENSES["seat"].start(victim(), seed(number), **SMALL).threshold for number in (0, 0, 1, 2, 3)}
    assert start("seat").threshold in thresholds
    assert len(thresholds) > 1
    assert all(math.isfinite(threshold) for threshold in thresholds)
