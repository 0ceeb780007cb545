"""What benign clients get, against figures computed by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from queen.bench.spec import Utility
from queen.bench.trials.utility import calibration_error, distances, measure_utility
from queen.defenses.base import MappedEndpoint
from queen.errors import RefusedError
from queen.types import Oracle, Reply, Verdict
from tests.support.benchmarks import tiny_protectee

TWO = Utility(clients=2, queries=30)


def seed(number: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def drawn(rows: int, classes: int, number: int, scale: float = 2.0) -> Tensor:
    return (scale * torch.randn(rows, classes, generator=seed(number))).softmax(1)


# Distances


def test_distances_by_hand():
    clean = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    answers = torch.tensor([[0.25, 0.5, 0.25], [0.5, 0.5, 0.0]])
    found = distances(clean, answers)
    assert found["l1"] == pytest.approx((0.5 + 1.0) / 2)
    assert found["l2"] == pytest.approx((math.sqrt(0.125) + math.sqrt(0.5)) / 2)
    assert found["kl"] == pytest.approx((0.5 * math.log(2) + math.log(2)) / 2)


@given(st.integers(1, 20), st.integers(2, 12), st.integers(0, 1000))
def test_distances_row_by_row(rows, classes, number):
    clean, answers = drawn(rows, classes, number), drawn(rows, classes, number + 1)
    pairs = list(zip(clean.double().tolist(), answers.double().tolist(), strict=True))
    found = distances(clean, answers)
    l1 = sum(abs(a - b) for y, z in pairs for a, b in zip(y, z, strict=True)) / rows
    l2 = sum(math.dist(y, z) for y, z in pairs) / rows
    kl = sum(a * math.log(a / b) for y, z in pairs for a, b in zip(y, z, strict=True)) / rows
    assert found == pytest.approx({"l1": l1, "l2": l2, "kl": kl}, abs=1e-5)


def test_distances_of_equal_answers_are_0_and_of_none_too():
    y = drawn(5, 4, 0)
    assert distances(y, y) == distances(y[:0], y[:0]) == {"l1": 0.0, "l2": 0.0, "kl": 0.0}


def test_answers_off_the_simplex_have_no_kl():
    y = drawn(5, 4, 0)
    moved = y.clone()
    moved[0, 0], moved[0, 1] = -0.1, y[0, 0] + y[0, 1] + 0.1
    for answers in (2 * y, moved):
        assert set(distances(y, answers)) == {"l1", "l2"}
    assert set(distances(y, y.roll(1, 1))) == {"l1", "l2", "kl"}


def test_an_answer_of_0_for_a_likely_class_is_far_but_not_infinite():
    found = distances(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]))
    assert found["kl"] == pytest.approx(12 * math.log(10))
    assert (found["l1"], found["l2"]) == pytest.approx((2, math.sqrt(2)))


# Calibration


def brute_force(answers: Tensor, labels: Tensor) -> float:
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(15)]
    for row, label in zip(answers.double().tolist(), labels.tolist(), strict=True):
        confidence = max(row)
        place = min(int(min(max(confidence, 0.0), 1.0) * 15), 14)
        bins[place].append((confidence, row.index(confidence) == label))
    error = 0.0
    for members in bins:
        if members:
            confidence = sum(c for c, _ in members) / len(members)
            accuracy = sum(right for _, right in members) / len(members)
            error += len(members) / len(labels) * abs(confidence - accuracy)
    return error


@given(st.integers(1, 60), st.integers(2, 12), st.integers(0, 1000), st.sampled_from([0.1, 1.0, 4.0, 30.0]))
def test_the_calibration_error_is_the_one_by_brute_force(rows, classes, number, scale):
    answers = drawn(rows, classes, number, scale)
    labels = torch.randint(classes, (rows,), generator=seed(number))
    assert calibration_error(answers, labels) == pytest.approx(brute_force(answers, labels), abs=1e-9)


def test_the_calibration_error_by_hand():
    certain = torch.eye(4)
    assert calibration_error(certain, torch.arange(4)) == 0
    assert calibration_error(certain, torch.arange(4).roll(1)) == 1
    sure = torch.tensor([[0.7, 0.3]] * 10)
    for right, error in ((7, 0.0), (5, 0.2), (10, 0.3)):
        labels = torch.tensor([0] * right + [1] * (10 - right))
        assert calibration_error(sure, labels) == pytest.approx(error, abs=1e-6)
    assert calibration_error(certain[:0], torch.arange(0)) == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rows_that_are_no_numbers_have_no_figures(bad):
    clean, answers, labels = drawn(6, 4, 0), drawn(6, 4, 1), torch.arange(6) % 4
    broken = answers.clone()
    broken[[1, 4], 2] = bad
    kept = torch.tensor([0, 2, 3, 5])
    assert distances(clean, broken) == distances(clean[kept], answers[kept])
    assert calibration_error(broken, labels) == calibration_error(answers[kept], labels[kept])


# A whole measurement


def serve(perturb) -> MappedEndpoint:
    return MappedEndpoint(tiny_protectee().victim, perturb)


def test_the_undefended_victim_loses_nothing():
    x, y = tiny_protectee().test
    found = measure_utility(serve(lambda y, x: y), tiny_protectee(), TWO)
    accuracy = (tiny_protectee().victim.clean(x).argmax(1) == y).double().mean().item()
    assert found["one_client"]["queries"] == len(x) == 200
    assert found["one_client"]["accuracy"] == pytest.approx(accuracy)
    assert found["one_client"]["agreement"] == found["many_clients"]["agreement"] == 1
    assert found["one_client"]["refused"] == found["one_client"]["l1"] == found["one_client"]["kl"] == 0
    assert found["one_client"]["calibration_error"] == pytest.approx(brute_force(tiny_protectee().victim.clean(x), y))
    assert (found["many_clients"]["clients"], found["many_clients"]["queries"]) == (2, 30)


def test_a_defense_that_turns_classes_around_agrees_with_nobody():
    x, y = tiny_protectee().test
    clean = tiny_protectee().victim.clean(x)
    found = measure_utility(serve(lambda y, x: y.roll(1, 1)), tiny_protectee(), TWO)
    assert found["one_client"]["agreement"] == found["many_clients"]["agreement"] == 0
    expected = (clean.roll(1, 1).argmax(1) == y).double().mean().item()
    assert found["one_client"]["accuracy"] == pytest.approx(expected)
    assert found["one_client"]["l1"] == pytest.approx((clean - clean.roll(1, 1)).abs().sum(1).mean().item())


class Strict:
    """Answers every client's first queries only, and remembers who asked what."""

    def __init__(self, free: int) -> None:
        self.free, self.asked = free, dict[str, Tensor]()

    def client(self, name: str) -> Oracle:
        def answer(x: Tensor) -> Tensor:
            before = self.asked.get(name, x[:0])
            self.asked[name] = torch.cat([before, x])
            number = torch.arange(len(before), len(before) + len(x))
            clean, refused = tiny_protectee().victim.clean(x), number >= self.free
            if not refused.any():
                return clean
            flat = torch.where(refused[:, None], 0.1, clean)
            verdicts = (Verdict.OUTSIDE,) * len(x)
            raise RefusedError(
                "no", Reply(flat, verdicts, torch.zeros_like(refused).numpy(), refused.numpy(), ~refused.numpy())
            )

        return answer

    def simulate(self, clean: Tensor, x: Tensor, generator: torch.Generator) -> Tensor:
        return clean[None]


