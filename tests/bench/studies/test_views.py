from __future__ import annotations

import numpy as np
import pytest

from queen.bench.studies import features, runtime
from queen.bench.studies.features import Features, neighbour_agreement
from queen.bench.studies.runtime import PAPER_RATIOS, Runtime
from queen.errors import OptionError
from queen.training import predict


def test_the_picture_of_features_has_every_image_and_small_files(context):
    result = features.measure(context, Features(test=120, pool=60, perplexity=10))
    assert {name: one["images"] for name, one in result["sets"].items()} == {"test": 120, "pool": 60}
    for one in result["sets"].values():
        assert len(one["labels"]) == len(one["tsne"]) == len(one["map"]) == one["images"]
        points = np.asarray(one["map"])
        centres, spreads = np.asarray(result["discs"]["centres"]), np.asarray(result["discs"]["spreads"])
        far = np.linalg.norm(points - centres[one["labels"]], axis=1) / spreads[one["labels"]]
        assert one["mean_distance"] == pytest.approx(far.mean(), rel=1e-2)  # points are rounded
        assert one["inside"] == pytest.approx((far < 1).mean(), abs=0.02)
    near = result["sets"]["test"]["neighbours_alike"]
    assert min(near.values()) > 0.5  # a tenth, if there were nothing to see


def test_training_images_are_shown_where_they_are_wanted_and_the_attackers_where_not(context):
    result = features.measure(context, Features(train=50, test=40, pool=0, perplexity=10))
    assert {name: one["images"] for name, one in result["sets"].items()} == {"train": 50, "test": 40}
    assert (
        result["sets"]["train"]["labels"]
        == predict(context.protectee.victim.model, context.protectee.victim.train[0][:50]).tolist()
    )
    assert features.draw(result).startswith(b"\x89PNG")
    assert [line.split("|")[1].strip() for line in features.to_markdown(result).splitlines()[2:4]] == ["train", "test"]


def test_too_few_images_for_t_sne_are_refused():
    with pytest.raises(OptionError, match="three times the perplexity"):
        Features(test=20, pool=20)


def test_neighbours_are_alike_in_clusters_and_not_in_a_mixture():
    generator = np.random.default_rng(0)
    labels = np.repeat([0, 1], 50)
    apart = generator.normal(size=(100, 2)) + 100 * labels[:, None]
    assert neighbour_agreement(apart, labels) == 1
    assert 0.3 < neighbour_agreement(generator.normal(size=(100, 2)), labels) < 0.7
    assert neighbour_agreement(np.array([[0.0, 0], [1, 0], [5, 0]]), np.array([0, 0, 1]), 1) == pytest.approx(2 / 3)


def test_times_are_measured_for_every_defense_and_step(context):
    result = runtime.measure(context, Runtime(queries=50, repeats=2))
    assert list(result["rows"]) == list(context.spec.defenses)
    assert set(result["preparation"]) == {"features", "map", "shadows", "calibration"}
    assert all(took >= 0 for took in result["preparation"].values())
    assert result["rows"]["none"]["times_none"] == 1
    assert all(row["seconds_per_1000"] > 0 for row in result["rows"].values())
    assert result["batch"] == 50


def test_no_defense_is_always_there_to_compare_with(context):
    result = runtime.measure(context, Runtime(defenses=("rounding",), queries=10, repeats=1))
    assert list(result["rows"]) == ["none", "rounding"]
    with pytest.raises(OptionError, match="did you mean 'rounding'"):
        runtime.measure(context, Runtime(defenses=("roundin",)))


def test_the_paper_ratios_are_those_of_its_table():
    none, queen, mad = 1.28, 4.28, 30.76
    assert PAPER_RATIOS["queen"] == pytest.approx(queen / none, abs=0.05)
    assert PAPER_RATIOS["mad"] == pytest.approx(mad / none, abs=0.05)
