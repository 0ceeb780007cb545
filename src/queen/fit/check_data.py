"""The part of `queen.check` that looks at data: pixels, labels, and what the model makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from math import sqrt
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from queen.core import inputs
from queen.core.split import Split, is_sigmoid
from queen.errors import QueenError
from queen.fit.calibrate import ENOUGH
from queen.fit.data import Data, Images, batches, image_batches
from queen.fit.features import run_on
from queen.fit.findings import Finding
from queen.types import Inputs

MOST = 10_000  # images that are tried
ENOUGH_NUMBERS = 2000  # to tell an image by
LEAST_AGREEMENT = 0.5  # of map and model on the training images; such a map needs a model that is right as often
FEW = 10  # images per class, below which shadows share images
NOT_FINITE = "find the inputs or the layer that make them: no answer can be given there"
SIGMOID = "return what comes before the sigmoid; a model of several labels an image is no classifier to the guard"
BRIGHT = 8.0  # no image that was divided by 255 is so bright, nor one that was normalised


def check_pixels(data: Data) -> Iterator[Finding]:
    """Whether images look as if they came straight from files."""
    x, _ = next(iter(batches(data)))
    if not isinstance(x, Tensor) or x.ndim != 4:
        return
    if x.dtype == torch.uint8:
        fix = "right if the model takes bytes and prepares them itself; else give floats as it was trained with"
        yield Finding("pixels", "floats", "bytes from 0 to 255", fix)
    elif x.is_floating_point() and x.max() > BRIGHT:
        fix = "right if the model takes such numbers; most are trained on x / 255, some on (x / 255 - mean) / std"
        yield Finding("pixels", "numbers as in training", f"floats from {x.min():g} to {x.max():g}", fix)


def check_answers(split: Split, data: Data, like: Inputs) -> Iterator[Finding]:
    """Labels, and the model's answers to up to 10,000 images."""
    answers: list[Tensor] = []
    labels: list[Tensor] = []
    tried = 0
    try:
        for raw, y in batches(data):
            if y.ndim != 1 or y.is_floating_point():
                fix = "give y.argmax(1) of one-hot labels, y[:, 0] of a single column, y.astype(int) of others"
                got = f"{y.dtype} of shape (n, {', '.join(map(str, y.shape[1:]))})" if y.ndim > 1 else f"{y.dtype}"
                yield Finding("labels", "whole numbers, one an image", got, fix, stops=True)
                return
            device = next(iter(inputs.tensors(like).values())).device
            x = inputs.to(inputs.check(raw, like), device)
            answers.append(run_on(split, x, "data")[1].float().cpu())
            labels.append(y.long().cpu())
            tried += len(y)
            if tried >= MOST:
                break
    except QueenError as error:
        yield Finding.of("data", error)
        return
    yield from _check_logits(torch.cat(answers))
    yield from _check_labels(torch.cat(labels), torch.cat(answers), whole=tried < MOST)


def _check_logits(logits: Tensor) -> Iterator[Finding]:
    broken = int((~logits.isfinite().all(1)).sum())
    if broken:
        got = f"NaN or infinity for {broken} of {len(logits)} images"
        yield Finding("answers", "finite logits", got, NOT_FINITE, stops=True)
    elif is_sigmoid(logits):
        yield Finding("answers", "logits", "numbers from 0 to 1 that do not add up to 1", SIGMOID)


def _check_labels(labels: Tensor, logits: Tensor, *, whole: bool) -> Iterator[Finding]:
    classes = logits.shape[1]
    if classes < 2:
        fix = "give a classifier: with one output for two classes, return [-z / 2, z / 2]"
        yield Finding("model", "at least 2 outputs", f"{classes}", fix, stops=True)
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        fix = "number classes from 0 in the order of the model's outputs"
        if (low, high) == (1, classes):
            fix = "subtract 1: y - 1"
        yield Finding("labels", f"numbers from 0 to {classes - 1}", f"{low} to {high}", fix, stops=True)
        return
    counts = torch.bincount(labels, minlength=classes)
    empty, alone = ((counts == n).nonzero().flatten().tolist() for n in (0, 1))
    few = int(((counts > 1) & (counts < FEW)).sum())
    if empty and whole:
        fix = "give training images of every class"
        yield Finding("labels", "images of every class", f"none of {_some(empty)}", fix, stops=True)
    if alone and whole:
        fix = "give more: a single point has no disc"
        yield Finding("labels", "at least two images of every class", f"one of {_some(alone)}", fix, stops=True)
    if few and whole:
        fix = "give more training images: their discs would be rough, and shadows share images"
        yield Finding("labels", f"at least {FEW} images a class", f"fewer of {few} classes", fix)
    yield from _check_accuracy(labels.numpy(), logits.argmax(1).numpy(), counts.numpy())


