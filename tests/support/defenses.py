"""Every defense but QUEEN and the detectors, probability vectors of every kind, and a small victim."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from queen.defenses import (
    adaptive_misinformation,
    emdp,
    label_only,
    mad,
    modelguard_s,
    modelguard_w,
    none,
    reverse_sigmoid,
    rounding,
)
from queen.defenses.base import Victim
from queen.training import Schedule
from queen.zoo import build, seeded
from tests.support.guards import images, train_set, trained

F64 = torch.float64

MODULES = {
    "none": none,
    "label_only": label_only,
    "rounding": rounding,
    "reverse_sigmoid": reverse_sigmoid,
    "emdp": emdp,
    "modelguard_w": modelguard_w,
    "mad": mad,
    "adaptive_misinformation": adaptive_misinformation,
    "modelguard_s": modelguard_s,
}


def two_networks(perturb, y, **options):
    """A map that also takes another network's answers, here the same ones for the same rows."""
    return perturb(y, y.flip(1).mul(3).softmax(1), **options)


MAPS = {
    "label_only": label_only.perturb,
    "rounding": rounding.perturb,
    "reverse_sigmoid": reverse_sigmoid.perturb,
    "emdp": emdp.perturb,
    "emdp_inverse": emdp.invert,
    "modelguard_w": modelguard_w.perturb,
    "modelguard_w_near": partial(modelguard_w.perturb, epsilon=0.3),
    "mad": partial(two_networks, mad.perturb),
    "adaptive_misinformation": partial(two_networks, adaptive_misinformation.perturb),
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def simplex(rows: int, classes: int, seed: int = 0, sharpness: float = 3.0, dtype: torch.dtype = F64) -> Tensor:
    return (sharpness * torch.randn(rows, classes, generator=generator(seed), dtype=F64)).softmax(1).to(dtype)


def odd_rows(classes: int) -> Tensor:
    """One-hot, uniform, tied, nearly tied, nearly one-hot and with tiny numbers; (8, K) in float64."""
    first, last, flat = (torch.zeros(classes, dtype=F64) for _ in range(3))
    first[0] = last[-1] = 1.0
    flat[:] = 1 / classes
    two = (first + last) / 2
    tiny = torch.full((classes,), 1e-12, dtype=F64)
    tiny[classes // 2] = 1 - 1e-12 * (classes - 1)
    rows = [first, last, flat, two, 0.5001 * first + 0.4999 * last, 0.999 * last + 0.001 * flat, tiny]
    return torch.stack([*rows, 0.5 * two + 0.5 * flat])


def all_kinds(classes: int, rows: int = 60, dtype: torch.dtype = F64) -> Tensor:
    """Sharp, flat and odd rows, (4 * rows + 8, K)."""
    drawn = [simplex(rows, classes, seed, sharpness) for seed, sharpness in enumerate((0.01, 0.7, 3.0, 12.0))]
    return torch.cat([*drawn, odd_rows(classes)]).to(dtype)


@st.composite
def vectors(draw: st.DrawFn, least: int = 2, most: int = 12) -> np.ndarray:
    """One probability vector (K,) with ties, zeros and numbers of every size."""
    few = st.sampled_from([0.0, 0.0, 1e-9, 1e-4, 0.1, 0.1, 0.25, 1.0])
    numbers = st.one_of(few, st.floats(0, 1), st.floats(-30, 0).map(np.exp))
    weights = np.array(draw(st.lists(numbers, min_size=least, max_size=most)))
    if weights.sum() < 1e-6:
        weights = np.ones_like(weights)
    return weights / weights.sum()


def on_simplex(answers: Tensor) -> bool:
    tolerance = 1e-12 if answers.dtype == F64 else 1e-6
    sums = answers.double().sum(1)
    return bool(answers.isfinite().all() and (answers >= 0).all() and ((sums - 1).abs() <= tolerance).all())


def keeps_top(y: Tensor, answers: Tensor) -> bool:
    """Whether the top class of y is the only top class of the answers."""
    return bool(torch.equal(answers.argmax(1), y.argmax(1)) and not is_tied(answers))


def is_tied(answers: Tensor) -> bool:
    top = answers.topk(2, dim=1).values
    return bool((top[:, 0] == top[:, 1]).any())


def small_victim(**options: object) -> Victim:
    """A small trained CNN on 8x8 digits."""
    x, y = train_set()

    def make_network(generator: torch.Generator) -> torch.nn.Module:
        with seeded(generator):
            return build("small_cnn", classes=10, width=4)

    settings = {"schedule": Schedule(epochs=2), "train": (images(x), y), **options}
    return Victim(trained("cnn"), make_network=make_network, **settings)
