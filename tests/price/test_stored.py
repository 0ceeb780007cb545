"""What a bundle's limits let one client get, for life or in a span of time."""

from __future__ import annotations

import pytest

from queen.options import Limits
from queen.price.stored import answers_within, honest_answers
from tests.support.guards import fitted

RECORDS = {"radius": 0.5, "threshold": 0.2}


def bundle_with(**limits):
    return fitted().bundle.with_options(policy="sentinel", limits=Limits(**limits))


def test_what_is_for_life_has_one_number():
    bundle = bundle_with(extra_answers=100, **RECORDS)
    assert honest_answers(bundle) == sum(bundle.report["records_per_class"]) + 100
    assert answers_within(bundle) == {}


@pytest.mark.parametrize(
    ("extra", "windows"),
    [
        ("100/hour", {"day": 24, "month": 720, "year": 8760}),
        ("100/day", {"day": 1, "month": 30, "year": 365}),
        ("100/week", {"day": 1, "month": 5, "year": 53}),
        ("100/month", {"day": 1, "month": 1, "year": 13}),
    ],
)
def test_what_renews_has_one_for_each_span(extra, windows):
    bundle = bundle_with(extra_answers=extra, **RECORDS)
    records = sum(bundle.report["records_per_class"])
    assert honest_answers(bundle) is None
    assert answers_within(bundle) == {span: records + 100 * count for span, count in windows.items()}


def test_both_parts_may_renew():
    bundle = bundle_with(radius=0.5, threshold="0.2/day", extra_answers="100/month")
    records = sum(bundle.report["records_per_class"])
    assert answers_within(bundle) == {"day": records + 100, "month": 30 * records + 100, "year": 365 * records + 1300}


@pytest.mark.parametrize("options", [{"observe": True}, {"on_spent": "label-only"}, {"on_alarm": "label-only"}])
@pytest.mark.parametrize("extra", [100, "100/day"])
def test_who_goes_on_telling_labels_bounds_nothing(options, extra):
    bundle = bundle_with(extra_answers=extra, **RECORDS).with_options(**options)
    assert honest_answers(bundle) is None
    assert answers_within(bundle) == {}
