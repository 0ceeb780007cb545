"""What the rivals cost: their exact solvers against the usual ones, and their answers against no defense."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog
from torch import Tensor
from torch.nn import functional as F

from queen.bench.timing import seconds_of
from queen.defenses import mad, modelguard_w

BATCH = 20_000  # rows for our solvers
LP_ROWS = 40  # rows for the usual ones
FEATURES = 512  # of the imagined thief, as VGG16-BN has
ROUNDS = 5
WARM_UP = 1  # rounds that do not count


def solver_ratios(scale: int) -> dict[str, float]:
    """How many times faster a row is: ModelGuard-W than a linear program, MAD than with autograd.

    `scale` divides the number of rows. The imagined thief's features are given to both ways of MAD.
    """
    generator = torch.Generator().manual_seed(0)
    rows, few = max(1, BATCH // scale), max(2, LP_ROWS // scale)
    result = {}
    for classes in (10, 100):
        y = _softmax(rows, classes, 4.0, generator)
        programs = y[:few].numpy()
        usual = _each(lambda row: answer_by_lp(row, 1.0), programs)
        result[f"modelguard_w_k{classes}"] = _row_ratio(usual, few, lambda y=y: modelguard_w.perturb(y), rows)  # type: ignore[misc]
    y, p = _softmax(rows, 10, 4.0, generator), _softmax(rows, 10, 0.5, generator)
    features = torch.randn(few, FEATURES, generator=generator, dtype=torch.float64)
    layer = torch.nn.Linear(FEATURES, 10, dtype=torch.float64)
    pairs = [(y[i], features[i]) for i in range(few)]
    table = mad.all_sets(10, y)
    usual = _each(lambda pair: worst_by_autograd(pair[0], pair[1], layer, table), pairs)
    result["mad_k10"] = _row_ratio(usual, few, lambda: mad.perturb(y, p), rows)
    return result


def _row_ratio(usual: Callable[[], object], usual_rows: int, ours: Callable[[], object], rows: int) -> float:
    """The usual way's time for a row in times of ours, both medians over the same rounds."""
    seconds = [(seconds_of(usual), seconds_of(ours)) for _ in range(ROUNDS + WARM_UP)][WARM_UP:]
    slow, fast = (statistics.median(pair[side] for pair in seconds) for side in (0, 1))
    return slow / usual_rows / (fast / rows)


def _each(function: Callable[[Any], object], rows: Any) -> Callable[[], object]:
    return lambda: [function(row) for row in rows]


def _softmax(rows: int, classes: int, sharpness: float, generator: torch.Generator) -> Tensor:
    return (sharpness * torch.randn(rows, classes, generator=generator, dtype=torch.float64)).softmax(1)


def answer_by_lp(y: NDArray[np.float64], epsilon: float) -> NDArray[np.float64]:
    """ModelGuard-W's program (K,) -> (K,), handed to HiGHS as x = y + gain - loss, its smallest form."""
    classes, top = len(y), int(np.argmax(y))
    costs, ones = np.log(y + modelguard_w.SHIFT), np.ones(classes)
    behind = np.delete(np.eye(classes), top, axis=0)
    behind[:, top] = -1
    found = linprog(
        np.concatenate([costs, -costs]),
        A_ub=np.vstack([np.concatenate([ones, ones]), np.hstack([behind, -behind])]),
        b_ub=np.concatenate([[epsilon], -modelguard_w.MARGIN - behind @ y]),
        A_eq=np.concatenate([ones, -ones])[None],
        b_eq=[1 - y.sum()],
        bounds=np.column_stack([np.zeros(2 * classes), np.concatenate([1 - y, y])]),
        method="highs",
    )
    answer: NDArray[np.float64] = y + found.x[:classes] - found.x[classes:]
    return answer


def worst_by_autograd(y: Tensor, features: Tensor, layer: torch.nn.Linear, table: Tensor) -> Tensor:
    """MAD's candidate (K,) for y (K,) from the gradients of the last layer's weights: K backward passes a row.

    The candidates' norms and angles come from the K x K inner products of the gradients: only the gradients are slow.
    """
    losses = -F.log_softmax(layer(features), 0)
    gradients = [torch.autograd.grad(loss, layer.weight, retain_graph=True)[0].flatten() for loss in losses]
    top = int(y.argmax())
    order = [top, *range(top), *range(top + 1, len(y))]
    jacobian, target = torch.stack(gradients)[order], y[order]
    inner = jacobian @ jacobian.T
    turned = table @ inner
    cosines = turned @ target / ((turned * table).sum(1) * (target @ inner @ target)).sqrt()
    worst = torch.empty_like(y)
    worst[order] = table[cosines.argmin()]
    return worst
