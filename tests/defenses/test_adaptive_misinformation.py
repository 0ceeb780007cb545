"""Adaptive Misinformation: when the second network answers, what it learns, and how it is stored."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from queen import atomic
from queen.cache import Cache
from queen.defenses import adaptive_misinformation as am
from queen.training import Schedule, probabilities
from tests.support.defenses import F64, generator, simplex, small_victim

ALPHAS = {0.69: 0.999955, 0.699: 0.731059, 0.7: 0.5, 0.701: 0.268941, 0.71: 0.000045}


@pytest.mark.parametrize(("top", "alpha"), ALPHAS.items())
def test_the_fixed_shares(top, alpha):
    y = torch.tensor([[top, 1 - top]], dtype=F64)
    assert am.second_share(y).item() == pytest.approx(alpha, abs=5e-7)
    wrong = torch.tensor([[0.0, 1.0]], dtype=F64)
    assert am.perturb(y, wrong)[0].tolist() == pytest.approx(
        [(1 - alpha) * top, (1 - alpha) * (1 - top) + alpha], abs=1e-6
    )


@pytest.mark.parametrize("nu", [0.0, 1.0, 1000.0, 10_000.0, 1e300])
def test_no_steepness_overflows(nu):
    y, wrong = simplex(50, 4), simplex(50, 4, 1)
    share = am.second_share(y, nu=nu)
    assert ((share >= 0) & (share <= 1)).all()
    sure = y.amax(1) > 0.71
    assert 5 < sure.sum() < 45
    got = am.perturb(y, wrong, nu=nu)
    assert torch.allclose(got, (1 - share) * y + share * wrong, atol=1e-15)
    if nu >= 10_000:
        assert torch.allclose(got[sure], y[sure], atol=1e-15)
        assert torch.allclose(got[y.amax(1) < 0.69], wrong[y.amax(1) < 0.69], atol=1e-15)
    if nu == 0:
        assert torch.allclose(got, (y + wrong) / 2)


def test_the_loss_is_the_one_of_the_method():
    logits, labels = torch.randn(40, 7, generator=generator()), torch.randint(7, (40,), generator=generator(1))
    p = logits.softmax(1).gather(1, labels[:, None])
    expected = -((1 - p) / 6).log().mean()
    loss = F.cross_entropy(am.LabelAvoidingNetwork(torch.nn.Identity())(logits), labels)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)


def test_the_loss_of_a_network_that_is_certain_is_finite():
    logits = torch.tensor([[200.0, 0.0, 0.0]], requires_grad=True)
    loss = F.cross_entropy(am.LabelAvoidingNetwork(torch.nn.Identity())(logits), torch.tensor([0]))
    loss.backward()
    assert loss.item() == pytest.approx(-math.log(1e-7 / 2), rel=1e-3)
    assert logits.grad.isfinite().all()


def test_the_second_network_avoids_the_label():
    victim = small_victim(schedule=Schedule())
    x, y = victim.train
    second = am.train_second(victim, generator(3))
    given = probabilities(second, x).gather(1, y[:, None])
    untrained = probabilities(victim.make_network(generator(3)).eval(), x).gather(1, y[:, None])
    assert given.mean() < 0.01
    assert untrained.mean() > 0.08
    assert not second.training
    assert not any(parameter.requires_grad for parameter in second.parameters())


def must_not_train(*_: object, **__: object) -> None:
    raise AssertionError("trained again")


def networks(folder: Path) -> list[Path]:
    return list(folder.glob("*.safetensors"))


def test_it_is_trained_once_and_then_taken_from_the_cache(tmp_path, monkeypatch):
    victim = small_victim(cache=Cache(tmp_path / "new" / "folder"))
    x = victim.train[0][:50]
    first_generator, second_generator = generator(1), generator(1)
    trained = am.train_second(victim, first_generator)
    first = probabilities(trained, x)
    (stored,) = networks(victim.cache.folder)
    assert stored.name.startswith("second-")
    monkeypatch.setattr(am, "train", must_not_train)
    assert torch.equal(probabilities(am.train_second(victim, second_generator), x), first)
    assert torch.equal(first_generator.get_state(), second_generator.get_state())
    monkeypatch.undo()
    without = am.train_second(replace(victim, cache=None), generator(1))
    pairs = zip(without.parameters(), trained.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)  # laid out otherwise in memory, so answers round differently
    assert torch.allclose(probabilities(without, x), first, atol=1e-6)


@pytest.mark.parametrize("change", ["seed", "schedule", "images", "labels", "network", "code"])
def test_anything_that_matters_makes_it_another(change, tmp_path, monkeypatch):
    victim = small_victim(cache=Cache(tmp_path))
    x, y = victim.train
    am.train_second(victim, generator(1))
    changed = {
        "schedule": {"schedule": Schedule(epochs=1)},
        "images": {"train": (x + 1e-3, y)},
        "labels": {"train": (x, y.flip(0))},
        "network": {"make_network": lambda g: victim.make_network(torch.Generator().manual_seed(g.initial_seed() + 1))},
    }
    if change == "code":
        monkeypatch.setattr(am, "code_version", lambda *_: "new")
    am.train_second(replace(victim, **changed.get(change, {})), generator(2 if change == "seed" else 1))
    assert len(networks(tmp_path)) == 2


def test_a_broken_file_is_replaced(tmp_path):
    victim = small_victim(cache=Cache(tmp_path))
    x = victim.train[0][:20]
    expected = probabilities(am.train_second(victim, generator(1)), x)
    (stored,) = networks(tmp_path)
    whole = stored.read_bytes()
    stored.write_bytes(whole[: len(whole) // 2])
    assert torch.equal(probabilities(am.train_second(victim, generator(1)), x), expected)
    assert stored.read_bytes() == whole


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError("disk full")

    victim = small_victim(cache=Cache(tmp_path), schedule=Schedule(epochs=1))
    monkeypatch.setattr(atomic.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        am.train_second(victim, generator(1))
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_a_network_on_rows_of_numbers_works_too():
    victim = small_victim(schedule=Schedule(lr=1.0, epochs=10))
    x, y = victim.train[0].flatten(1), victim.train[1]
    flat = replace(victim, train=(x, y), make_network=lambda _: torch.nn.Linear(64, 10))
    given = probabilities(am.train_second(flat, generator(1)), x).gather(1, y[:, None])
    assert given.mean() < 0.05


def test_the_service_mixes_by_confidence():
    victim = small_victim()
    x = victim.train[0][:100]
    clean = victim.clean(x)
    tau = clean.amax(1).median().item()
    answers = am.DEFENSE.start(victim, generator(1), tau=tau).client("a")(x)
    wrong = probabilities(am.train_second(victim, generator(1)), x)
    sure, doubtful = clean.amax(1) > tau + 0.02, clean.amax(1) < tau - 0.02
    assert min(sure.sum(), doubtful.sum()) > 20
    assert torch.allclose(answers[sure], clean[sure], atol=1e-6)
    assert torch.allclose(answers[doubtful], wrong[doubtful], atol=1e-6)
    assert not torch.allclose(clean, wrong, atol=0.1)
