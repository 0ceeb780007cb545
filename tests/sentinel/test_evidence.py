"""P-values, bets and wealth against their definitions written out, and the traps of the method without a guard."""

from __future__ import annotations

from math import ceil, exp, inf, log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from queen.errors import OptionError
from queen.ledger import MemoryLedger
from queen.options import Limits, Sentinel
from queen.sentinel.bands import p_values
from queen.sentinel.evidence import EXPONENTS, Evidence, all_scores, first_alarm, score, statement, step

FORMS = ("mixture", "product", "cusum")


def evidence(labels, scores, conditions=None, *, classes=None, **options) -> Evidence:
    """From lists or arrays; one score may be a flat list."""
    labels, columns = np.asarray(labels, np.int64), np.asarray(scores, np.float64).reshape(len(labels), -1)
    each = np.zeros(len(labels), np.int64) if conditions is None else np.asarray(conditions, np.int64)
    classes = int(labels.max()) + 1 if classes is None else classes
    return Evidence(labels, columns, each, classes, Sentinel(**options))


def bet_of(p: float | None) -> tuple[float, ...]:
    return () if p is None else tuple(e * p ** (e - 1) for e in EXPONENTS)


def by_counting(calibration, value, delta) -> float:
    """The definition: how many calibration scores reach this one, and the band's value for so many."""
    return p_values(len(calibration), delta)[sum(c >= value for c in calibration)]


# Wealth.


def wealth_by_definition(p: list[float], e: float, form: str) -> float:
    """The method's recursion, and for the mixture also the sum over starting times that it stands for."""
    bet = [e * value ** (e - 1) for value in p]
    if form == "product":
        return float(np.prod(bet))
    if form == "cusum":
        wealth = 1.0
        for b in bet:
            wealth = max(wealth, 1.0) * b
        return wealth
    total = 0.0
    for start in range(1, len(p) + 1):
        weight = 0.5 / (start * (start + 1)) + (0.5 if start == 1 else 0.0)
        total += weight * float(np.prod(bet[start - 1 :]))
    return total


@settings(max_examples=60)
@given(st.lists(st.floats(1e-4, 1), min_size=1, max_size=30))
@pytest.mark.parametrize("form", FORMS)
def test_wealth_is_what_the_method_says(form, p):
    wealth = [0.0] * len(EXPONENTS)
    for placed, value in enumerate(p):
        wealth, total = step(wealth, bet_of(value), placed, form)
    expected = [wealth_by_definition(p, e, form) for e in EXPONENTS]
    assert wealth == pytest.approx(expected, rel=1e-9)
    assert total == pytest.approx(sum(expected), rel=1e-9)


def test_the_weights_of_the_mixture_never_sum_to_more_than_one():
    spent, neutral = 0.0, (1.0,)
    wealth = [0.0]
    for placed in range(20_000):
        wealth, spent = step(wealth, neutral, placed, "mixture")
    assert 1 - 1e-4 < spent <= 1


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_a_bet_on_a_uniform_p_value_is_fair(exponent):
    which = EXPONENTS.index(exponent)
    factors = evidence([0], [0.0]).factors
    paid = quad(lambda t: factors(exp(-t))[which] * exp(-t), 0, 600, points=[1, 10, 100])[0]  # p = e^-t
    assert paid == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("form", ["mixture", "product"])
def test_expected_wealth_under_uniform_p_values_is_at_most_one(form):
    """By integration bet by bet: the bets are independent and each is worth 1 on average."""
    fair = (1.0,) * len(EXPONENTS)  # the integral above
    wealth: list[float] = [0.0] * len(EXPONENTS)
    for placed in range(200):
        wealth, total = step(wealth, fair, placed, form)
        assert total / len(EXPONENTS) <= 1 + 1e-12


def test_expected_wealth_of_the_cusum_is_not_bounded():
    """Which is why its statement bounds only the time to a false alarm."""
    rng, wealth = np.random.default_rng(0), np.zeros(4000)
    for _ in range(300):
        wealth = np.maximum(wealth, 1) * 0.5 * rng.random(4000) ** -0.5
    assert wealth.mean() > 1.5


