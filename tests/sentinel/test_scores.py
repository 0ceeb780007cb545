"""Every score by its formula, and at the edges where a logarithm has none."""

from __future__ import annotations

from math import log

import pytest
import torch

from queen.options import SCORES
from queen.sentinel.scores import NEIGHBOURS, SMALLEST, all_scores, score


def inputs(count: int = 20) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features, logits, points and a reference of normalised features."""
    generator = torch.Generator().manual_seed(0)
    features, logits, points = (torch.randn(count, size, generator=generator) for size in (6, 4, 2))
    return features, logits, points, torch.nn.functional.normalize(torch.randn(30, 6, generator=generator))


def test_every_score_is_its_formula():
    features, logits, points, reference = inputs()
    for row, got in enumerate(all_scores(features, logits, points, reference).tolist()):
        z, unit = logits[row].double(), features[row] / features[row].norm()
        chances = z.exp() / z.exp().sum()
        likeness = sorted((float(unit @ r) for r in reference), reverse=True)
        expected = {
            "energy": -log(z.exp().sum()),
            "distance": log(points[row].norm()),
            "confidence": log(1 - chances.max()),
            "knn": log(1 - likeness[NEIGHBOURS - 1]),
        }
        assert got == pytest.approx([expected[name] for name in SCORES], abs=1e-4)


def test_one_score_is_its_column_of_all():
    features, logits, points, reference = inputs()
    together = all_scores(features, logits, points, reference)
    for name, column in zip(SCORES, together.T, strict=True):
        assert torch.equal(score(name, features, logits, logits.softmax(1), points, reference), column)


def test_few_references_are_all_neighbours():
    ones = torch.ones(1, 2)
    got = score("knn", torch.tensor([[3.0, 4.0]]), ones, ones, ones, torch.eye(2)[:1])
    assert got.tolist() == [pytest.approx(log(1 - 0.6), abs=1e-6)]


def test_the_most_familiar_query_has_a_finite_score():
    features = torch.tensor([[2.0, 0.0]])
    logits, points, reference = torch.tensor([[1000.0, 0.0]]), torch.zeros(1, 2), torch.eye(2)[:1]
    energy, distance, confidence, knn = all_scores(features, logits, points, reference)[0].tolist()
    assert energy == -1000
    assert distance == pytest.approx(log(SMALLEST), rel=1e-5)
    assert confidence == knn == pytest.approx(log(SMALLEST), rel=1e-5)


def test_scores_rise_with_what_is_foreign():
    """Smaller logits, a point further out, and features that point away from the reference."""
    _, logits, points, reference = inputs()
    familiar = all_scores(reference[:20], logits, points, reference)
    foreign = all_scores(-reference.mean(0).expand(20, -1), 0.1 * logits, 10 * points, reference)
    assert (foreign.mean(0) > familiar.mean(0)).all()
