"""What is served in the benchmark: a tiny network for digits, an untrained VGG16-BN, and questions for both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from queen import protect
from queen.bench.speed.measure import patterned_images, untrained_network
from queen.core.mapping import MapRecipe
from queen.options import Limits

WIDE = Limits(threshold=100.0, extra_answers=10**9)  # nobody runs out: a refusal would be cheaper than an answer
VALUES = (-20.0, 20.0)  # an input range that is checked and that noise does not leave
TRAIN, HELD_OUT = slice(0, 900), slice(900, None)


@dataclass(frozen=True)
class Served:
    """A bundle folder, and a file of questions for it as a client sends them.

    `body_size` is given where the questions are raw tensors, one after the other, and `headers` go with them.
    """

    bundle: Path
    questions: Path
    body_size: int | None = None
    headers: tuple[str, ...] = ()


def digits_model() -> nn.Module:
    """64 -> 32 -> 10: takes less time than reading the request."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def digits(rows: slice) -> tuple[Tensor, Tensor]:
    """Images (n, 1, 8, 8) from 0 to 1, and labels."""
    data = load_digits()
    x = torch.tensor(data.data / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    return x[rows], torch.tensor(data.target)[rows]


def make_digits(folder: Path, questions: int) -> Served:
    """Train, protect and save the tiny network; every question lies between two digits of one class."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x, y = digits(TRAIN)
        model = digits_model()
        optimiser = torch.optim.Adam(model.parameters(), 0.01)
        for _ in range(100):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimiser.step()
        known, asked = _halves(*digits(HELD_OUT))
        _save(model.eval(), (x, y), known, folder / "digits", "models:digits_model")
        fresh = mixtures(*asked, questions)
    file = folder / "digits.jsonl"
    file.write_bytes(b"\n".join(as_json(one) for one in fresh))
    return Served(folder / "digits", file)


def make_vgg(folder: Path, questions: int) -> Served:
    """Protect and save an untrained VGG16-BN: what it answers is worthless, how long it takes is not."""
    generator = torch.Generator().manual_seed(0)
    model = untrained_network(generator)
    known = patterned_images(400, generator)
    _save(model, patterned_images(240, generator), known, folder / "vgg16_bn", None)
    fresh = patterned_images(questions, generator)[0].contiguous()
    head = orjson.dumps({"inputs": [_described(fresh[:1], {"binary_data_size": 4 * fresh[0].numel()})]})
    file = folder / "vgg16_bn.tensors"
    file.write_bytes(b"".join(head + one.numpy().astype("<f4").tobytes() for one in fresh))
    size = len(head) + 4 * fresh[0].numel()
    return Served(folder / "vgg16_bn", file, size, (f"Inference-Header-Content-Length: {len(head)}",))


def _halves(x: Tensor, y: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    half = len(x) // 2
    return (x[:half], y[:half]), (x[half:], y[half:])


def mixtures(x: Tensor, y: Tensor, count: int) -> Tensor:
    """Images as natural as those given, and no two so alike that the sentinel takes them for repeats."""
    parts = []
    for k in y.unique():
        own = x[y == k]
        one, other = own[torch.randint(len(own), (2, -(-count // 10)))]
        share = 0.5 * torch.rand(len(one), 1, 1, 1)
        parts.append((1 - share) * one + share * other)
    return torch.cat(parts)[torch.randperm(count)]


def _save(
    model: nn.Module, known: tuple[Tensor, Tensor], held_out: tuple[Tensor, Tensor], folder: Path, factory: str | None
) -> None:
    guard = protect(
        model,
        known,
        calibration=held_out,
        policy="sentinel",
        limits=WIDE,
        mapping=MapRecipe(epochs=20),
        min_agreement=0,
        input_range=VALUES,
        factory=factory,
        progress=False,
    )
    guard.save(folder)


def as_json(image: Tensor) -> bytes:
    """A question in JSON about one image (1, 8, 8)."""
    flat = np.round(image.numpy().ravel().astype(np.float64), 4)
    return orjson.dumps({"inputs": [{**_described(image[None]), "data": flat.tolist()}]})


def _described(x: Tensor, parameters: dict[str, int] | None = None) -> dict[str, object]:
    shape: Sequence[int] = tuple(x.shape)
    return {"name": "input", "datatype": "FP32", "shape": shape} | ({"parameters": parameters} if parameters else {})
