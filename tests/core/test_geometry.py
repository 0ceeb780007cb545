import math

import pytest
import torch

from queen.core.geometry import Geometry, check_labels, class_means, measure, nearest_centre
from queen.errors import EmptyClassError, LabelError, SpreadError, TooFewClassesError


def scene(classes=4, rows=60, dims=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.arange(classes), torch.randint(classes, (rows - classes,), generator=generator)])
    features = torch.randn(rows, dims, generator=generator) + labels[:, None]
    points = torch.randn(rows, 2, generator=generator) - labels[:, None]
    return features, points, labels


def mean(rows):
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def test_centres_spreads_and_feature_centres_are_what_loops_give():
    features, points, labels = scene()
    geometry = measure(features, points, labels, 4)
    assert geometry.classes == 4
    for k in range(4):
        mine = [i for i, label in enumerate(labels.tolist()) if label == k]
        centre = mean([points[i].tolist() for i in mine])
        spread = sum(math.dist(points[i].tolist(), centre) for i in mine) / len(mine)
        assert geometry.centres[k].tolist() == pytest.approx(centre, rel=1e-12)
        assert geometry.spreads[k].item() == pytest.approx(spread, rel=1e-12)
        assert geometry.feature_centres[k].tolist() == pytest.approx(mean([features[i].tolist() for i in mine]), 1e-6)


def test_the_plane_is_float64_and_feature_centres_keep_the_precision_of_the_model():
    features, points, labels = scene()
    geometry = measure(features, points, labels, 4)
    assert (geometry.centres.dtype, geometry.spreads.dtype) == (torch.float64, torch.float64)
    assert geometry.feature_centres.dtype == torch.float32
    assert geometry.relative(points, labels).dtype == torch.float64


def test_means_do_not_lose_small_differences_in_float32():
    values = torch.full((100_000, 1), 16_777_216.0)
    values[::2] += 2.0
    labels = torch.zeros(100_000, dtype=torch.int64)
    assert class_means(values, labels, 1).item() == 16_777_217.0


def test_relative_points_have_mean_zero_and_mean_length_one_in_every_class():
    features, points, labels = scene()
    geometry = measure(features, points, labels, 4)
    relative = geometry.relative(points, labels)
    for k in range(4):
        mine = relative[labels == k]
        assert mine.mean(0).abs().max() < 1e-12
        assert mine.norm(dim=1).mean().item() == pytest.approx(1.0, abs=1e-12)


def test_relative_points_do_not_change_when_the_map_is_shifted_and_scaled():
    features, points, labels = scene()
    points = points.double()
    moved = 1000 * points + torch.tensor([7.0, -3.0])
    a = measure(features, points, labels, 4).relative(points, labels)
    b = measure(features, moved, labels, 4).relative(moved, labels)
    assert (a - b).abs().max() < 1e-9


def test_relative_is_the_formula():
    geometry = Geometry(
        torch.tensor([[1.0, 2.0], [0.0, 0.0]]).double(), torch.tensor([2.0, 4.0]).double(), torch.eye(2)
    )
    relative = geometry.relative(torch.tensor([[3.0, 2.0], [3.0, 2.0]]), torch.tensor([0, 1]))
    assert relative.tolist() == [[1.0, 0.0], [0.75, 0.5]]


def test_the_nearest_centre_is_found():
    features, points, labels = scene()
    geometry = measure(features, points, labels, 4)
    want = [min(range(4), key=lambda k: math.dist(p, geometry.centres[k].tolist())) for p in points.tolist()]
    assert nearest_centre(points, geometry).tolist() == want


@pytest.mark.parametrize("check", [check_labels, lambda y, k: measure(*scene(rows=len(y))[:2], y, k)])
@pytest.mark.parametrize(
    ("labels", "classes", "error", "says"),
    [
        ([0, 1, 3, 0, 1], 4, EmptyClassError, r"\b2\b"),
        ([0, 0, 2, 2, 2], 5, EmptyClassError, r"\b1, 3, 4\b"),
        ([0, 1, 2, 3, 4], 4, LabelError, r"from 0 to 3, .*got 0 to 4"),
        ([0, 1, 2, -1, 3], 4, LabelError, r"from 0 to 3, .*got -1 to 3"),
        ([0, 0, 0, 0, 0], 1, TooFewClassesError, r"\b1\b"),
        ([0, 0, 0, 0, 0], 0, TooFewClassesError, r"\b0\b"),
    ],
)
def test_bad_labels_are_refused_by_name(check, labels, classes, error, says):
    with pytest.raises(error, match=says):
        check(torch.tensor(labels), classes)


def test_many_empty_classes_are_named_in_short():
    with pytest.raises(EmptyClassError, match=r"class 1, 2, 3, 4, 5 and 94 more"):
        check_labels(torch.tensor([0]), 100)


@pytest.mark.parametrize("copies", [1, 2, 3, 7, 100])
def test_a_class_whose_points_coincide_is_refused_by_name(copies):
    points = torch.cat([torch.randn(10, 2, generator=torch.Generator().manual_seed(0)), torch.full((copies, 2), 0.1)])
    labels = torch.tensor([0] * 10 + [1] * copies)
    with pytest.raises(SpreadError, match=r"class 1 "):
        measure(torch.randn(10 + copies, 3), points, labels, 2)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_class_with_points_that_are_not_finite_is_refused_by_name(value):
    features, points, labels = scene()
    points[(labels == 2).nonzero()[0, 0]] = value
    with pytest.raises(SpreadError, match=r"class 2 "):
        measure(features, points, labels, 4)
