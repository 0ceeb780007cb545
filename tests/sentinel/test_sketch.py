"""Recognising a query that comes again: the memory against brute force, and the tolerance on sets one can check."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from queen.sentinel.sketch import SIZE, Memory, directions, measure_tolerance, repeats


def is_near(a, b) -> bool:
    """The definition: every number differs by less than 1."""
    return all(abs(x - y) < 1 for x, y in zip(a, b, strict=True))


def close_by(base: float) -> list[float]:
    """Numbers at, just below and just above a border, exact in float32."""
    one = np.float32(base)
    return [float(np.nextafter(one, np.float32(side), dtype=np.float32)) for side in (-1e9, 1e9)] + [float(one)]


BORDERS = [n for base in (-4, -3, -2, -1, -0.5, 0, 0.5, 1, 2, 3, 4, 1000, -1000) for n in close_by(base)]
numbers = st.one_of(st.sampled_from(BORDERS), st.floats(-4, 4, width=32), st.floats(-(2**100), 2**100, width=32))
few = st.sampled_from([-1.0, 0.0, 0.5, 1.0])
sketches = st.builds(lambda head, keys, tail: (*head, *keys, *tail), st.tuples(numbers, numbers), st.tuples(few, few),
    st.sampled_from([(0.0,) * (SIZE - 4), (0.5,) * (SIZE - 4), (0.0,) * (SIZE - 5) + (1.0,)])
)  # fmt: skip


def remembering(pictures) -> Memory:
    memory = Memory()
    for sketch in pictures:
        memory.add_picture(sketch)
    return memory


@settings(max_examples=300)
@given(st.lists(sketches, max_size=12), st.lists(sketches, min_size=1, max_size=12))
def test_near_pictures_are_recognised_and_no_others(remembered, asked):
    memory = remembering(remembered)
    for sketch in (*asked, *remembered):
        assert memory.has_near(sketch) == any(is_near(sketch, other) for other in remembered)


@settings(max_examples=200)
@given(sketches, st.integers(0, SIZE - 1), st.sampled_from([-1.5, -1.0, -0.999, 0.0, 0.999, 1.0, 1.5]))
def test_one_number_that_differs_by_one_makes_another_picture(sketch, where, by):
    if abs(sketch[where]) > 2**20:
        return  # so coarse there that a step of less than 1 is none
    other = tuple(v + by if i == where else v for i, v in enumerate(sketch))
    assert remembering([sketch]).has_near(other) == (abs(other[where] - sketch[where]) < 1)


class Small(Memory):
    CAPACITY = 4
    BUCKETS = 2  # so that different cells share one
    __slots__ = ()


def linked(memory: Memory) -> list[int]:
    """The slots that the table of cells holds, sorted; each must be in exactly one bucket."""
    listed = []
    for first in memory.first:
        slot = first
        while slot >= 0:
            listed.append(slot)
            slot = memory.following[slot]
    return sorted(listed)


def content(memory: Memory) -> tuple:
    """All that a memory holds; slots of a bucket may be listed in any order."""
    slots = len(memory.following)
    buckets = [memory._bucket(slot) for slot in range(slots)]
    return memory.pictures, memory.answered, memory.digests.tolist(), memory.sketches.tolist(), buckets, linked(memory)


def test_the_capacity_is_the_documented_one():
    assert Memory.CAPACITY == 1024
    memory = Memory()
    for number in range(1, 1100):
        memory.add_picture((10.0 * number,) * SIZE)
        memory.add_answered(number)
    assert len(memory.digests) == len(memory.sketches) / SIZE == 1024
    assert memory.digests.itemsize == 8
    assert SIZE * memory.sketches.itemsize + memory.following.itemsize == 34
    assert linked(memory) == list(range(1024))
    assert memory.pictures == memory.answered == 1099
    assert [memory.has_near((10.0 * n,) * SIZE) for n in range(1, 1100)] == [False] * 75 + [True] * 1024
    assert [memory.was_answered(n) for n in range(1, 1100)] == [False] * 75 + [True] * 1024


act_of = st.one_of(
    st.tuples(st.just("picture"), sketches),
    st.tuples(st.just("answered"), st.integers(1, 12)),
    st.tuples(st.just("drop"), st.integers(1, 3)),
)


@settings(max_examples=300)
@given(st.lists(act_of, max_size=40), st.lists(sketches, min_size=1, max_size=6))
def test_two_rings_that_forget_the_oldest_and_take_back_the_newest(acts, asked):
    """Against plain lists: the last four of each, and pictures taken back in reverse order."""
    memory, pictures, digests = Small(), [], []
    undo: list[tuple] = []  # for every picture since the last answer: what it replaced, and all that was there before
    for what, value in acts:
        if what == "picture":
            before = content(memory)
            undo.append((memory.add_picture(value), before))
            pictures.append(value)
        elif what == "answered":
            memory.add_answered(value)
            digests.append(value)
            undo.clear()
        else:
            for _ in range(min(value, len(undo))):
                replaced, before_it = undo.pop()
                memory.drop_picture(replaced)
                pictures.pop()
                assert content(memory) == before_it
        remembered = pictures[-4:]
        assert linked(memory) == list(range(len(remembered)))
        assert sorted(memory.picture(slot) for slot in range(len(remembered))) == sorted(remembered)
        assert {d for d in range(13) if memory.was_answered(d)} == set(digests[-4:])
        for sketch in (*asked, *pictures):
            assert memory.has_near(sketch) == any(is_near(sketch, other) for other in remembered)
    assert memory.pictures == len(pictures)
    assert memory.answered == len(digests)


def test_a_near_picture_is_compared_with_the_original_alone():
    """Small steps away from a picture are near it until they are not: none becomes a stepping stone."""
    memory, recognised = Memory(), []
    for step in range(30):
        sketch = (0.4 * step,) * SIZE
        recognised.append(memory.has_near(sketch))
        if not recognised[-1]:
            memory.add_picture(sketch)
    assert recognised == [step % 3 != 0 for step in range(30)]
    assert memory.pictures == 10


def test_a_picture_that_was_not_answered_is_near_but_not_answered():
    memory = remembering([(0.0,) * SIZE])
    assert memory.has_near((0.9,) * SIZE)
    assert not memory.was_answered(0)


# Tolerance.


def clouds(rows=200, classes=3, dims=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, dims, generator=generator), torch.randint(classes, (rows,), generator=generator)


def nearest_by_loops(features, labels) -> list[float]:
    """From every image to its nearest other one of its class."""
    nearest = []
    for i, (u, k) in enumerate(zip(features.double(), labels, strict=True)):
        others = [(u - v).norm().item() for j, v in enumerate(features.double()) if labels[j] == k and j != i]
        nearest += [min(others)] if others else []
    return nearest


def test_the_tolerance_is_half_the_distance_that_nearly_all_keep_from_their_class():
    features, labels = clouds()
    nearest = nearest_by_loops(features, labels)
    assert measure_tolerance(features, labels) == pytest.approx(0.5 * np.quantile(nearest, 0.01), rel=1e-5)


def test_only_images_of_the_same_class_count():
    features = torch.tensor([[0.0], [0.01], [5.0], [5.01]])
    assert measure_tolerance(features, torch.tensor([0, 1, 0, 1])) == pytest.approx(2.5)
    assert measure_tolerance(features, torch.tensor([0, 0, 1, 1])) == pytest.approx(0.005, rel=1e-3)


def test_copies_in_the_data_say_nothing():
    features, labels = clouds()
    twice = torch.cat([features, features[:20]]), torch.cat([labels, labels[:20]])
    assert measure_tolerance(*twice) > 0.5 * measure_tolerance(features, labels)


def test_a_class_with_one_image_says_nothing_either():
    features, labels = clouds(classes=2)
    with_one = torch.cat([features, torch.full((1, 5), 50.0)]), torch.cat([labels, torch.tensor([7])])
    assert measure_tolerance(*with_one) == measure_tolerance(features, labels)


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        (torch.ones(1, 3), torch.tensor([0])),
        (torch.eye(3), torch.tensor([0, 1, 2])),
        (torch.ones(6, 3), torch.tensor([0] * 6)),
        (torch.zeros(6, 3), torch.tensor([0] * 6)),
    ],
    ids=["one image", "one a class", "copies", "zeros"],
)
def test_where_there_is_nothing_to_compare_only_equal_features_are_the_same(features, labels):
    least = measure_tolerance(features, labels)
    assert 0 < least <= 1e-6 * max(1, features.abs().mean().item())
    assert directions(b"k", 3, least).isfinite().all()


def test_the_tolerance_is_in_the_units_of_the_features():
    features, labels = clouds()
    assert measure_tolerance(1000 * features, labels) == pytest.approx(1000 * measure_tolerance(features, labels))


def test_many_images_are_not_all_compared():
    """And not the first ones only: data may be sorted by class."""
    features, labels = clouds(rows=301)
    assert measure_tolerance(features, labels, rows=101) == measure_tolerance(features[::3], labels[::3])


def test_repeats_of_earlier_images_are_found_by_class():
    features = torch.tensor([[0.0, 0.0], [5.0, 0.0], [0.0, 0.05], [0.0, 0.0], [5.0, 0.2], [5.0, 0.0]])
    labels = torch.tensor([0, 0, 0, 1, 0, 0])
    assert repeats(features, labels, 0.1).tolist() == [False, False, True, False, False, True]
    assert not repeats(features, labels, 1e-9)[:5].any()


# Directions.


def test_directions_are_fixed_by_the_key_and_unlike_under_another():
    one, same, other = (directions(key, 64, 1.0) for key in (b"a" * 32, b"a" * 32, b"b" * 32))
    assert torch.equal(one, same)
    assert one.shape == (64, SIZE)
    likeness = torch.nn.functional.cosine_similarity(one.flatten(), other.flatten(), 0)
    assert abs(likeness.item()) < 0.2


def test_sketches_are_in_units_of_the_tolerance_and_random():
    far, near = (directions(b"a" * 32, 2000, tolerance) for tolerance in (0.5, 2.0))
    assert torch.allclose(far, 4 * near)
    assert near.std().item() == pytest.approx(0.5, rel=0.05)
    gram = 4 * near.T @ near / 2000
    assert (gram - torch.eye(SIZE)).abs().max() < 0.15


def test_a_step_of_a_tenth_of_the_tolerance_is_nearly_always_near_and_one_of_ten_never():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(500, 32, generator=generator)
    step = torch.nn.functional.normalize(torch.randn(500, 32, generator=generator))
    projection = directions(b"k" * 32, 32, 0.3)
    for length, share in ((0.1, 1.0), (10.0, 0.0)):
        moved = features + 0.3 * length * step
        pairs = zip((features @ projection).tolist(), (moved @ projection).tolist(), strict=True)
        assert np.mean([is_near(a, b) for a, b in pairs]) == pytest.approx(share, abs=0.01)
