"""Decoys: functions of the key and the exact input alone; answers that do say something must be found out."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from scipy.stats import binom, chi2, chisquare, ks_2samp

from queen.secret import query_numbers
from queen.sentinel.decoy import draw_decoys
from tests.support.guards import digits, fitted

KEYS = [bytes([k]) * 32 for k in range(5)]
CLASSES = 10


def honest(x: torch.Tensor) -> np.ndarray:
    split = fitted("head").bundle.split
    with torch.inference_mode():
        return split(x)[1].softmax(1).numpy()


@cache
def bank() -> np.ndarray:
    """Honest answers to the digits."""
    return honest(digits()[0])


@cache
def inputs(count: int = 4000) -> tuple[torch.Tensor, np.ndarray]:
    """Digits, each with a little noise of its own, and their labels."""
    x, y = digits()
    rows = torch.arange(count) % len(x)
    noise = torch.rand(count, *x.shape[1:], generator=torch.Generator().manual_seed(0))
    return x[rows] + 1e-3 * noise, y[rows].numpy()


def decoys(x: torch.Tensor, key: bytes = KEYS[0]) -> np.ndarray:
    return draw_decoys(query_numbers(key, x), key, bank())


def test_a_decoy_is_a_row_of_the_bank_in_another_order():
    found = decoys(inputs(300)[0])
    assert found.shape == (300, CLASSES)
    assert found.dtype == np.float32
    known = {row.tobytes() for row in np.sort(bank(), axis=1)}
    assert all(row.tobytes() in known for row in np.sort(found, axis=1))
    assert len({row.tobytes() for row in np.sort(found, axis=1)}) > 200  # of many rows


def test_the_same_input_has_the_same_decoy_in_any_batch():
    x, _ = inputs(200)
    whole = decoys(x)
    assert all(np.array_equal(decoys(x[row : row + 1])[0], whole[row]) for row in range(200))
    assert np.array_equal(decoys(x.flip(0)), whole[::-1])
    assert decoys(x[:0]).shape == (0, CLASSES)


def test_the_key_and_the_digest_and_the_bank_are_all_that_counts():
    one = draw_decoys([7], KEYS[0], bank())
    assert np.array_equal(one, draw_decoys([7], KEYS[0], bank().copy()))
    for digests, key, numbers in (([8], KEYS[0], bank()), ([7], KEYS[1], bank()), ([7], KEYS[0], bank()[:5])):
        assert not np.array_equal(one, draw_decoys(digests, key, numbers))
    assert len(draw_decoys([-(2**63), 2**63 - 1], KEYS[0], bank())) == 2  # whatever a digest may be


def test_one_bit_of_the_input_changes_all_of_the_decoy():
    x, _ = inputs(2000)
    bits = x.contiguous().view(torch.int32).clone()
    bits[:, 5] ^= 1  # the last bit of one pixel
    one, other = decoys(x), decoys(bits.view(torch.float32))
    assert (np.sort(one, 1) != np.sort(other, 1)).any(1).mean() > 0.99  # other numbers
    same_label = int((one.argmax(1) == other.argmax(1)).sum())
    assert abs(same_label - 200) < 5 * np.sqrt(2000 * 0.1 * 0.9)  # and as often the same label as by chance
    distances = np.abs(one - other).sum(1), np.abs(one - np.roll(one, 1, axis=0)).sum(1)
    assert ks_2samp(*distances).pvalue > 1e-3  # no nearer than decoys of two different inputs


def test_numbers_and_orders_are_drawn_evenly_and_apart():
    few = np.eye(3, 4, dtype=np.float32) + np.arange(4, dtype=np.float32) * 10
    few += np.arange(3, dtype=np.float32)[:, None] * 100
    found = draw_decoys(range(24_000), KEYS[0], few)
    rows, orders = (found.min(1) // 100).astype(int), found.argsort(1)
    kinds, counts = np.unique(np.concatenate([rows[:, None], orders], 1), axis=0, return_counts=True)
    assert len(kinds) == 3 * 24
    assert chisquare(counts).pvalue > 1e-3


# Independence.


def table(answers: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.histogram2d(answers, labels, bins=(range(CLASSES + 1),) * 2)[0]


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


def information_by_chance(rows: int) -> float:
    """What independent labels reach in one of a thousand samples: 2 n MI is chi-square, of 81 degrees."""
    return float(chi2.isf(1e-3, (CLASSES - 1) ** 2) / (2 * rows))


@pytest.mark.parametrize("key", KEYS, ids=range(5))
def test_the_label_of_a_decoy_says_nothing_of_the_honest_one(key):
    x, labels = inputs()
    answers = decoys(x, key).argmax(1)
    found = mutual_information(answers, labels)
    assert found < information_by_chance(len(labels))
    shuffle = np.random.default_rng(0)
    by_chance = [mutual_information(answers, shuffle.permutation(labels)) for _ in range(200)]
    assert found <= np.mean(by_chance) + 4 * np.std(by_chance)
    hits, tried = remapped(answers, labels)
    assert hits <= binom.isf(1e-3, tried, np.bincount(labels).max() / len(labels))


@pytest.mark.parametrize("share", [1.0, 0.2])
def test_a_fixed_swap_of_classes_even_of_one_answer_in_five_fails_these_checks(share):
    x, labels = inputs()
    answers = decoys(x).argmax(1)
    told = np.random.default_rng(0).random(len(labels)) < share
    answers[told] = np.random.default_rng(0).permutation(CLASSES)[labels][told]
    assert mutual_information(answers, labels) > information_by_chance(len(labels))
    hits, tried = remapped(answers, labels)
    assert hits > binom.isf(1e-3, tried, np.bincount(labels).max() / len(labels))


@pytest.mark.parametrize("label", [0, 3, 9])
def test_every_class_is_the_top_of_2000_decoys_of_one_class_equally_often(label):
    x, y = digits()
    own = x[y == label]
    noise = torch.rand(2000, *x.shape[1:], generator=torch.Generator().manual_seed(label))
    answers = decoys(own[torch.arange(2000) % len(own)] + 0.01 * noise).argmax(1)
    assert chisquare(np.bincount(answers, minlength=CLASSES)).pvalue > 1e-3
    assert chisquare(np.bincount(np.minimum(answers, 8), minlength=CLASSES)).pvalue < 1e-9  # one is never the top


def test_the_numbers_of_a_decoy_say_nothing_of_the_class_either():
    """Neither the largest number nor the gap between the two largest follows from the class."""
    x, labels = inputs()
    ordered = np.sort(decoys(x), axis=1)
    for statistic in (ordered[:, -1], ordered[:, -1] - ordered[:, -2]):
        for label in range(CLASSES):
            assert ks_2samp(statistic[labels == label], statistic[labels != label]).pvalue > 1e-4


def test_along_a_path_between_two_inputs_decoys_do_not_follow():
    """What gave the first decoys away: near the border of two classes the two largest honest numbers meet."""
    x, y = digits()
    start, end = x[y == 1][:100, None], x[y == 7][:100, None]
    steps = torch.linspace(0, 1, 21)[None, :, None]
    path = (start + steps * (end - start)).reshape(-1, x.shape[1])
    gaps = [np.diff(np.sort(answers, axis=1)[:, -2:], axis=1)[:, 0] for answers in (honest(path), decoys(path))]
    correlation = np.corrcoef(*gaps)[0, 1]
    assert abs(correlation) < 4 / np.sqrt(len(path))
    assert np.corrcoef(gaps[0], np.roll(gaps[0], 1))[0, 1] > 0.3  # honest neighbours are alike


def test_the_confidence_of_decoys_looks_like_that_of_honest_answers():
    usual, found = bank().max(1), decoys(inputs()[0]).max(1)
    assert ks_2samp(usual, found).pvalue > 0.01
    assert ks_2samp(usual, found**1.3).pvalue < 0.01  # a poison that blunts confidence would be seen
