"""Walks to anchors: what is asked on the way, what is read there, and that classes behind a shuffle are read."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from queen.attacks import ATTACKS
from queen.attacks.base import CountedOracle, Transcript
from queen.attacks.queries.knockoff import knockoff
from queen.attacks.strategies import path
from tests.support.attackers import SMALL, clean, knowledge, recording_oracle, refusing_oracle, rows_in, seed

LONG = replace(SMALL, honest_anchors=20, labelled_anchors=30, path_steps=12)
LABELLED = ("path_labelled", "path_labelled_changes")


def test_points_are_evenly_spaced_between_both_ends():
    images, anchors = torch.rand(3, 1, 8, 8, generator=seed(1)), torch.rand(2, 1, 8, 8, generator=seed(2))
    points = path.walk(images, anchors, 4)
    assert points.shape == (3, 2, 4, 1, 8, 8)
    for i in range(3):
        for j in range(2):
            for step in range(4):
                share = (step + 1) / 5
                assert torch.allclose(points[i, j, step], (1 - share) * images[i] + share * anchors[j], atol=1e-6)


def reference_gap(rows: np.ndarray) -> float:
    """The smallest log ratio of the two largest numbers of inner points, half a step further down each slope."""
    ratios = [np.log(np.sort(row)[-1] / max(np.sort(row)[-2], path.SMALLEST)) for row in rows]
    inner = range(1, len(rows) - 1)
    return min(ratios[i] - max(0.0, ratios[i - 1] - ratios[i], ratios[i + 1] - ratios[i]) / 2 for i in inner)


@given(st.integers(3, 9), st.integers(2, 6), st.integers(0, 10**6))
def test_readings_agree_with_loops(points, classes, number):
    answers = torch.rand(2, 3, points, classes, generator=seed(number)).double().softmax(-1)
    gaps, changes = path.read_gaps(answers), path.read_changes(answers)
    for i in range(2):
        for j in range(3):
            rows = answers[i, j].numpy()
            assert gaps[i, j] == pytest.approx(reference_gap(rows), abs=1e-9)
            assert changes[i, j] == pytest.approx(-sum(np.abs(a - b).sum() for a, b in pairwise(rows)), abs=1e-9)


@given(st.integers(0, 10**6))
def test_gaps_do_not_see_the_order_of_classes(number):
    answers = torch.rand(1, 1, 7, 5, generator=seed(number)).softmax(-1)
    orders = torch.stack([torch.randperm(5, generator=seed(number + i)) for i in range(7)])
    assert torch.equal(path.read_gaps(answers), path.read_gaps(answers.gather(-1, orders[None, None])))


def test_a_class_is_read_by_the_mean_of_its_anchors():
    likeness = torch.tensor([[1.0, 0.0, 0.6], [0.0, 0.9, 0.2]])
    assert path.likeliest_class(likeness, torch.tensor([2, 2, 0]), 4).tolist() == [0, 2]
    assert path.likeliest_class(-likeness, torch.tensor([3, 3, 3]), 4).tolist() == [3, 3]  # never one without anchors


def test_labelled_anchors_are_of_all_classes_in_turn():
    labels = torch.tensor([0, 0, 0, 1, 2, 1])
    x = torch.arange(6.0)[:, None]
    images, classes = path.spread_over_classes(x, labels, 5)
    assert images.flatten().tolist() == [0, 3, 4, 1, 5]
    assert classes.tolist() == [0, 1, 2, 0, 1]
    images, classes = path.spread_over_classes(x[:2], labels[:2], 3)  # too few: one again
    assert images.flatten().tolist() == [0, 1, 0]


@pytest.mark.parametrize("name", ["path", *LABELLED])
def test_every_image_is_asked_and_then_the_ways_to_its_anchors(name):
    known = knowledge()
    oracle, asked = recording_oracle(44)
    transcript = knockoff(oracle, ATTACKS[name], known, 44, seed())
    queries = torch.cat([x for _, x in asked])
    images, ways = queries[:4], queries[4:].view(4, 5, 2, 1, 8, 8)
    rows_in(known.pool, images)
    ends = path.spread_over_classes(*known.benign, 5)[0] if name in LABELLED else images[[0, 1, 2, 3, 0]]
    assert torch.allclose(ways, path.walk(images, ends, 2))
    assert torch.equal(transcript.x, images)
    if name == "path":  # its first answers are believed
        assert torch.equal(transcript.answers.argmax(1), clean(images).argmax(1))


def numbers(x: Tensor) -> list[int]:
    """One per input, as if drawn."""
    return [int(1e6 * row.sum()) for row in x]


def orders(keys: list[int]) -> Tensor:
    """A random order of the classes for each key."""
    return torch.stack([torch.randperm(10, generator=seed(key)) for key in keys])


def shuffled(x: Tensor) -> Tensor:
    """The honest numbers, in an order of each input's own."""
    return clean(x).gather(1, orders(numbers(x)))


def shuffled_by_class(x: Tensor) -> Tensor:
    """The honest numbers, in an order of each class's own."""
    honest = clean(x)
    return honest.gather(1, orders(honest.argmax(1).tolist()))


def drawn(x: Tensor) -> Tensor:
    """Numbers of other images in any order, drawn by the input: what a decoy must be."""
    bank = clean(knowledge().benign[0])
    return bank[torch.tensor(numbers(x)) % len(bank)].gather(1, orders(numbers(x)))


def labels_read(name: str, answer, first: int = 20) -> float:
    """The share of labels that an attack reads of images beyond the `first`, which are answered honestly."""
    known = knowledge(LONG)
    honest = iter([first])

    def oracle(x: Tensor) -> Tensor:
        rows = next(honest, 0)  # the first batch asks for images as they are
        return torch.cat([clean(x[:rows]), answer(x[rows:])])

    x = known.pool[:60]
    transcript: Transcript = ATTACKS[name].ask(CountedOracle(lambda _: oracle, 10**6, 10**6), x, known, seed())
    return float((transcript.answers.argmax(1) == clean(x).argmax(1))[first:].double().mean())


@pytest.mark.parametrize("name", ["path", "path_labelled"])
def test_classes_behind_a_shuffle_are_read(name):
    assert labels_read(name, shuffled) > 0.7


@pytest.mark.parametrize("name", ["path_changes", "path_labelled_changes"])
def test_classes_behind_one_order_per_class_are_read_by_changes(name):
    assert labels_read(name, shuffled_by_class) > 0.7


@pytest.mark.parametrize("name", ["path", "path_changes", *LABELLED])
def test_numbers_drawn_by_the_input_alone_say_nothing(name):
    assert labels_read(name, drawn) < 0.45


def test_where_a_way_is_refused_the_image_is_what_its_answer_says():
    known = knowledge()
    pool = {row.numpy().tobytes() for row in known.pool}

    def between(x: Tensor) -> Tensor:
        return torch.tensor([row.numpy().tobytes() not in pool for row in x])

    transcript = knockoff(refusing_oracle(44, between), ATTACKS["path_labelled"], known, 44, seed())
    assert torch.equal(transcript.answers.argmax(1), clean(transcript.x).argmax(1))


def test_who_is_refused_everything_has_nothing():
    nothing = refusing_oracle(44, lambda x: torch.ones(len(x), dtype=torch.bool))
    assert len(knockoff(nothing, ATTACKS["path"], knowledge(), 44, seed())) == 0
