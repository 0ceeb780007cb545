from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import queen
from queen.options import Limits
from tests.support.commands import FACTORY, as_json, run
from tests.support.guards import ALL_LETTERS, fitted


def test_inspect_tells_all_about_a_bundle(here):
    guard = queen.load("head")
    found = as_json("inspect", "head")
    assert found["identity"] == guard.bundle.identity
    assert (found["policy"], found["head"], found["factory"]) == ("paper", "3", FACTORY)
    assert found["threshold"] == ALL_LETTERS.threshold
    assert found["report"] == guard.report
    assert [c["class"] for c in found["classes"]] == [f"digit {k}" for k in range(10)]
    assert [c["spread"] for c in found["classes"]] == guard.bundle.geometry.spreads.tolist()
    assert {c["radius"] for c in found["classes"]} == {ALL_LETTERS.radius}
    assert [c["records_bound"] for c in found["classes"]] == guard.report["records_per_class"]
    shown = run("inspect", "head").stdout
    spreads = [f"{c['class']} {c['spread']:.4g}" for c in found["classes"]]
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert all(any(line.startswith(spread) for line in lines) for spread in spreads)
    assert all(word in shown for word in (found["identity"], "paper", FACTORY, f"{guard.report['agreement']:.1%}"))


def test_inspect_says_when_a_bundle_only_observes_and_shows_a_radius_for_each_class(here, tmp_path):
    radii = tuple(0.1 + k / 100 for k in range(10))
    fitted(observe=True, limits=Limits(radius=radii)).save(tmp_path / "b")
    assert "observe only" in run("inspect", tmp_path / "b").stdout
    assert [c["radius"] for c in as_json("inspect", tmp_path / "b")["classes"]] == list(radii)


@pytest.mark.parametrize("bundle", ["head", "cnn"])
def test_the_map_is_a_picture_that_is_not_blank(here, tmp_path, bundle):
    shown = run("inspect", bundle, "--map", tmp_path / "map.png").stdout
    assert "map.png" in "".join(shown.split())
    with Image.open(tmp_path / "map.png") as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 300
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    assert len(np.unique(pixels, axis=0)) > 100
    assert 0.5 < (pixels == 255).all(1).mean() < 0.99