@settings(max_examples=60)
@given(st.lists(st.one_of(st.none(), st.floats(1e-3, 1)), max_size=25), st.sampled_from(FORMS), st.floats(1, 50))
def test_the_first_alarm_is_where_the_mean_wealth_first_reaches_the_bar(p, form, bar):
    expected, placed = None, []
    for i, value in enumerate(p):
        if value is None:
            continue
        placed.append(value)
        mean = np.mean([wealth_by_definition(placed, e, form) for e in EXPONENTS])
        if mean >= bar:
            expected = i
            break
    size = len(EXPONENTS)
    found = first_alarm([bet_of(value) for value in p], form, size, size * bar * (1 - 1e-12))
    assert found == expected


# P-values.

SMALL_SCORES = st.integers(-3, 3).map(float)  # so that ties are the rule


@st.composite
def calibrations(draw, *, least=0, most=40, conditions=1):
    """Labels, scores and conditions of up to 4 classes, some of them empty."""
    rows = st.tuples(st.sampled_from([0, 1, 3]), SMALL_SCORES, st.integers(0, conditions - 1))
    found = draw(st.lists(rows, min_size=max(1, least), max_size=most))
    return tuple(list(column) for column in zip(*found, strict=True))


def is_weak(p: float) -> bool:
    return max(bet_of(p)) <= 1


@settings(max_examples=80)
@given(calibrations(), st.sampled_from([0.05, 0.5]))
def test_a_p_value_is_the_band_of_the_number_of_calibration_scores_that_reach_it(rows, delta):
    labels, scores, _ = rows
    found = evidence(labels, scores, classes=4, delta=delta)
    for k in range(4):
        mine = [s for s, label in zip(scores, labels, strict=True) if label == k]
        weak = is_weak(by_counting(mine, inf, delta / 4))
        for value in (-4.0, -3.0, -1.5, 0.0, 0.5, 2.0, 3.0, 3.5):
            p = None if weak else by_counting(mine, value, delta / 4)
            assert found.bets([k], [[value]]) == [bet_of(p)]


@pytest.mark.parametrize("decimals", [0, 1, 9])
def test_p_values_of_many_images_are_counted_too(decimals):
    rng = np.random.default_rng(decimals)
    labels, scores = rng.integers(0, 2, 700), rng.normal(size=700).round(decimals)
    found = evidence(labels, scores)
    for k in range(2):
        values = [*rng.normal(size=50).round(decimals), *scores[:50], scores.max(), scores.max() + 1, scores.min() - 1]
        expected = [bet_of(by_counting(scores[labels == k], value, 0.025)) for value in values]
        assert found.bets([k] * len(values), [values]) == expected


