"""One reference student: a network that learns a model from some of its honest answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from queen.cache import fingerprint
from queen.errors import OptionError
from queen.recipe import Recipe
from queen.training import Schedule, collapsed, one_thread, predict, train
from queen.zoo import seeded

Array = NDArray[Any]
COLOURS = 3  # channels of a photograph
GRID = 7  # side of the maps that the hidden layer of a small network sees, at most


@dataclass(frozen=True)
class Pool:
    """Images (n, ...) that a thief may ask for, and the model's honest answers (n, K) to them; `name` says what they
    are. Arrays, not tensors, so that other processes can have them."""

    name: str
    images: Array
    answers: Array

    @cached_property
    def key(self) -> str:
        """A hash of images and answers, that is of the model too."""
        return fingerprint(torch.from_numpy(self.images), torch.from_numpy(self.answers))


@dataclass(frozen=True)
class Jury:
    """Images (n, ...) that no student learns from, the classes (n,) that the model names, and true ones if known."""

    images: Array
    named: Array
    labels: Array | None

    @cached_property
    def key(self) -> str:
        """A hash of all of it."""
        parts = [self.images, self.named, *([] if self.labels is None else [self.labels])]
        return fingerprint(*map(torch.from_numpy, parts))


@dataclass(frozen=True)
class Student:
    """Who learns: a network, from this many answers to images of a pool, with this seed; from labels alone or not."""

    network: str
    recipe: Recipe
    pool: str
    answers: int
    label_only: bool
    seed: int


def choose_networks(shape: Sequence[int], classes: int, own: Recipe | None) -> dict[str, Recipe]:
    """Two networks of different kinds for inputs of this shape, by name.

    Images: the model's own network if it is one of `queen.zoo` (else a small convolutional one), and a simpler one.
    Anything else is flattened: a network with a hidden layer, and a linear one, which does best on few answers.
    """
    inputs = int(np.prod(shape))
    hidden = Recipe("queen.zoo:MLP", {"inputs": inputs, "classes": classes})
    if len(shape) != 3 or min(shape[1:]) < 4:
        return {"mlp": hidden, "linear": Recipe("queen.zoo:MLP", {"inputs": inputs, "classes": classes, "hidden": []})}
    sides = {"grid": max(1, min(GRID, min(shape[1:]) // 4))}
    small = Recipe("queen.zoo:build", {"name": "small_cnn", "classes": classes, "channels": shape[0], **sides})
    if own is not None and own.factory == "queen.zoo:build":
        name = str(own.args.get("name"))
        return {name: own, **({"mlp": hidden} if name == "small_cnn" else {"small_cnn": small})}
    return {"small_cnn": small, "mlp": hidden}


def teach(student: Student, pool: Pool, jury: Jury, schedule: Schedule, device: str) -> dict[str, float | None]:
    """Train one student, and return its agreement with the model and its accuracy (None without labels).

    Its seed decides which images it asks for, its first weights and its batches. A training that failed (it names one
    class only) is no defense, so it is repeated once at a tenth of the rate, and the better student counts.
    """
    generator = torch.Generator().manual_seed(student.seed)
    rows = torch.randperm(len(pool.images), generator=generator)[: student.answers].numpy()
    x = torch.from_numpy(pool.images[rows]).to(device)
    answers = torch.from_numpy(pool.answers[rows]).to(device)
    targets = answers.argmax(1) if student.label_only else answers
    with one_thread():
        guesses = [_learn(student, x, targets, jury, schedule, generator)]
        if collapsed(guesses[0]):
            guesses.append(_learn(student, x, targets, jury, replace(schedule, lr=schedule.lr / 10), generator))
    named = torch.from_numpy(jury.named)
    best = max(guesses, key=lambda guess: _share(guess == named))
    accuracy = None if jury.labels is None else _share(best == torch.from_numpy(jury.labels))
    return {"agreement": _share(best == named), "accuracy": accuracy}


def _learn(
    student: Student, x: Tensor, targets: Tensor, jury: Jury, schedule: Schedule, generator: torch.Generator
) -> Tensor:
    """What the student, newly made and trained, names the jury's images, (n,) on the CPU."""
    with seeded(generator):
        network = student.recipe.build()
    trained = train(network, x, targets, schedule, generator)
    return predict(trained, torch.from_numpy(jury.images).to(x.device)).cpu()


def _share(right: Tensor) -> float:
    return right.double().mean().item()


def check_images(shape: Sequence[int], *, is_float: bool) -> None:
    """Refuse inputs that no reference student takes."""
    if not is_float or not shape:
        raise OptionError(
            "a price is measured for models that take one tensor of floats (images or vectors), got token ids or other "
            "integers: protect without price and max_copy"
        )
