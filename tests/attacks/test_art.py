"""Attacks that others wrote (adversarial-robustness-toolbox) against our services."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from art.attacks.extraction import CopycatCNN, KnockoffNets
from art.estimators.classification import PyTorchClassifier
from torch import Tensor, nn
from torch.nn import functional as F

from queen.attacks.art import as_art_classifier
from queen.bench.datasets import digits, load_set, mnist5k
from queen.cache import Cache
from queen.defenses import DEFENSES, Endpoint, Victim
from queen.errors import OptionError, RefusedError
from queen.training import Schedule, train
from queen.types import Oracle, Reply, Verdict
from queen.zoo import build, seeded
from tests.support.attackers import seed

pytestmark = pytest.mark.real

SHAPE, CLASSES, BUDGET = (1, 8, 8), 10, 600
ATTACKS = {"knockoff": partial(KnockoffNets, verbose=False), "copycat": CopycatCNN}
WORTH_STEALING = 0.5  # chance is 0.1; over seeds, copies of the open model reach 0.55 to 0.82
CLEARLY = 0.2  # over seeds, copies behind the sentinel reach 0.1 to 0.35: some 50 answers come before the alarm


@pytest.fixture(autouse=True)
def _repeatable() -> Iterator[None]:
    """ART draws from the global random states: lend it some."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        yield
    np.random.set_state(numpy_state)
    random.setstate(python_state)


def new_network(generator: torch.Generator) -> nn.Module:
    with seeded(generator):
        return build("small_cnn", classes=CLASSES, hidden=32, grid=2)


@cache
def shuffled() -> tuple[Tensor, Tensor]:
    x, y = digits()
    order = torch.randperm(len(x), generator=seed())
    return x[order], y[order]


@cache
def victim(folder: Path) -> Victim:
    x, y = shuffled()
    owned, held_out = (x[:800], y[:800]), (x[800:1400], y[800:1400])
    model = train(new_network(seed()), *owned, Schedule(epochs=15, lr=0.1, batch=32), seed()).requires_grad_(False)
    quick = Schedule(epochs=5, lr=0.1, batch=32)
    outliers = load_set("photo_patches", "train", size=8, channels=1, count=800).x
    return Victim(model, owned, new_network, quick, held_out, outliers, Cache(folder))


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")

    def start(defense: str) -> Endpoint:
        return DEFENSES[defense].start(victim(folder), seed(1))

    return start


@cache
def foreign_pool() -> tuple[np.ndarray, np.ndarray]:
    """Digits of another source, cut and shrunk to 8x8, and their labels."""
    x, y = mnist5k()
    rows = torch.randperm(len(x), generator=seed())[:1500]
    small = F.interpolate(x[rows, :, 4:24, 4:24], (8, 8), mode="bilinear", antialias=True)
    return small.numpy(), y[rows].numpy()


def stolen(oracle: Oracle, attack: str, budget: int = BUDGET, epochs: int = 10, **options: object) -> PyTorchClassifier:
    network = new_network(seed(3))
    optimiser = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
    thief = PyTorchClassifier(network, nn.CrossEntropyLoss(), SHAPE, CLASSES, optimizer=optimiser, device_type="cpu")
    made = ATTACKS[attack](
        as_art_classifier(oracle, SHAPE, CLASSES),
        batch_size_fit=32,
        batch_size_query=64,
        nb_epochs=epochs,
        nb_stolen=budget,
        **options,
    )
    pool, labels = foreign_pool()
    wants_labels = options.get("sampling_strategy") == "adaptive"
    return made.extract(pool, labels if wants_labels else None, thieved_classifier=thief)


def accuracy(classifier) -> float:
    x, y = shuffled()
    return float((classifier.predict(x[1400:].numpy()).argmax(1) == y[1400:].numpy()).mean())