@pytest.mark.parametrize("size", [60, 61, 200])
def test_ties_count_against_the_accuser(size):
    scores = [0.0] * (size // 2) + [1.0] * (size - size // 2)
    [at_top], [above] = (evidence([0] * size, scores).bets([0], [[s]]) for s in (1.0, 1.0 + 1e-9))
    assert at_top == bet_of(p_values(size, 0.05)[size - size // 2])
    assert above == bet_of(p_values(size, 0.05)[0])


def test_delta_is_shared_over_all_bands():
    rng = np.random.default_rng(0)
    labels, scores = np.repeat(np.arange(3), 80), rng.normal(size=(240, 2))
    found = evidence(labels, scores, delta=0.12)
    assert found.bets([1], [[9.0], [9.0]]) == [2 * bet_of(p_values(80, 0.12 / 6)[0])]
    twice = evidence(
        np.tile(labels, 2), np.tile(scores, (2, 1)), np.repeat([0, 1], 240), delta=0.12
    )  # two conditions more
    assert twice.bets([1], [[9.0], [9.0]]) == [2 * bet_of(p_values(80, 0.12 / 12)[0])]
    assert p_values(80, 0.12)[0] < p_values(80, 0.12 / 6)[0] < p_values(80, 0.12 / 12)[0]


@settings(max_examples=50)
@given(calibrations(least=30, most=80), st.integers(1, 40))
def test_small_classes_share_one_band_if_asked_to(rows, pool_below):
    labels, scores, _ = rows
    found = evidence(labels, scores, classes=4, pool_below=pool_below, delta=0.5)
    small = [k for k in range(4) if labels.count(k) < pool_below]
    bands = 4 - len(small) + bool(small)
    for k in range(4):
        part = small if k in small else [k]
        mine = [s for s, label in zip(scores, labels, strict=True) if label in part]
        weak = is_weak(by_counting(mine, inf, 0.5 / bands))
        for value in (-3.0, 0.0, 0.5, 4.0):
            p = None if weak else by_counting(mine, value, 0.5 / bands)
            assert found.bets([k], [[value]]) == [bet_of(p)]


@settings(max_examples=50)
@given(calibrations(least=40, most=120, conditions=3))
def test_several_conditions_give_the_largest_p_value(rows):
    labels, scores, conditions = rows
    found = evidence(labels, scores, conditions, classes=4, delta=0.5)
    number = len(set(conditions))
    for k in range(4):
        sets = [[s for label, s, other in zip(*rows, strict=True) if (label, other) == (k, c)] for c in set(conditions)]
        worst = [max(by_counting(mine, v, 0.5 / (4 * number)) for mine in sets) for v in (-3.0, 0.0, 2.5, inf)]
        for value, p in zip((-3.0, 0.0, 2.5, 9.0), worst, strict=True):
            assert found.bets([k], [[value]]) == [bet_of(None if is_weak(worst[-1]) else p)]


@settings(max_examples=60)
@given(calibrations(least=40, most=120), st.sampled_from([0.1, 0.25, 0.5, 0.9]))
def test_truncated_bets_are_placed_above_an_order_statistic_against_the_scores_above_it(rows, share):
    labels, scores, _ = rows
    scores = [s + i / 500 if i % 3 else s for i, s in enumerate(scores)]  # some ties, not all
    found = evidence(labels, scores, classes=4, truncate=share, delta=0.5)
    for k in range(4):
        mine = sorted((s for s, label in zip(scores, labels, strict=True) if label == k), reverse=True)
        top = ceil(share * len(mine))
        floor = mine[top - 1] if top > 1 else inf
        above = [s for s in mine if s > floor]
        weak = is_weak(by_counting(above, inf, 0.5 / 4))
        for value in (-4.0, floor, floor + 1e-9, *mine[:2], 0.1, 2.7, 9.0):
            p = None if weak or value <= floor else by_counting(above, value, 0.5 / 4)
            assert found.bets([k], [[value]]) == [bet_of(p)]


def test_several_scores_lie_side_by_side_and_one_that_does_not_bet_is_neutral():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(300, 2))
    found = evidence(np.zeros(300), scores, truncate=0.5)
    high = np.sort(scores, axis=0)[-10:]
    [bet] = found.bets([0], [[high[0, 0]], [-9.0]])
    above = [s for s in scores[:, 0] if s > np.sort(scores[:, 0])[-150]]
    assert bet == bet_of(by_counting(above, high[0, 0], 0.025)) + (1.0,) * len(EXPONENTS)
    assert found.bets([0], [[-9.0], [-9.0]]) == [()]
    assert found.size == 2 * len(EXPONENTS)


def test_bets_of_a_batch_are_those_of_its_rows():
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 3, 400), rng.normal(size=(400, 2))
    found = evidence(labels, scores)
    rows, values = rng.integers(0, 3, 50), rng.normal(1, 1, (2, 50))
    batch = found.bets(rows.tolist(), values.tolist())
    single = [found.bets([k], [[a], [b]])[0] for k, a, b in zip(rows.tolist(), *values.tolist(), strict=True)]
    assert batch == single


def test_weak_classes_place_no_bet():
    labels = [0] * 200 + [1] * 12 + [2] * 1
    found = evidence(labels, np.random.default_rng(0).normal(size=213), classes=4)
    assert found.weak_classes() == [1, 2, 3]
    assert found.bets([1, 2, 3], [[99.0] * 3]) == [(), (), ()]
    assert found.bets([0], [[99.0]]) != [()]


def test_a_class_is_not_weak_if_one_score_can_still_win():
    scores = np.stack([np.full(100, 5.0), np.arange(100.0)], 1)  # the first all tied: truncation leaves nothing above
    found = evidence(np.zeros(100), scores, truncate=0.9)
    assert found.weak_classes() == []
    [bet] = found.bets([0], [[6.0], [200.0]])
    assert bet[: len(EXPONENTS)] == (1.0,) * len(EXPONENTS)
    assert max(bet) > 1


def test_no_bet_of_a_class_that_bets_loses_at_the_highest_score():
    for count in (20, 30, 60, 200):
        [bet] = evidence(np.zeros(count), np.arange(count)).bets([0], [[1e9]])
        assert bet == () or max(bet) > 1


def test_truncated_bets_cannot_certify_several_conditions():
    with pytest.raises(OptionError, match="mixture"):
        evidence([0] * 40, range(40), [0, 1] * 20, truncate=0.5)


# Scores.


def test_every_score_is_its_formula():
    generator = torch.Generator().manual_seed(0)
    u, logits, points = (torch.randn(20, size, generator=generator) for size in (6, 4, 2))
    reference = torch.nn.functional.normalize(torch.randn(30, 6, generator=generator))
    for row, got in enumerate(all_scores(u, logits, points, reference).tolist()):
        z, unit = logits[row].double(), u[row] / u[row].norm()
        chances = z.exp() / z.exp().sum()
        likeness = sorted((float(unit @ r) for r in reference), reverse=True)
        expected = (-log(z.exp().sum()), float(points[row].norm()), 1 - float(chances.max()), -likeness[9])
        assert got == pytest.approx(expected, abs=1e-5)
    assert all_scores(u, logits, points, None).shape == (20, 3)


def test_a_score_of_neighbours_needs_some():
    with pytest.raises(OptionError, match="knn"):
        score("knn", torch.ones(1, 2), torch.ones(1, 2), torch.ones(1, 2), torch.ones(1, 2), None)


def test_few_references_are_all_neighbours():
    reference = torch.eye(2)[:1]
    ones = torch.ones(1, 2)
    assert score("knn", torch.tensor([[3.0, 4.0]]), ones, ones, ones, reference).tolist() == [pytest.approx(-0.6)]


# Statements.


def said(*, certified=True, mode="mixture", conditions=("clean",), **options) -> str:
    return statement(Sentinel(**options), certified=certified, mode=mode, conditions=conditions)


def test_the_plain_statement_has_both_probabilities():
    text = said(alpha=0.002, delta=0.1)
    assert text == (
        "With confidence 0.9 over the calibration images, every benign client is ever accused with probability at "
        "most 0.002."
    )


def test_without_held_out_images_there_is_no_certificate_whatever_else_is_set():
    for options in ({}, {"form": "cusum"}, {"pool_below": 5}, {"alpha": 0.5}):
        text = said(certified=False, **options)
        assert text.startswith("No certificate")
        assert "probability" not in text


def test_the_cusum_bounds_a_time_and_says_what_it_does_not_bound():
    text = said(form="cusum", alpha=0.01)
    assert "at least 100 queries on average" in text
    assert "NOT bounded" in text
    assert "ever accused with probability" not in text


def test_the_product_warns_of_good_will():
    assert "Good will is credit" in said(form="product")
    assert "Good will" not in said(form="mixture")


def test_pooled_classes_void_the_statement_for_clients_of_some_classes():
    text = said(pool_below=50)
    assert "fewer than 50" in text
    assert "does not hold for clients that send only some of those classes" in text
    assert "share a band" not in said(pool_below=0)


def test_conditions_narrow_or_widen_whom_the_statement_is_about():
    names = ("clean", "noise", "blur:5")
    assert "a mixture like that of clean, noise, blur:5" in said(conditions=names)
    assert "under any one of clean, noise, blur:5" in said(conditions=names, mode="max")
    assert "mixture" not in said(mode="max", conditions=names)
    assert "clean" not in said(mode="max")


# Traps of the method.


def accused(found: Evidence, labels, scores, *, form="mixture", alpha=1e-3) -> int | None:
    bets = found.bets(np.asarray(labels).tolist(), [np.asarray(scores).tolist()])
    return first_alarm(bets, form, found.size, found.size / alpha)


def test_trap_2_a_client_of_one_hard_class_is_accused_only_without_bands_per_class():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], [900, 300])
    scores = rng.normal(2.0 * labels, 1)  # images of class 1 score higher, though they are as benign
    per_class, together = evidence(labels, scores), evidence(labels, scores, pool_below=10**6)
    clients = [rng.normal(2, 1, 500) for _ in range(20)]
    ones = np.ones(500, int)
    assert [accused(per_class, ones, c) for c in clients] == [None] * 20
    assert None not in [accused(together, ones, c) for c in clients]