def _check_accuracy(labels: np.ndarray, guesses: np.ndarray, counts: np.ndarray) -> Iterator[Finding]:
    """Whether the model is right more often than who always says the same, and often enough for a map to follow it."""
    right, chance = float((labels == guesses).mean()), float(counts.max() / counts.sum())
    learned = right > chance + 3 * sqrt(chance * (1 - chance) / len(labels))
    if learned and right >= LEAST_AGREEMENT:
        return
    classes = len(counts)
    table = np.zeros((classes, classes), int)
    np.add.at(table, (labels, guesses), 1)
    rows, columns = linear_sum_assignment(-table)
    best = table[rows, columns].sum() / len(labels)
    fix = "is this the trained model, and are the inputs prepared as in training (units, mean, std, order of channels)?"
    if best > max(0.5, 2 * right):
        order = ", ".join(f"{row} -> {column}" for row, column in zip(rows[:5], columns[:5], strict=True))
        fix = f"labels are in another order than the outputs, of which {best:.0%} would agree: {order}..."
    elif learned:
        fix = "train the model further, or take a map that agrees with it as seldom, min_agreement=..."
    expected = f"more than chance ({chance:.0%}) on the training data"
    if right < LEAST_AGREEMENT:
        expected += f", and at least {LEAST_AGREEMENT:.0%}"
    yield Finding("accuracy", expected, f"{right:.0%}", fix, stops=right < LEAST_AGREEMENT)


def check_calibration(split: Split, train: Data, data: Images, like: Inputs) -> Iterator[Finding]:
    """Whether calibration images did not train the model, and are enough of every class that it predicts."""
    try:
        device = next(iter(inputs.tensors(like).values())).device
        guesses = [_guesses(split, x, like, device) for x, _ in image_batches(data)]
    except QueenError as error:
        yield Finding.of("calibration", error)
        return
    if not guesses:
        yield Finding("calibration", "held-out images", "none", "give some that did not train the model", stops=True)
        return
    if found := find_shared(train, data):
        yield found
    counts = torch.bincount(torch.cat(guesses), minlength=split(like)[1].shape[1])
    few = (counts < ENOUGH).nonzero().flatten().tolist()
    if few:
        fix = "give more: evidence against thieves grows slowly there, and not at all where there are none"
        yield Finding("calibration", f"at least {ENOUGH} images predicted as each class", f"fewer as {_some(few)}", fix)


def find_shared(train: Data, calibration: Images) -> Finding | None:
    """What is wrong where calibration images also trained the model; one in a hundred may look alike by chance.

    Up to 10,000 images of each are compared, and only if both are in memory: to read a Dataset once more could take as
    long as all the rest.
    """
    known, pictures = set(_pictures(train)), _pictures(calibration)
    shared = sum(picture in known for picture in pictures)
    if shared <= len(pictures) / 100:
        return None
    fix = "benign clients will look more foreign than these and may be accused, whatever the certificate says"
    return Finding("calibration", "images that did not train the model", f"{shared} of {len(pictures)} that did", fix)


def _pictures(data: Images) -> list[bytes]:
    """Digests of images, evenly spread; none of data that are not in memory."""
    x = data[0] if isinstance(data, tuple) else data
    if not isinstance(x, Tensor | np.ndarray | Mapping):
        return []
    parts = list(x.values()) if isinstance(x, Mapping) else [x]
    rows = np.unique(np.linspace(0, len(parts[0]) - 1, min(MOST, len(parts[0]))).astype(int))
    return [b"".join(_digest(part[row]) for part in parts) for row in rows.tolist()]


def _digest(row: Any) -> bytes:
    """Of some thousand numbers, in whatever precision they come."""
    numbers = inputs.to_tensor(row).detach().flatten()
    some = numbers[:: max(1, len(numbers) // ENOUGH_NUMBERS)].cpu().float()
    return sha256(some.numpy().tobytes()).digest()


def _guesses(split: Split, x: Inputs, like: Inputs, device: torch.device) -> Tensor:
    return run_on(split, inputs.to(inputs.check(x, like), device), "images")[1].argmax(1).cpu()


def _some(classes: list[int], most: int = 10) -> str:
    return "class " + ", ".join(map(str, classes[:most])) + (" and others" if len(classes) > most else "")