@pytest.mark.parametrize("use_probability", [True, False])
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_stolen_copy_is_good_without_defense_and_bad_behind_the_sentinel(start, attack, use_probability):
    open_copy = accuracy(stolen(start("none").client("art"), attack, use_probability=use_probability))
    guarded_copy = accuracy(stolen(start("queen-sentinel").client("art"), attack, use_probability=use_probability))
    assert open_copy > WORTH_STEALING
    assert guarded_copy < open_copy - CLEARLY


def test_others_still_get_the_model_from_the_sentinel_that_starves_the_thief(start):
    service = start("queen-sentinel")
    stolen(service.client("art"), "knockoff", epochs=1)
    assert service.verdicts["alarmed"] > BUDGET / 2
    somebody = as_art_classifier(service.client("somebody"), SHAPE, CLASSES)
    assert accuracy(somebody) > 0.9


def test_soft_answers_that_are_bent_far_enough_make_a_worse_copy(start):
    soft = partial(stolen, attack="knockoff", use_probability=True)
    assert accuracy(soft(start("modelguard_w").client("art"))) < accuracy(soft(start("none").client("art"))) - CLEARLY


# The artifact's twenty shadow networks take a minute to train.
EACH = [pytest.param(name, marks=pytest.mark.long) if name == "queen-artifact" else name for name in DEFENSES]


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("defense", EACH)
def test_it_takes_the_answers_of(defense, attack, start):
    asked: list[Tensor] = []
    oracle = start(defense).client("art")
    thief = stolen(lambda x: (asked.append(x), oracle(x))[1], attack, 96, 1, use_probability=True)
    assert sum(map(len, asked)) == 96
    assert all(part.dtype == torch.float32 and part.shape[1:] == SHAPE for part in asked)
    answers = as_art_classifier(oracle, SHAPE, CLASSES).predict(foreign_pool()[0][:70])
    assert (answers.shape, answers.dtype) == ((70, CLASSES), np.float32)
    assert np.isfinite(answers).all()
    if DEFENSES[defense].on_simplex:
        assert np.allclose(answers.sum(1), 1, atol=1e-4)
    assert np.isfinite(thief.predict(foreign_pool()[0][:70])).all()


@pytest.mark.parametrize("defense", ["none", "queen-sentinel"])
def test_the_adaptive_knockoff_asks_one_by_one(defense, start):
    asked: list[int] = []
    oracle = start(defense).client("art")
    options = {"sampling_strategy": "adaptive", "reward": "div"}
    stolen(lambda x: (asked.append(len(x)), oracle(x))[1], "knockoff", 40, 1, **options)
    assert asked == [1] * 40


def test_an_answer_is_the_services_own(start):
    service = start("none")
    x = shuffled()[0][1400:1500]
    classifier = as_art_classifier(service.client("art"), SHAPE, CLASSES)
    assert (classifier.input_shape, classifier.nb_classes) == (SHAPE, CLASSES)
    assert np.allclose(classifier.predict(x.double().numpy()), service.client("art")(x).numpy(), atol=1e-6)


def test_refused_rows_say_nothing():
    def oracle(x: Tensor) -> Tensor:
        refused = np.arange(len(x)) % 2 == 1
        answers = torch.where(torch.from_numpy(refused)[:, None], 0.1, F.one_hot(torch.tensor([7]), CLASSES).float())
        reply = Reply(answers, (Verdict.OUTSIDE,) * len(x), refused, refused, ~refused)
        raise RefusedError("no", reply)

    answers = as_art_classifier(oracle, SHAPE, CLASSES).predict(np.zeros((4, *SHAPE), np.float32))
    assert answers.argmax(1)[::2].tolist() == [7, 7]
    assert np.allclose(answers[1::2], 0.1)


def test_without_the_toolbox_the_way_out_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "art.estimators.classification", None)
    with pytest.raises(OptionError, match="pip install adversarial-robustness-toolbox"):
        as_art_classifier(lambda x: x, SHAPE, CLASSES)
