"""What the sentinel does to clients who mean no harm, and what every policy costs them, query by query."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from queen.attacks.adaptive import carry_out, plain
from queen.bench.orders import OrderReplay
from queen.guard import Guard

ORDERS, ATTACK_ORDERS, ATTACK_QUERIES, RETRIES, ODD = 1000, 300, 400, 1000, 20
WINDOW = 100


def false_accusations(guard: Guard, test: tuple[Tensor, Tensor]) -> dict[str, dict[str, int]]:
    """Benign clients made of the held-out images, and how many of them the sentinel accuses.

    All of it is conditional on these images: a thousand orders of them are not a thousand independent clients.
    """
    replay, rng, truth = OrderReplay(guard, test[0]), np.random.default_rng(0), test[1].numpy()
    everyone = range(len(truth))
    clients = {
        "random_orders": [rng.permutation(everyone) for _ in range(ORDERS)],
        "one_predicted_class": [_shuffled(replay.labels == k, rng) for k in range(10) for _ in range(10)],
        "one_true_class": [_shuffled(truth == k, rng) for k in range(10) for _ in range(10)],
        # One odd picture for ever, and a stream in which each odd picture is sent again and again.
        "retry_loops": [np.full(RETRIES, i) for i in replay.oddest(ODD)],
        "retries_in_a_stream": [
            np.repeat(rng.permutation(everyone), 1 + 20 * np.isin(everyone, replay.oddest(ODD))) for _ in range(10)
        ],
    }
    return {name: {"clients": len(orders), "accused": replay.accused(orders)} for name, orders in clients.items()}


def _shuffled(chosen: np.ndarray[Any, np.dtype[np.bool_]], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    rows: np.ndarray[Any, Any] = rng.permutation(np.flatnonzero(chosen))
    return rows


def alarm_orders(guard: Guard, pool: Tensor) -> dict[str, Any]:
    """When the sentinel accuses an attacker within its first `ATTACK_QUERIES`, over random orders of a pool."""
    replay, rng = OrderReplay(guard, pool), np.random.default_rng(0)
    found = [replay.alarm_at(rng.permutation(len(pool))[:ATTACK_QUERIES]) for _ in range(ATTACK_ORDERS)]
    caught = sorted(at for at in found if at is not None)
    if not caught:
        return {"orders": len(found), "accused": 0}
    quantiles = np.percentile(caught, [50, 95])
    return {
        "orders": len(found),
        "accused": len(caught),
        "median": float(quantiles[0]),
        "p95": float(quantiles[1]),
        "worst": caught[-1],
    }


def cost_by_queries(guard: Guard, x: Tensor, y: Tensor) -> dict[str, list[float]]:
    """What one client gets in each window of 100 queries.

    `right`: share answered with the true label; `answered`: share answered at all; `l1`: mean distance of the answers
    from the honest ones.
    """
    loot = carry_out(plain(x), guard)
    honest = torch.cat([guard.measure(part).honest for part in x.split(32)])  # type: ignore[no-untyped-call]
    answered = torch.from_numpy(~loot.refused)
    right = ((loot.answers.argmax(1) == y) & answered).double()
    distance = (loot.answers - honest).abs().sum(1).double()
    windows = [slice(i, i + WINDOW) for i in range(0, len(x) - WINDOW + 1, WINDOW)]
    return {
        "queries": [w.stop for w in windows],
        "right": [right[w].mean().item() for w in windows],
        "answered": [answered[w].double().mean().item() for w in windows],
        "l1": [distance[w][answered[w]].mean().item() if answered[w].any() else 0.0 for w in windows],
    }
