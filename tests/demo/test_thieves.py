from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import queen.demo.thieves as module
from queen.demo.thieves import best, rob
from queen.progress import Progress


def robbed(loot: dict, test: tuple, patch: pytest.MonkeyPatch) -> dict:
    patch.setattr(module.os, "cpu_count", lambda: 1)
    original = torch.zeros(len(test[0]), dtype=torch.int64)
    return rob(loot, test, original, (0, 1), Progress(shown=False))


@pytest.mark.slow
def test_collapsed_thieves_are_flagged_and_others_are_not(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 10
    x = torch.rand(120, 1, 28, 28, generator=generator) * 0.1
    for k in range(10):
        x[y == k, :, 2 * k : 2 * k + 4, 4:24] += 1  # a bar whose height tells the class
    constant = F.one_hot(torch.full((120,), 3), 10).float()
    honest = F.one_hot(y, 10).float()
    found = robbed({"constant": (x, constant), "honest": (x, honest)}, (x, y), monkeypatch)
    flagged, fine = found["constant"], found["honest"]
    assert flagged["flags"] == [
        "2 of 2 direct thieves collapsed to one class", "2 of 2 label-only thieves collapsed to one class",
    ]  # fmt: skip
    assert flagged["thief_direct"] == flagged["thief_label_only"] == pytest.approx(0.1)
    assert fine["flags"] == []
    assert fine["thief_direct"] > 0.3
    assert len(fine["thief_direct_runs"]) == 2
    assert best(fine) == max(fine["thief_direct"], fine["thief_label_only"])


def test_equal_loot_is_trained_on_once(monkeypatch):
    trained = []
    guess = torch.arange(50) % 10
    monkeypatch.setattr(module, "_guesses", lambda x, target, seed, test: trained.append(seed) or guess)
    x = torch.rand(50, 1, 28, 28)
    answers = torch.rand(50, 10).softmax(1)
    found = robbed(dict.fromkeys(("undefended", "paper", "strict"), (x, answers)), (x, guess), monkeypatch)
    assert sorted(trained) == [0, 0, 1, 1]  # direct and label-only, two seeds
    assert all(one["thief_direct"] == 1 for one in found.values())


def test_a_thief_without_answers_has_no_accuracy(monkeypatch):
    x = torch.rand(20, 1, 28, 28)
    found = robbed({"nothing": (x[:0], torch.rand(0, 10))}, (x, torch.zeros(20, dtype=torch.int64)), monkeypatch)
    assert found["nothing"]["answers"] == 0
    assert found["nothing"]["thief_direct"] is None
    assert best(found["nothing"]) is None


@pytest.mark.parametrize(("answers", "steps"), [(10, 200), (640, 200), (1280, 280), (6400, 600)])
def test_few_answers_are_gone_over_more_often_and_many_less(answers, steps, monkeypatch):
    seen = []

    def train(model, x, target, schedule, generator):
        seen.append(schedule.epochs * max(1, len(x) // schedule.batch))
        return model

    monkeypatch.setattr(module, "train", train)
    module._guesses(torch.rand(answers, 1, 28, 28), torch.rand(answers, 10), 0, torch.rand(5, 1, 28, 28))
    assert seen == [steps]