def test_trap_3_a_retry_loop_must_not_bet():
    rng = np.random.default_rng(0)
    found = evidence(np.zeros(1000), rng.normal(size=1000))
    odd = [3.5] * 50
    assert accused(found, np.zeros(50, int), odd) is not None  # if every retry bet
    assert accused(found, [0], odd[:1]) is None  # only the first does


def test_trap_3_skipping_queries_that_overlap_a_record_accuses_benign_clients():
    """Repeats are told by the feature, not by the radius of a query: what overlaps nothing lies at the rim."""
    rng = np.random.default_rng(0)
    limits = Limits(radius=0.066, threshold=1e9)
    found = evidence(np.zeros(1000), np.hypot(*rng.normal(0, 0.7, (2, 1000))))
    for client in range(5):
        points = rng.normal(0, 0.7, (3000, 2))
        scores, zeros = np.hypot(*points.T), np.zeros(3000, int)
        letters = np.array(list(MemoryLedger().judge(f"c{client}", zeros, points, limits).letters))
        new = letters != "D"
        assert accused(found, zeros, scores) is None
        assert accused(found, zeros[new], scores[new]) is not None


def covered(rng: np.random.Generator, *, cover: int, attack: int = 400) -> np.ndarray:
    """Every attack query among `cover` queries that are more central than benign traffic."""
    stream = rng.normal(-2, 0.5, (attack, cover + 1))
    stream[:, -1] = rng.normal(2.5, 1, attack)
    return stream.ravel()


