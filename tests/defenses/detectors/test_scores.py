"""Every score is that of the definition, however the queries are dealt to batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import shapiro

from queen.defenses.detectors.dadd import DiscrepancyWatch, discrepancies, fit_gaussians
from queen.defenses.detectors.mmd import MmdWatch, ReferenceTraffic
from queen.defenses.detectors.prada import PradaWatch, shapiro_wilk
from queen.defenses.detectors.seat import SeatWatch, near_radius
from queen.defenses.detectors.windows import SlidingWindow
from tests.reference import detectors as reference
from tests.support.detectors import CUTS, follow, made_up

COUNT = 90
FEW = settings(max_examples=15, deadline=None)


@given(st.lists(st.floats(-100, 100), min_size=6, max_size=60).filter(lambda values: np.ptp(values) > 1e-3))
def test_the_statistic_is_that_of_scipy(values):
    assert shapiro_wilk(np.array(values)) == pytest.approx(shapiro(values).statistic, abs=1e-6)


def test_the_statistic_tells_normal_from_other_numbers():
    generator = np.random.default_rng(0)
    assert shapiro_wilk(generator.normal(size=400)) > 0.99
    assert shapiro_wilk(generator.exponential(size=400)) < 0.9
    assert shapiro_wilk(np.ones(10)) == 1


@FEW
@given(CUTS, st.integers(0, 5), st.integers(1, 7))
def test_prada(cuts, seed, every):
    stream = made_up(COUNT, seed)
    expected = reference.prada(stream.x.flatten(1).numpy(), stream.labels.tolist(), 20, every)
    assert follow(PradaWatch(20, every), stream, cuts) == pytest.approx(expected, abs=1e-6)
    assert max(expected) > 0


@FEW
@given(CUTS, st.integers(0, 5), st.floats(0.5, 4))
def test_seat(cuts, seed, radius):
    stream = made_up(COUNT, seed)
    expected = reference.near_pairs(stream.features.numpy(), radius)
    assert follow(SeatWatch(radius), stream, cuts).tolist() == expected


def test_near_is_what_a_share_of_the_pairs_are():
    features = made_up(50).features
    distances = np.sort(torch.nn.functional.pdist(features).numpy())
    assert near_radius(features, 0.1) == distances[round(0.1 * len(distances)) - 1]
    assert near_radius(features, 1e-9) == distances[0]


@pytest.mark.filterwarnings("ignore:Matrix is singular")  # of a window smaller than the features, in the reference
@FEW
@given(CUTS, st.integers(0, 5), st.integers(1, 20), st.integers(1, 6))
def test_d_add(cuts, seed, window, every):
    stream, training = made_up(COUNT, seed), made_up(60, 7)
    gaussians = fit_gaussians(training.features, training.labels, 3)
    scores = follow(DiscrepancyWatch(gaussians, window, every), stream, cuts)
    features, labels = stream.features.numpy(), stream.labels.numpy()
    for end, score in enumerate(scores, 1):
        own = slice(max(0, end - window), end)
        judged = end >= window and end % every == 0
        right = (training.features.numpy(), training.labels.numpy())
        expected = reference.discrepancy(features[own], labels[own], *right) if judged else -np.inf
        assert score == pytest.approx(expected, abs=1e-5)  # of the reference's own root of a singular matrix


def test_d_adds_score_is_zero_for_the_training_images_themselves():
    training = made_up(60, 7)
    gaussians = fit_gaussians(training.features, training.labels, 3)
    rooted = gaussians.rooted(training.features, training.labels)
    own = discrepancies(training.features[None], rooted[None], training.labels[None], gaussians)
    assert own.item() == pytest.approx(0, abs=1e-5)  # roots of rounding errors


def test_a_class_without_images_gets_the_gaussian_of_all():
    training = made_up(60, 7)
    gaussians = fit_gaussians(training.features, training.labels, 4)
    assert torch.equal(gaussians.means[3], training.features.mean(0))


@FEW
@given(CUTS, st.integers(0, 5), st.integers(2, 20), st.integers(1, 6))
def test_mmd(cuts, seed, window, every):
    stream, other = made_up(40, seed), ReferenceTraffic.of(made_up(25, 7).features)
    scores = follow(MmdWatch(other, window, every), stream, cuts)
    for end, score in enumerate(scores, 1):
        judged = end >= window and end % every == 0
        own = stream.features[max(0, end - window) : end].numpy()
        expected = reference.squared_mmd(own, other.features.numpy(), other.width) if judged else -np.inf
        assert score == pytest.approx(expected, abs=1e-9)


@given(CUTS, st.integers(1, 12), st.integers(1, 5))
def test_windows_are_the_last_rows(cuts, size, every):
    window, start, looked = SlidingWindow(size, every), 0, []
    for count in [*cuts, 10]:
        new = torch.arange(start, start + count)
        looks, (rows, double) = window.add(new, 2 * new)
        assert torch.equal(double, 2 * rows)
        for look, own in zip(new[looks].tolist(), rows.tolist(), strict=True):
            assert own == list(range(look - size + 1, look + 1))
            looked.append(look + 1)
        start += count
    assert looked == [end for end in range(size, start + 1) if end % every == 0]
