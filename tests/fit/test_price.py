"""`protect(..., price=, max_copy=)` on scikit-learn's digits: what the bundle then holds, says and promises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import queen
from queen.errors import CalibrationError, LimitsError, OptionError, RefusedError
from queen.fit import price as fit_price
from queen.fit.price import limit_copies, price_bundle
from queen.options import Limits, Sentinel
from queen.price.stored import bundle_price_lines, promised_copy, stored_curve
from queen.progress import Progress
from queen.training import predict
from tests.support.guards import QUICK, SECRET, fitted, held_out, train_set, trained
from tests.support.prices import QUICK_PRICE, curve_of

HARD = curve_of([(30, "held-out", False, 0.1, 0.15, 0.2), (300, "held-out", False, 0.6, 0.7, 0.8)])
BRIEF = replace(QUICK_PRICE, steps=1, seeds=(0,))


def fit(**options) -> queen.Guard:
    settings = {"calibration": held_out(), "mapping": QUICK, "secret": SECRET, "weak": True, "progress": False}
    return queen.protect(trained("mlp"), train_set(), **(settings | options))


@pytest.fixture
def measured(monkeypatch):
    """The curve `HARD` in place of trained students; what they would have learned from is returned."""
    asked: dict = {}

    def measure(pools, jury, **options):
        asked.update(options, pools={pool.name: pool for pool in pools}, jury=jury)
        return HARD

    monkeypatch.setattr(fit_price, "measure_curve", measure)
    return asked


@pytest.mark.slow
def test_a_price_is_measured_stored_and_told(tmp_path):
    guard = fit(price=QUICK_PRICE)
    plain = fit()
    assert guard.bundle.identity == plain.bundle.identity
    assert "price" in guard.report["seconds"]
    guard.save(tmp_path / "bundle")
    stored = stored_curve(queen.load(tmp_path / "bundle", trained("mlp")).bundle)
    assert stored == stored_curve(guard.bundle)
    assert {row.images for row in stored.rows} == {"held-out", "training"}
    assert stored.agreement_at(1000) > 0.5  # chance is a tenth
    assert stored_curve(plain.bundle) is None
    assert list(bundle_price_lines(plain.bundle)) == []


def test_students_get_what_clients_get_and_no_image_that_judges_them(measured):
    guard = fit(price=True)
    pools, jury = measured["pools"], measured["jury"]
    assert len(jury.images) == 199  # a third of 597
    assert len(pools["held-out"].images) == 597 - 199
    assert len(pools["training"].images) == 1200
    rows = {tuple(row) for row in np.concatenate([jury.images, pools["held-out"].images])}
    assert rows == {tuple(row) for row in held_out()[0].numpy()}
    given = pools["held-out"].images[:50]
    answers = guard.fresh().answer(torch.from_numpy(given), client="alice").probabilities
    assert np.array_equal(pools["held-out"].answers[:50], answers.numpy())
    assert measured["digits"] == 2
    assert np.array_equal(jury.named, predict(trained("mlp").eval(), torch.from_numpy(jury.images)).numpy())


def test_foreign_images_are_priced_where_they_are_given(measured):
    bundle = fitted(policy="sentinel").bundle
    foreign = torch.rand(40, 64)
    priced = price_bundle(bundle, train_set(), held_out()[0], Progress(False), foreign=foreign)
    assert list(measured["pools"]) == ["held-out", "training", "foreign"]
    assert measured["jury"].labels is None  # images alone have none
    assert stored_curve(priced) == HARD


@pytest.mark.parametrize("options", [{"observe": True}, {"on_spent": "label-only"}, {"on_alarm": "observe"}])
def test_options_that_tell_labels_for_ever_take_the_promise_back(measured, options):
    changed = fit(max_copy=0.5).with_options(**options)
    assert promised_copy(changed.bundle) is None
    assert not any("max_copy" in line for line in bundle_price_lines(changed.bundle))
    with pytest.raises(LimitsError, match="expected limits for policy 'paper'"):
        changed.with_options(policy="paper")  # whose answers near a record are honest for ever
    assert promised_copy(fit(max_copy=0.5).with_options(alpha=1e-4).bundle) == 0.5


@pytest.mark.parametrize("max_copy", [0.35, 0.5, 0.79])
def test_the_limits_of_max_copy_certify_no_more_answers_than_the_curve_allows(measured, max_copy):
    guard = fit(max_copy=max_copy)
    assert HARD.agreement_at(guard.report["honest_answers"], "lucky") < max_copy
    assert guard.report["honest_answers"] == HARD.answers_for(max_copy)
    assert guard.report["max_copy"] == max_copy
    assert any(f"reaches {max_copy:.0%}" in line for line in bundle_price_lines(guard.bundle))


def test_a_client_gets_as_many_answers_as_promised_and_none_after(measured):
    guard = fit(max_copy=0.38)
    most = guard.report["honest_answers"]
    assert most < 60
    honest = 0
    for x in held_out()[0].split(50):
        try:
            honest += int(guard.answer(x, client="thief").honest.sum())
        except RefusedError as refusal:
            honest += int(refusal.reply.honest.sum())
    assert most - 10 <= honest <= most  # one record a class, which needs an image in its disc


def test_a_task_that_is_too_easy_is_refused(measured):
    with pytest.raises(LimitsError, match=r"30 honest answers may already make one that agrees .* on 30"):
        fit(max_copy=0.2)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_copy": 0.6, "limits": Limits()}, "not both"),
        ({"max_copy": 0.6, "absolute_radius": 0.1}, "not both"),
        ({"max_copy": 6}, "at most 1"),
        ({"max_copy": 0.6, "policy": "paper"}, "needs policy 'sentinel'"),
        ({"max_copy": 0.6, "observe": True}, "only observes"),
        ({"max_copy": 0.6, "sentinel": Sentinel(on_alarm="label-only")}, "label-only"),
    ],
)
def test_options_that_contradict_are_refused_before_any_work(options, problem, monkeypatch):
    monkeypatch.setattr("queen.fit.protect.find_split", lambda *_: pytest.fail("the work has begun"))
    with pytest.raises(LimitsError, match=problem):
        fit(**options)


@pytest.mark.parametrize("calibration", [None, "train"])
@pytest.mark.parametrize("options", [{"price": True}, {"max_copy": 0.6}])
def test_a_price_needs_held_out_images(calibration, options):
    with pytest.raises(CalibrationError, match="held-out images that did not train the model"):
        fit(calibration=calibration, policy="paper", **options)


def test_a_price_that_is_no_pricing_is_refused():
    with pytest.raises(OptionError, match="price must be True, False or a Pricing, got 'yes'"):
        fit(price="yes")


def test_ctrl_c_skips_the_price_and_keeps_the_guard(monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(fit_price, "measure_curve", interrupt)
    guard = fit(price=True)
    assert stored_curve(guard.bundle) is None
    assert any("Ctrl-C" in warning for warning in guard.report["warnings"])
    with pytest.raises(KeyboardInterrupt):  # there are no limits without it
        fit(max_copy=0.6)


def test_limits_of_max_copy_are_not_taken_for_those_of_another_policy(measured):
    bundle = fit(max_copy=0.5).bundle
    with pytest.raises(LimitsError, match="expected limits for policy 'paper'"):
        bundle.with_options(policy="paper")
    other = bundle.with_options(policy="paper", limits=Limits())
    assert other.report["max_copy"] is None
    assert "Nothing here limits" in next(bundle_price_lines(other))
    assert bundle.with_options(limits=Limits()).report["max_copy"] is None
    assert bundle.with_options(alpha=0.01).report["max_copy"] == 0.5


def test_what_was_promised_survives_another_calibration(measured):
    guard = fit(max_copy=0.5)
    again = queen.calibrate(guard, held_out()[0][:300], progress=False)
    assert again.report["max_copy"] == 0.5
    assert again.report["honest_answers"] == guard.report["honest_answers"]
    assert again.report["price"] == guard.report["price"]


def test_max_copy_needs_a_price():
    with pytest.raises(OptionError, match="needs a price"):
        limit_copies(fitted(policy="sentinel").bundle, 0.6)


class Embedding(nn.Module):
    """A text classifier: integer ids go in."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids).mean(1))


def test_token_ids_have_no_price():
    torch.manual_seed(0)
    ids = torch.randint(0, 10, (300, 5))
    labels = (ids.sum(1) > ids.sum(1).median()).long()
    with pytest.raises(OptionError, match=r"models that take one tensor of floats .* got token ids"):
        queen.protect(
            Embedding(),
            (ids, labels),
            calibration=ids[:60],
            policy="paper",
            price=BRIEF,
            mapping=QUICK,
            min_agreement=0,
            progress=False,
        )