def test_trap_4_truncated_bets_see_through_cover_that_is_too_central():
    rng = np.random.default_rng(0)
    benign = rng.normal(size=2000)
    whole, top = evidence(np.zeros(2000), benign), evidence(np.zeros(2000), benign, truncate=0.3)
    zeros = np.zeros(4 * 400, int)
    for _ in range(5):
        stream = covered(rng, cover=3)
        early, late = accused(top, zeros, stream), accused(whole, zeros, stream)
        assert early is not None
        assert late is None or late > 2 * early
    for _ in range(20):
        assert accused(top, zeros, rng.normal(size=1600)) is None  # and benign clients stay benign


def test_trap_5_good_will_is_credit_in_the_product_and_not_in_the_mixture():
    rng = np.random.default_rng(0)
    found = evidence(np.zeros(1000), rng.normal(size=1000))
    waits = {form: [] for form in FORMS}
    for _ in range(10):
        stream = np.concatenate([rng.normal(size=500), rng.normal(2.5, 1, 3000)])
        for form, after in waits.items():
            alarm = accused(found, np.zeros(3500, int), stream, form=form)
            assert alarm is None or alarm >= 500
            after.append(3000 if alarm is None else alarm - 500)
    fresh = [accused(found, np.zeros(1000, int), rng.normal(2.5, 1, 1000), form="product") for _ in range(10)]
    median = {form: np.median(after) for form, after in waits.items()}
    assert median["product"] > 3 * np.median(fresh)
    assert median["mixture"] < median["product"] / 2
    assert median["cusum"] <= median["mixture"]
