"""`calibrate`: what is stored, reported, warned of and refused, on 8x8 digits and a small CNN."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from queen import Guard, calibrate, load
from queen.bundle.calibration import Calibration
from queen.bundle.report import Report
from queen.errors import (
    CalibrationError,
    DtypeError,
    EmptyBatchError,
    LabelError,
    NotFiniteError,
    OptionError,
    QueenError,
    ShapeError,
)
from queen.fit.calibrate import Views, alarm_rates
from queen.options import Limits, Sentinel
from queen.sentinel.bets import shape_table
from queen.sentinel.conditions import apply
from queen.sentinel.ranks import robust_spreads
from queen.sentinel.sketch import measure_tolerance
from tests.support.guards import digits, fitted, held_out, images

NAMES = ["noise:0.2", "blur", "brightness:1.5"]
COLUMNS = ("labels", "points", "scores", "condition", "answers")


def data(rows: slice = slice(1200, None)) -> tuple[Tensor, Tensor]:
    x, y = digits()
    return images(x)[rows], y[rows]


@cache
def calibrated(seed: int = 0) -> Guard:
    return calibrate(fitted("network"), data(), conditions=NAMES, seed=seed, progress=False)


def energy(guard: Guard, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return -guard.bundle.split(x)[1].double().logsumexp(1)


def predicted(guard: Guard, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return guard.bundle.split(x)[1].argmax(1)


# What is stored.


def test_without_conditions_every_image_is_seen_once_as_it_is():
    guard, (x, y) = fitted("network"), data()
    found = calibrate(guard, (x, y), progress=False).bundle.calibration
    assert (found.conditions, found.certified) == (("clean",), True)
    assert torch.equal(found.labels, predicted(guard, x))  # predicted, not true
    assert not torch.equal(found.labels, y)
    assert torch.allclose(found.scores[:, 0], energy(guard, x), atol=1e-5)
    assert found.condition.unique().tolist() == [0]
    with torch.inference_mode():
        u, logits = guard.bundle.split(x)
        points = guard.bundle.geometry.relative(guard.bundle.mapping(u), logits.argmax(1))
    assert found.tolerance == pytest.approx(measure_tolerance(u, logits.argmax(1)), rel=1e-5)
    assert torch.allclose(found.points, points, atol=1e-5)
    assert torch.allclose(found.answers, logits.softmax(1), atol=1e-6)  # of fewer than a thousand images, all


def test_a_mixture_gives_every_image_one_condition_at_random():
    guard, (x, y) = fitted("network"), data()
    found = calibrated().bundle.calibration
    assert found.conditions == ("clean", *NAMES)
    counts = found.condition.bincount(minlength=4)
    assert len(found.labels) == counts.sum() == len(y)
    assert counts.min() > len(y) / 4 - 4 * (len(y) * 3 / 16) ** 0.5
    for number, name in ((0, "clean"), (2, "blur"), (3, "brightness:1.5")):  # those without chance
        mine = found.condition == number
        seen = apply(name, x, torch.Generator())[mine]
        assert torch.allclose(found.scores[mine, 0], energy(guard, seen), atol=1e-4)
    noisy = found.condition == 1
    assert (found.scores[noisy, 0] - energy(guard, x[noisy])).abs().min() > 0


def test_answers_to_at_most_a_thousand_images_are_stored_each_under_its_condition(monkeypatch):
    monkeypatch.setattr("queen.fit.calibrate.BANK", 50)
    guard, (x, y) = fitted("network"), data()
    found = calibrate(guard, (x, y), conditions=["brightness:1.5"], progress=False).bundle.calibration
    rows = torch.linspace(0, len(y) - 1, 50).long()  # evenly spread: data may be sorted by class
    seen = x.clone()
    seen[found.condition == 1] = apply("brightness:1.5", x, torch.Generator())[found.condition == 1]
    with torch.inference_mode():
        assert torch.allclose(found.answers, guard.bundle.split(seen[rows])[1].softmax(1), atol=1e-5)
    assert 10 < (found.condition[rows] == 1).sum() < 40


def test_traffic_fills_the_bank_too():
    x, _ = data()
    found = calibrate(fitted("network"), trusted={"a": x[:100], "b": x[100:200]}, progress=False).bundle.calibration
    assert found.answers.shape == (len(found.labels), 10)


def test_the_bank_is_no_part_of_the_test():
    found = calibrated().bundle.calibration
    other = replace(found, answers=found.answers.flip(1)[:7])
    assert other.test(Sentinel()) == found.test(Sentinel())


def test_counting_and_the_tolerance_use_one_view_of_every_image():
    guard = calibrated()
    found = guard.bundle.calibration
    assert guard.report["calibration_images"] == len(found.benign.labels) == len(data()[1])
    clean = calibrate(fitted("network"), data(), progress=False).bundle.calibration
    assert found.tolerance == clean.tolerance


def test_bets_compare_with_all_conditions_together():
    found = calibrated().bundle.calibration
    settings = Sentinel(scores=("energy",), margin=0.0)
    scores = found.scores[:, :1].double().numpy()
    k = found.labels.bincount().argmax().item()
    own = scores[found.labels == k, 0]
    size, total, bet, _ = found.betting(settings).lanes(np.array([k]), np.array([[np.median(own)]]))
    rank = int((own >= np.median(own)).sum())
    assert size[0, 0] == len(own) + 1
    for lane in range(3):
        numbers, sum_of_all = shape_table(lane, len(own))
        assert (bet[0, lane], total[0, lane]) == (numbers[rank], sum_of_all)


def test_the_same_seed_gives_the_same_calibration_and_another_does_not():
    one = calibrated().bundle.calibration
    again = calibrate(fitted("network"), data(), conditions=NAMES, progress=False).bundle.calibration
    other = calibrated(1).bundle.calibration
    assert all(torch.equal(getattr(one, name), getattr(again, name)) for name in COLUMNS)
    assert not torch.equal(one.condition, other.condition)


def test_global_randomness_is_neither_used_nor_changed():
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    found = calibrate(fitted("network"), data(), conditions=NAMES, progress=False).bundle.calibration
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(found.scores, calibrated().bundle.calibration.scores)


def test_identity_ledger_secret_and_options_stay():
    guard = fitted("network", keep_label=True)
    guard.answer(data()[0][:20], client="a")
    changed = calibrate(guard, data(), conditions=["blur"], progress=False)
    assert changed.bundle.identity == guard.bundle.identity
    assert changed.ledger is guard.ledger
    assert changed.bundle.keep_label
    assert changed.bundle.limits == guard.bundle.limits
    assert guard.bundle.calibration is None  # the old guard is untouched
    x = data()[0]
    other = guard.with_options()
    assert torch.equal(changed.answer(x, client="b").probabilities, other.answer(x, client="b").probabilities)


def test_a_calibrated_guard_can_switch_to_the_sentinel():
    guard = calibrate(fitted("network"), data(), progress=False).with_options(
        policy="sentinel", limits=Limits(), digits=None
    )
    reply = guard.answer(data()[0][:10], client="a")
    assert not reply.alarmed.any()
    with torch.inference_mode():
        assert torch.equal(reply.probabilities, guard.bundle.split(data()[0][:10])[1].softmax(1))


def test_a_new_calibration_replaces_the_old_and_may_be_certified_where_that_was_not():
    guard = fitted("head")
    void = guard.with_bundle(replace(guard.bundle, calibration=replace(guard.bundle.calibration, certified=False)))
    assert void.bundle.statement.startswith("No certificate")
    again = calibrate(void, held_out(), progress=False)
    assert "With confidence 0.95" in again.bundle.statement
    assert again.report["calibration_images"] == 597


def test_every_kind_of_data_gives_the_same_calibration():
    x, y = data()
    loader = DataLoader(TensorDataset(x, y), batch_size=50)
    with_labels = ((x, y), (x.numpy(), y.numpy()), TensorDataset(x, y), loader)
    sources = (*with_labels, x, x.numpy(), TensorDataset(x), DataLoader(list(x), batch_size=50), list(x.split(40)))
    found = [calibrate(fitted("network"), s, conditions=["blur"], progress=False).bundle.calibration for s in sources]
    for other in found[1:]:
        assert torch.equal(other.condition, found[0].condition)
        assert torch.allclose(other.scores, found[0].scores, atol=1e-4)


def test_it_survives_a_save(tmp_path):
    guard = calibrated()
    guard.save(tmp_path / "b")
    found, stored = load(tmp_path / "b").bundle.calibration, guard.bundle.calibration
    assert all(torch.equal(getattr(found, name), getattr(stored, name)) for name in COLUMNS)
    assert (found.conditions, found.certified) == (stored.conditions, True)
    assert found.tolerance == stored.tolerance


# Units.


def test_pixel_statistics_say_where_black_and_white_are():
    x, y = data()
    mean, std = 0.25, 2.0
    guard = fitted("network")
    guard = guard.with_bundle(replace(guard.bundle, pixel_mean=(mean,), pixel_std=(std,)))
    scaled = (x - mean) / std
    found = calibrate(guard, (scaled, y), conditions=["brightness:1.5"], progress=False)
    brighter = ((1.5 * x).clamp(0, 1) - mean) / std
    mine = found.bundle.calibration.condition == 1
    assert torch.allclose(found.bundle.calibration.scores[mine, 0], energy(guard, brighter[mine]), atol=1e-4)


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (255.0, 0.0), (2.0, -1.0)])
def test_without_them_the_range_of_the_first_batch_does(scale, shift):
    x, y = data(slice(1200, 1500))
    guard, units = fitted("network"), scale * x + shift
    found = calibrate(guard, (units, y), conditions=["brightness:1.5"], progress=False)
    mine = found.bundle.calibration.condition == 1
    expected = energy(guard, (scale * (1.5 * x).clamp(0, 1) + shift)[mine])
    assert torch.allclose(found.bundle.calibration.scores[mine, 0], expected, rtol=1e-3, atol=1e-3)


# The report.


def test_alarm_rates_are_told_for_every_condition():
    guard = calibrated()
    rates = guard.report["alarm_rates"]
    assert list(rates) == ["clean", *NAMES]
    assert all(0 <= rate <= 1 for rate in rates.values())
    assert rates["clean"] == 0


def test_conditions_named_twice_count_once():
    guard = calibrate(fitted("network"), data(), conditions=["blur", "blur"], progress=False)
    assert list(guard.report["alarm_rates"]) == ["clean", "blur"]


def test_the_statement_names_the_conditions():
    assert "a mixture like that of clean, noise:0.2, blur, brightness:1.5" in calibrated().bundle.statement


def views(scores: list[np.ndarray], labels: np.ndarray) -> Views:
    """Calibration images of known scores under every condition."""
    count, number = len(labels), len(scores)
    chosen = torch.arange(count) % number
    columns = torch.from_numpy(np.stack([np.stack([s] * 4, 1) for s in scores]))
    picked = columns[chosen, torch.arange(count)]
    classes = int(labels.max()) + 1
    found = Calibration(
        labels=torch.from_numpy(labels),
        points=torch.zeros(count, 2),
        scores=picked,
        spreads=torch.from_numpy(robust_spreads(labels, picked.numpy(), classes)),
        condition=chosen,
        answers=torch.full((1, classes), 1 / classes),
        tolerance=1.0,
        conditions=("clean", "odd")[:number],
    )
    return Views(found, [torch.from_numpy(labels)] * number, list(columns), chosen)


@pytest.mark.parametrize("labels", [1, 4])
def test_clients_of_one_condition_are_accused_under_a_mixture(labels):
    rng = np.random.default_rng(0)
    scores = [rng.normal(0, 1, 2000), rng.normal(5, 1, 2000)]
    mixed = alarm_rates(views(scores, rng.integers(0, labels, 2000)), Sentinel(margin=0.0))
    assert mixed["clean"] == 0
    assert mixed["odd"] >= 0.8


def test_alarm_rates_never_try_a_client_on_its_own_calibration_images():
    folds = np.random.default_rng(0).permutation(1200) % 5  # as `alarm_rates` cuts them for seed 0
    noise = np.random.default_rng(2).normal(size=1200)
    scores = np.where(folds == 0, 9.0, 0.0) + noise  # one client's images are odd, and no others
    labels = np.zeros(1200, int)
    assert alarm_rates(views([scores], labels), Sentinel()) == {"clean": 0.2}
    spread = np.random.default_rng(1).permutation(scores)
    assert alarm_rates(views([spread], labels), Sentinel()) == {"clean": 0.0}


def test_alarm_rates_follow_alpha_and_seed():
    rng = np.random.default_rng(1)
    scores = [rng.normal(0, 1, 600), rng.normal(1.5, 1, 600)]
    found = views(scores, np.zeros(600, int))
    rates = [alarm_rates(found, Sentinel(alpha=alpha))["odd"] for alpha in (1e-12, 0.02, 0.9)]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]
    assert alarm_rates(found, Sentinel(alpha=0.02), seed=5) == alarm_rates(found, Sentinel(alpha=0.02), seed=5)


def test_the_report_tells_how_soon_thieves_are_caught():
    guard = calibrated()
    after = guard.report["alarm_after"]
    assert list(after) == ["0:1", "1:1", "3:1", "10:1"]
    assert guard.report["foreign"] == "noise and shuffled patches"
    lines = " ".join(Report(**guard.report).lines())
    assert f"plain foreign queries: caught after {after['0:1']['median']}" in lines
    assert "noise and shuffled patches" in lines
    other = guard.with_options(sentinel=Sentinel(margin=1.0)).report
    assert other["alarm_rates"] == other["alarm_after"] == {}


# Accounts.


def test_an_account_goes_on_unless_it_is_started_over():
    guard = calibrate(fitted("head"), held_out(), start_over=True, progress=False)
    account = guard.bundle.calibration.account
    assert account
    assert "The account was started over" in guard.bundle.statement
    again = calibrate(guard, held_out()[0][:300], progress=False)
    assert again.bundle.calibration.account == account
    other = calibrate(guard, held_out(), start_over=True, progress=False)
    assert other.bundle.calibration.account not in ("", account)
    assert other.bundle.test.id != guard.bundle.test.id
    ledger = guard.ledger
    assert [ledger.number_of(g.bundle.test) for g in (guard, again, other)] == [1, 2, 1]


# Warnings.


def warnings_of(guard: Guard) -> list[str]:
    return [w for w in guard.report["warnings"] if w.startswith("calibration")]


def test_few_images_are_warned_of_by_class_name():
    guard = calibrate(fitted("head"), held_out()[0][:100], progress=False)
    [few] = warnings_of(guard)
    assert "fewer than 20 images predicted as digit 0, digit 1" in few
    assert "evidence grows slowly" in few


def test_classes_without_images_are_warned_of():
    x, y = held_out()
    guard = calibrate(fitted("head"), x[y == 3], progress=False)
    assert any("no image is predicted as digit 0" in w for w in warnings_of(guard))


def test_enough_images_are_not_warned_of():
    guard = calibrate(fitted("head"), held_out(), progress=False)
    assert min(guard.bundle.calibration.labels.bincount()) >= 20
    assert warnings_of(guard) == []
    again = calibrate(calibrate(guard, held_out()[0][:50], progress=False), held_out(), progress=False)
    assert again.report["warnings"] == guard.report["warnings"]  # old warnings go with the old calibration


def test_a_sentinel_that_would_catch_nobody_is_warned_of():
    weak = calibrate(fitted("head", policy="sentinel", sentinel=Sentinel(margin=10)), held_out(), progress=False)
    [warning] = warnings_of(weak)
    assert "got one that catches 0% of such thieves" in warning


@pytest.mark.parametrize("x", [held_out()[0][:1], held_out()[0][:1].repeat(30, 1), held_out()[0][:4]])
def test_too_few_images_for_simulated_clients_say_so_by_simulating_none(x):
    guard = calibrate(fitted("head", policy="sentinel"), x, progress=False)
    assert guard.report["alarm_rates"] == {}
    assert len(guard.bundle.calibration.labels) <= 4


# Errors.


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"conditions": ["fog"]}, "no condition 'fog'"),
        ({"conditions": ["noise:x"]}, "number from"),
        ({"conditions": ["clean"]}, "no condition 'clean'"),
        ({"conditions": "noise"}, "list of names"),
        ({"trusted": ["a"]}, "trusted must map client names"),
    ],
    ids=str,
)
def test_options_nobody_knows_are_refused(options, match):
    with pytest.raises(OptionError, match=match):
        calibrate(fitted("network"), data(), progress=False, **options)


def test_conditions_are_for_images():
    with pytest.raises(ShapeError, match="images"):
        calibrate(fitted("head"), held_out(), conditions=["noise"], progress=False)
    assert calibrate(fitted("head"), held_out(), progress=False).bundle.calibration  # but without them it works


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (lambda x, y: (x[:0], y[:0]), EmptyBatchError),
        (lambda x, y: (x, y[:-1]), ShapeError),
        (lambda x, y: (x.flatten(1), y), ShapeError),
        (lambda x, y: (x, y + 9), LabelError),
        (lambda x, y: (x, y.float()), DtypeError),
        (lambda x, y: (x / 0, y), NotFiniteError),
        (lambda x, y: [x, y], DtypeError),
    ],
    ids=["empty", "a label short", "flat", "unknown labels", "labels as floats", "not finite", "a list"],
)
def test_broken_data_is_refused(broken, error):
    with pytest.raises(error):
        calibrate(fitted("network"), broken(*data()), progress=False)


def test_something_must_be_given_to_calibrate_on():
    with pytest.raises(CalibrationError, match="got neither"):
        calibrate(fitted("network"), progress=False)


def test_one_image_is_enough_for_an_answer_or_a_clear_refusal():
    with contextlib.suppress(QueenError):
        calibrate(fitted("network"), data(slice(1200, 1201)), progress=False)


def test_images_that_repeat_others_are_left_out_of_the_calibration():
    x, y = held_out()
    twice = torch.cat([x, x[:100], x[:50] + 1e-6]), torch.cat([y, y[:100], y[:50]])
    once = calibrate(fitted("head"), (x, y), progress=False)
    found = calibrate(fitted("head"), twice, progress=False)
    assert found.bundle.calibration.repeated == once.bundle.calibration.repeated + 150
    assert len(found.bundle.calibration.labels) == len(once.bundle.calibration.labels)
    assert any("150 images repeat others" in w or "images repeat others" in w for w in found.report["warnings"])
