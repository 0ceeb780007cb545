"""Reading labels out of what the accused get: goal 30 of qa/ in seconds."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from scipy.stats import binom

from qa.sentinel import read_back as qa
from qa.serving.scenario import failed
from queen import protect
from queen.zoo import build
from tests.support.guards import QUICK, SECRET, digits, images, train

TRAIN, KNOWN = slice(0, 700), slice(700, 1300)


@cache
def target() -> qa.Target:
    """A small network on 8x8 digits; the thief's images are mixtures of two digits, turned and mirrored."""
    x, y = images(digits()[0]), digits()[1]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = train(build("small_cnn", classes=10, grid=2), x[TRAIN], y[TRAIN], epochs=12)
    options = {"policy": "sentinel", "mapping": QUICK, "secret": SECRET, "progress": False}
    guard = protect(model, (x[TRAIN], y[TRAIN]), calibration=(x[KNOWN], y[KNOWN]), **options)
    foreign = (x[:900].rot90(1, (2, 3)) + x[:900].roll(450, 0).flip(3)) / 2
    return qa.Target(guard, foreign, (x[1300:], y[1300:]))


def test_the_limit_is_that_of_clopper_and_pearson():
    result = qa.ReadBack(right=30, labels=200, base=0.2, honest=0, queries=200)
    assert binom.cdf(30, 200, result.limit) == pytest.approx(0.05)
    assert qa.ReadBack(right=5, labels=5, base=0.2, honest=0, queries=5).limit == 1
    assert qa.ReadBack(right=0, labels=0, base=0.0, honest=0, queries=0).share == 0


def test_images_that_anybody_was_answered_honestly_do_not_count():
    result = qa.read_back(target(), "provoked_alarm", qa.FOREIGN, 100)
    assert result.labels <= 200
    assert result.queries == 300
    assert result.honest < 100


@pytest.mark.parametrize("attack", ["path", "path_labelled"])
def test_shuffled_numbers_are_read_back(attack):
    with qa.shuffled_numbers():
        result = qa.read_back(target(), attack, qa.FOREIGN, 60)
    assert result.limit > result.share > result.base + 0.15


def test_shuffled_numbers_have_another_form_and_change_when_sent_again():
    with qa.shuffled_numbers():
        wrong = {check.name for check in failed([*qa.form_checks(target(), 300), *qa.alarm_checks(target(), 200)])}
    assert {f"{form} of decoys, as of honest answers to own-kind images" for form in qa.FORMS} <= wrong
    assert "an old query sent again after the alarm is answered as before" in wrong


@pytest.mark.parametrize("attack", qa.ATTACKERS)
def test_nothing_is_read_back_from_decoys(attack):
    result = qa.read_back(target(), attack, qa.FOREIGN, 60)
    assert result.labels >= 60
    assert result.right <= binom.isf(1e-3, result.labels, result.base)


def test_decoys_look_honest_and_old_queries_are_answered_as_before():
    checks = [*qa.form_checks(target(), 300), *qa.alarm_checks(target(), 200)]
    assert failed(checks) == []
    assert all(type(check.holds) is bool for check in checks)  # or no report could be written


def test_a_sequential_proof_counts_queries():
    always = qa.proof("x", torch.ones(50, dtype=torch.bool), 0.05, 0.9)
    assert always.found == "median 3 queries, 95 % by 3"  # (.9 / .05) ** 3 > 1000 > (.9 / .05) ** 2
    never = qa.proof("x", torch.zeros(50, dtype=torch.bool), 0.05, 0.9, queries=2)
    assert never.found == "sure in 0% of cases after 100 queries"
