from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from queen.core.geometry import Geometry
from queen.plots import VERDICT_COLOURS, Queries, draw_map, plane_points, relative_points
from tests.support.guards import fitted

RNG = np.random.default_rng(0)
LABELS = np.arange(200) % 10


def make_queries(letters: str) -> Queries:
    relative = np.random.default_rng(1).normal(size=(200, 2)) * 0.7
    return Queries(plane_points(fitted().bundle, relative, LABELS), LABELS, letters)


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def shows(picture: np.ndarray, colour: str) -> bool:
    """Whether a colour, over white and as strong as queries are drawn, is in the picture."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return bool((np.abs(picture - (0.75 * rgb + 0.25 * 255)).max(2) <= 2).any())


@given(st.integers(0, 9), st.floats(-50, 50), st.floats(-50, 50))
def test_relative_points_and_plane_points_undo_each_other(label, x, y):
    bundle, points, labels = fitted().bundle, np.array([[x, y]]), np.array([label])
    assert np.allclose(plane_points(bundle, relative_points(bundle, points, labels), labels), points, atol=1e-9)
    assert np.allclose(relative_points(bundle, plane_points(bundle, points, labels), labels), points, atol=1e-9)


def test_relative_points_are_the_ones_the_ledger_sees():
    bundle, points = fitted().bundle, RNG.normal(size=(200, 2))
    expected = bundle.geometry.relative(torch.from_numpy(points), torch.from_numpy(LABELS)).numpy()
    assert np.array_equal(relative_points(bundle, points, LABELS), expected)
    centres = bundle.geometry.centres.numpy()
    assert np.array_equal(relative_points(bundle, centres, np.arange(10)), np.zeros((10, 2)))


def test_the_picture_is_the_same_for_the_same_and_changes_with_the_queries():
    bundle = fitted().bundle
    one = draw_map(bundle, "map", queries=make_queries("ABCD" * 50))
    assert one == draw_map(bundle, "map", queries=make_queries("ABCD" * 50))
    others = [
        draw_map(bundle, "map"),
        draw_map(bundle, "map", queries=make_queries("DCBA" * 50)),
        draw_map(bundle, "map", queries=replace(make_queries("ABCD" * 50), points=make_queries("A").points[::-1])),
        draw_map(bundle, "map", benign=(make_queries("A").points, LABELS)),
        draw_map(bundle, "another title"),
    ]
    assert len({one, *others}) == 6
    assert all(Image.open(io.BytesIO(png)).format == "PNG" for png in (one, *others))


@pytest.mark.parametrize("letter", "ABCD")
def test_queries_are_coloured_by_verdict(letter):
    bundle = fitted().bundle
    one = pixels(draw_map(bundle, "map", queries=make_queries(letter * 200)))
    half = one[40:, : one.shape[1] // 2], one[40:, one.shape[1] // 2 :]
    for side in half:
        assert shows(side, VERDICT_COLOURS[letter])
    assert not shows(pixels(draw_map(bundle, "map")), VERDICT_COLOURS[letter])


def test_a_hundred_classes_can_be_drawn():
    bundle, rng = fitted().bundle, np.random.default_rng(2)
    geometry = Geometry(torch.from_numpy(rng.normal(size=(100, 2))), torch.ones(100), torch.zeros(100, 4))
    picture = pixels(draw_map(replace(bundle, geometry=geometry, class_names=None), "many"))
    assert picture.std() > 5