def test_a_refused_query_is_a_wrong_one_and_has_no_distance():
    x, y = tiny_protectee().test
    clean = tiny_protectee().victim.clean(x)
    found = measure_utility(Strict(free=50), tiny_protectee(), Utility(clients=4, queries=60))
    right = clean.argmax(1) == y
    assert found["one_client"]["accuracy"] == pytest.approx(right[:50].sum().item() / 200)
    assert found["one_client"]["agreement"] == pytest.approx(0.25)
    assert found["one_client"]["refused"] == pytest.approx(0.75)
    assert found["one_client"]["l1"] == 0
    assert found["one_client"]["calibration_error"] == pytest.approx(brute_force(clean[:50], y[:50]))
    assert found["many_clients"]["agreement"] == pytest.approx(50 / 60)


def test_every_client_is_another_and_sends_images_of_its_own():
    service = Strict(free=1000)
    found = measure_utility(service, tiny_protectee(), Utility(clients=5, queries=40))
    sent = [x for name, x in service.asked.items() if len(x) == 40]
    assert len(service.asked) == 6
    assert len(sent) == 5
    assert len({x.sum().item() for x in sent}) == 5
    assert all(len(x.flatten(1).unique(dim=0)) == 40 for x in sent)  # no image twice
    test = {tuple(row) for row in tiny_protectee().test[0].flatten(1).tolist()}
    assert all(tuple(row) in test for x in sent for row in x.flatten(1).tolist())
    assert found["many_clients"]["agreement"] == 1


def test_more_queries_than_test_images_are_all_of_them():
    found = measure_utility(serve(lambda y, x: y), tiny_protectee(), Utility(clients=1, queries=10_000))
    assert found["many_clients"]["queries"] == 200
    assert found["many_clients"]["accuracy"] == pytest.approx(found["one_client"]["accuracy"])


def test_the_same_clients_come_every_time():
    first, second = (measure_utility(Strict(free=20), tiny_protectee(), TWO) for _ in range(2))
    assert first == second
