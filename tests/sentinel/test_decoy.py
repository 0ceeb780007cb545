"""Decoys: the honest numbers in an order that says nothing; answers that do say something must be found out."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from scipy.stats import binom, chi2, chisquare, ks_2samp
from torch import Tensor

from queen.sentinel.decoy import decoy
from queen.sentinel.sketch import SIZE, directions, measure_scales
from tests.support.guards import TRAIN, digits, fitted, images

KEYS = [bytes([k]) * 32 for k in range(5)]


class Queries:
    """All digits as a fitted guard sees them."""

    def __init__(self, kind: str) -> None:
        guard = fitted(kind)
        self.split = guard.bundle.split
        self.x = digits()[0] if kind == "head" else images(digits()[0])
        self.features, self.logits = self.look(self.x)
        rows, jittered = slice(TRAIN, None), self.look(self.jittered(1e-3, seed=9))[0]  # the held-out ones
        found = measure_scales(self.features[rows], self.logits[rows].argmax(1), jittered[rows])
        self.tolerance, self.cell = found[0], found[1] / found[0]
        self.honest = self.logits.softmax(1)
        self.labels = self.logits.argmax(1).numpy()

    def jittered(self, size: float, seed: int) -> Tensor:
        noise = torch.rand(self.x.shape, generator=torch.Generator().manual_seed(seed))
        return self.x + size * (2 * noise - 1)

    def look(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.inference_mode():
            features, logits = self.split(x)
        return features.clone(), logits.clone()

    def sketches(self, key: bytes, features: Tensor) -> list[list[float]]:
        return (features @ directions(key, features.shape[1], self.tolerance)).tolist()

    def decoys(self, key: bytes) -> Tensor:
        return decoy(self.honest, self.labels.tolist(), self.sketches(key, self.features), key, self.cell)

    def orders(self, key: bytes, features: Tensor | None = None, logits: Tensor | None = None) -> np.ndarray:
        """The order of classes of every row (n, K): what a decoy makes of the numbers 0, 1, ..."""
        features, logits = self.features if features is None else features, self.logits if logits is None else logits
        numbers = torch.arange(logits.shape[1]).repeat(len(logits), 1)
        return decoy(numbers, logits.argmax(1).tolist(), self.sketches(key, features), key, self.cell).numpy()


@cache
def queries(kind: str = "head") -> Queries:
    return Queries(kind)


def test_a_decoy_is_the_honest_row_in_another_order():
    q = queries()
    found = q.decoys(KEYS[0])
    assert found.shape == q.honest.shape
    assert found.dtype == q.honest.dtype
    assert torch.equal(found.sort(1).values, q.honest.sort(1).values)
    moved = (found.argmax(1).numpy() != q.labels).mean()
    assert moved > 0.85  # nine in ten orders move the label


def test_the_same_query_has_the_same_decoy_in_any_batch():
    q = queries()
    rows = torch.randperm(len(q.x), generator=torch.Generator().manual_seed(0))[:200]
    whole = q.decoys(KEYS[0])
    sketches = q.sketches(KEYS[0], q.features)
    for row in rows.tolist():
        alone = decoy(q.honest[row : row + 1], [int(q.labels[row])], sketches[row : row + 1], KEYS[0], q.cell)
        assert torch.equal(alone[0], whole[row])


def test_the_key_the_class_and_the_cell_choose_the_order():
    honest = torch.arange(1.0, 11).repeat(3, 1) / 55
    here, there = (5.0,) * SIZE, (5.0, 1e3) + (5.0,) * (SIZE - 2)
    base = decoy(honest[:1], [0], [here], KEYS[0], 20.0)
    assert torch.equal(base, decoy(honest[:1], [0], [here], KEYS[0], 20.0))
    for label, sketch, key in ((1, here, KEYS[0]), (0, there, KEYS[0]), (0, here, KEYS[1])):
        assert not torch.equal(base, decoy(honest[:1], [label], [sketch], key, 20.0))


def kept(q: Queries, jitter: float) -> float:
    same = [
        (q.orders(key, *q.look(q.jittered(jitter, seed))) == q.orders(key)).all(1).mean()
        for seed, key in enumerate(KEYS)
    ]
    return float(np.mean(same))


@pytest.mark.parametrize("kind", ["head", "network"])
def test_a_jitter_of_a_thousandth_of_the_input_range_keeps_the_decoy(kind):
    assert kept(queries(kind), 1e-3) >= 0.99


# Independence.


def table(answers: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.histogram2d(answers, labels, bins=(range(11), range(11)))[0]


def mutual_information(answers: np.ndarray, labels: np.ndarray) -> float:
    """In nats, from the table of answered and honest labels."""
    joint = table(answers, labels) / len(labels)
    alone = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    there = joint > 0
    return float((joint[there] * np.log(joint[there] / alone[there])).sum())


def remapped(answers: np.ndarray, labels: np.ndarray) -> tuple[int, int]:
    """Hits of the best re-mapping, answered -> honest label, learnt on the even rows and tried on the odd ones."""
    best = table(answers[::2], labels[::2]).argmax(1)
    return int((best[answers[1::2]] == labels[1::2]).sum()), len(labels[1::2])


def one_a_cell(q: Queries, key: bytes) -> np.ndarray:
    """Rows of which no two share an order of classes: what was drawn independently."""
    which = np.concatenate([q.labels[:, None], q.orders(key)], 1)
    return np.sort(np.unique(which, axis=0, return_index=True)[1])


def swapped(q: Queries) -> np.ndarray:
    return np.random.default_rng(0).permutation(10)[q.labels]


def information_by_chance(rows: int) -> float:
    """What independent labels reach in one of a thousand samples: 2 n MI is chi-square, of 81 degrees."""
    return float(chi2.isf(1e-3, 81) / (2 * rows))


@pytest.mark.parametrize("key", KEYS, ids=range(5))
def test_the_label_of_a_decoy_says_nothing_of_the_honest_one(key):
    q = queries()
    rows = one_a_cell(q, key)
    assert len(rows) > 300
    answers, labels = q.decoys(key).argmax(1).numpy()[rows], q.labels[rows]
    assert mutual_information(answers, labels) < information_by_chance(len(rows))
    hits, tried = remapped(answers, labels)
    assert hits <= binom.isf(1e-3, tried, np.bincount(labels).max() / len(labels))


def test_a_fixed_swap_of_classes_and_honest_answers_fail_both_checks():
    q = queries()
    rows = one_a_cell(q, KEYS[0])
    for answers in (swapped(q)[rows], q.labels[rows]):
        assert mutual_information(answers, q.labels[rows]) > 10 * information_by_chance(len(rows))
        hits, tried = remapped(answers, q.labels[rows])
        assert hits == tried


def test_a_swap_of_one_answer_in_five_fails_them_too():
    q = queries()
    rows = one_a_cell(q, KEYS[0])
    answers = q.decoys(KEYS[0]).argmax(1).numpy()[rows]
    honest = np.random.default_rng(0).random(len(rows)) < 0.2
    answers[honest] = swapped(q)[rows][honest]
    assert mutual_information(answers, q.labels[rows]) > information_by_chance(len(rows))
    hits, tried = remapped(answers, q.labels[rows])
    assert hits > binom.isf(1e-3, tried, 0.12)


@pytest.mark.parametrize("kind", ["head", "network"])
def test_on_all_digits_little_is_learnt_though_some_share_a_cell(kind):
    """Cells wide enough for jitter hold a few pictures that look alike; they share an order, so a little leaks.

    Measured: 0.11 to 0.31 of 2.2 nats, and 17 to 27 % right by the best re-mapping where 11 to 17 % is chance.
    """
    q = queries(kind)
    answers = [q.decoys(key).argmax(1).numpy() for key in KEYS]
    assert max(mutual_information(a, q.labels) for a in answers) < 0.35
    assert np.mean([remapped(a, q.labels)[0] for a in answers]) < 0.3 * len(q.labels) / 2
    assert mutual_information(swapped(q), q.labels) > 2
    assert remapped(swapped(q), q.labels)[0] == len(q.labels) // 2


def test_every_class_is_the_top_of_a_decoy_equally_often():
    q = queries()
    for key in KEYS:
        rows = one_a_cell(q, key)
        answers = q.decoys(key).argmax(1).numpy()[rows]
        assert chisquare(np.bincount(answers, minlength=10)).pvalue > 1e-3
    assert chisquare(np.bincount(np.minimum(answers, 8), minlength=10)).pvalue < 1e-9  # a class that is never the top


def test_orders_are_uniform_permutations():
    honest = torch.arange(4.0).repeat(6000, 1)
    sketches = [(100.0 * i,) * SIZE for i in range(6000)]
    found = decoy(honest, [0] * 6000, sketches, KEYS[0], 20.0).long()
    counts = np.unique(found.numpy(), axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert chisquare(counts).pvalue > 1e-3


def test_the_confidence_of_decoys_looks_like_that_of_honest_answers():
    q = queries()
    honest, found = q.honest[::2].amax(1).numpy(), q.decoys(KEYS[0])[1::2].amax(1).numpy()
    assert ks_2samp(honest, found).pvalue > 0.01
    assert ks_2samp(honest, found**1.3).pvalue < 0.01  # a poison that blunts confidence would be seen


def test_negative_numbers_lie_in_cells_of_the_same_size():
    """Truncation towards 0 would make the cell around 0 twice as wide."""
    honest = torch.arange(1.0, 11).repeat(60, 1) / 55
    sketches = [(20.0 * i / 10, *(1.0,) * (SIZE - 1)) for i in range(-30, 30)]
    orders = decoy(honest, [0] * 60, sketches, KEYS[0], 20.0).tolist()
    changes = [i for i in range(1, 60) if orders[i] != orders[i - 1]]
    assert changes == [10, 20, 30, 40, 50]
