"""Every score by its formula, and at the edges where a logarithm has none."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
import torch

from queen.options import SCORES
from queen.sentinel.scores import NEIGHBOURS, RANK, SMALLEST, all_scores, make_reference, measure_scores


def inputs(count: int = 20) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features, logits, points, and training features for a reference."""
    generator = torch.Generator().manual_seed(0)
    features, logits, points = (torch.randn(count, size, generator=generator) for size in (6, 4, 2))
    return features, logits, points, torch.randn(30, 6, generator=generator)


def test_every_score_is_its_formula():
    features, logits, points, taught = inputs()
    for row, got in enumerate(all_scores(features, logits, points, make_reference(taught)).tolist()):
        z, unit = logits[row].double(), features[row] / features[row].norm()
        chances = z.exp() / z.exp().sum()
        cosines = sorted((float(unit @ r / r.norm()) for r in taught), reverse=True)
        expected = {
            "energy": -log(z.exp().sum()),
            "distance": log(points[row].norm()),
            "confidence": log(1 - chances.max()),
            "knn": log(1 - cosines[NEIGHBOURS - 1]),
        }
        assert got == pytest.approx([expected[name] for name in SCORES], abs=1e-4)


def test_one_score_is_its_column_of_all():
    features, logits, points, taught = inputs()
    reference = make_reference(taught)
    together = all_scores(features, logits, points, reference)
    for name, column in zip(SCORES, together.T, strict=True):
        others = (t.numpy() for t in (logits, logits.softmax(1), points))
        alone = measure_scores([name], features, *others, reference)
        assert alone[:, 0].tolist() == column.tolist()


def test_a_reference_of_low_rank_is_exact():
    """Features of many dimensions that really have few; queries may point elsewhere."""
    generator = torch.Generator().manual_seed(0)
    taught = torch.randn(300, 20, generator=generator) @ torch.randn(20, 3 * RANK, generator=generator)
    queries = torch.randn(50, 3 * RANK, generator=generator)
    reference = make_reference(taught)
    assert reference.axes.shape == (3 * RANK, RANK)
    exact = torch.nn.functional.cosine_similarity(queries[:, None], taught[None], dim=2)
    torch.testing.assert_close(reference.cosines(queries), exact, atol=1e-5, rtol=0)


def test_few_references_are_all_neighbours():
    ones = np.ones((1, 2))
    got = measure_scores(["knn"], torch.tensor([[3.0, 4.0]]), ones, ones, ones, make_reference(torch.eye(2)[:1]))
    assert got[0].tolist() == [pytest.approx(log(1 - 0.6), abs=1e-6)]


def test_the_most_familiar_query_has_a_finite_score():
    features = torch.tensor([[2.0, 0.0]])
    logits, points, reference = torch.tensor([[1000.0, 0.0]]), torch.zeros(1, 2), make_reference(torch.eye(2)[:1])
    energy, distance, confidence, knn = all_scores(features, logits, points, reference)[0].tolist()
    assert energy == -1000
    assert distance == confidence == knn == pytest.approx(log(SMALLEST))


def test_scores_rise_with_what_is_foreign():
    """Smaller logits, a point further out, and features that point away from the reference."""
    _, logits, points, taught = inputs()
    reference = make_reference(taught)
    familiar = all_scores(taught[:20], logits, points, reference)
    foreign = all_scores(-taught.mean(0).expand(20, -1), 0.1 * logits, 10 * points, reference)
    assert (foreign.mean(0) > familiar.mean(0)).all()
