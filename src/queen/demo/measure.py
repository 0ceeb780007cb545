"""What the demo measures beside the benchmark's cells: benign clients, alarms, costs, accounts and the 2-D map."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from queen.attacks.base import CountedOracle
from queen.attacks.strategies.disguise import energy
from queen.bench.orders import OrderReplay
from queen.bench.speed.timing import paired_ratio
from queen.defenses.base import Victim
from queen.guard import Guard
from queen.options import Group, Limits, Sentinel
from queen.plots import Queries

ORDERS, ATTACK_ORDERS, ATTACK_QUERIES, RETRIES, ODD = 1000, 300, 400, 1000, 20
WINDOW, BATCH = 100, 32
ACCOUNTS = (1, 10, 100, 1000)
SCORES = {
    "energy": ("energy",),
    "energy and knn": ("energy", "knn"),
    "energy, distance and knn": ("energy", "distance", "knn"),
}

MapPoints = tuple[NDArray[np.float64], NDArray[np.int64]]
"""Points (n, 2) of images on the map, and the labels (n,) that the model gives them."""


def count_false_accusations(guard: Guard, test: tuple[Tensor, Tensor]) -> dict[str, dict[str, int]]:
    """Simulated benign clients who send the test images, and how many of them the sentinel accuses.

    All of it is conditional on these images: a thousand orders of them are not a thousand independent clients.
    """
    replay, rng, truth = OrderReplay(guard, test[0]), np.random.default_rng(0), test[1].numpy()
    everyone, classes = range(len(truth)), range(guard.bundle.geometry.classes)

    def shuffle_where(chosen: NDArray[np.bool_]) -> NDArray[np.intp]:
        return rng.permutation(np.flatnonzero(chosen))

    clients = {
        "random_orders": [rng.permutation(everyone) for _ in range(ORDERS)],
        "one_predicted_class": [shuffle_where(replay.labels == k) for k in classes for _ in range(10)],
        "one_true_class": [shuffle_where(truth == k) for k in classes for _ in range(10)],
        # One odd picture for ever, and a stream in which each odd picture is sent again and again.
        "retry_loops": [np.full(RETRIES, i) for i in replay.oddest(ODD)],
        "retries_in_a_stream": [
            np.repeat(rng.permutation(everyone), 1 + 20 * np.isin(everyone, replay.oddest(ODD))) for _ in range(10)
        ],
    }
    return {name: {"clients": len(orders), "accused": replay.accused(orders)} for name, orders in clients.items()}


def alarm_orders(guard: Guard, pool: Tensor, queries: int = ATTACK_QUERIES) -> dict[str, Any]:
    """When the sentinel accuses an attacker within its first `queries`, over random orders of a pool."""
    replay, rng = OrderReplay(guard, pool), np.random.default_rng(0)
    alarms = [replay.alarm_at(rng.permutation(len(pool))[:queries]) for _ in range(ATTACK_ORDERS)]
    caught = sorted(at for at in alarms if at is not None)
    if not caught:
        return {"orders": len(alarms), "accused": 0}
    median, p95 = np.percentile(caught, [50, 95]).tolist()
    return {"orders": len(alarms), "accused": len(caught), "median": median, "p95": p95, "worst": caught[-1]}


def alarms_by_score(guard: Guard, pool: Tensor, queries: int) -> dict[str, dict[str, Any]]:
    """`alarm_orders` of a pool as it is, of its images that look most usual, and of all in black and white, by what the
    sentinel watches: kind of images -> scores -> figures."""
    usual = energy(guard.bundle.split.model, pool).argsort(stable=True)[:queries]
    kinds = {"plain": pool, "look-alike": pool[usual], "binarised": (pool > 0.5).to(pool)}
    guards = {name: guard.fresh(sentinel=Sentinel(scores=scores)) for name, scores in SCORES.items()}
    return {
        kind: {name: alarm_orders(watching, images, queries) for name, watching in guards.items()}
        for kind, images in kinds.items()
    }


def count_honest_by_accounts(guard: Guard, pool: Tensor) -> dict[str, dict[str, int]]:
    """Honest answers to a pool that is dealt to accounts in turn: number of accounts -> alone, and pooled in one group.

    The group has the limits of one client, and its alarm has consequences.
    """
    limits = guard.bundle.limits
    group = Group(limits=Limits(radius=limits.radius, threshold=limits.threshold), enforce_alarm=True)
    return {
        str(accounts): {
            "alone": _count_honest(guard.fresh(), pool, accounts, ()),
            "pooled": _count_honest(guard.fresh(groups={"all": group}), pool, accounts, ("all",)),
        }
        for accounts in ACCOUNTS
    }


def _count_honest(guard: Guard, pool: Tensor, accounts: int, groups: tuple[str, ...]) -> int:
    names = tuple(f"account {i}" for i in range(min(accounts, len(pool))))
    owner = [row % len(names) for row in range(len(pool))]
    batch = guard.measure(pool)
    judgement = guard.judge_rows(batch, names, owner, [guard.groups(groups)] * len(names))
    reply = guard.reply(batch, judgement, [names[i] for i in owner])
    return int(reply.honest.sum())


def cost_by_queries(guard: Guard, x: Tensor, y: Tensor) -> dict[str, list[float]]:
    """What one client gets in each window of 100 queries.

    `right`: share answered with the true label; `answered`: share answered at all; `l1`: mean distance of the answers
    from the honest ones.
    """
    answers, answered = CountedOracle(guard.as_client, len(x), BATCH).ask(x, "benign")
    honest = torch.cat([guard.measure(part).honest for part in x.split(BATCH)])  # type: ignore[no-untyped-call]
    right = ((answers.argmax(1) == y) & answered).double()
    distance = (answers - honest).abs().sum(1).double()
    windows = [slice(i, i + WINDOW) for i in range(0, len(x) - WINDOW + 1, WINDOW)]
    return {
        "queries": [w.stop for w in windows],
        "right": [right[w].mean().item() for w in windows],
        "answered": [answered[w].double().mean().item() for w in windows],
        "l1": [distance[w][answered[w]].mean().item() if answered[w].any() else 0.0 for w in windows],
    }


def time_ratio(guard: Guard, victim: Victim, x: Tensor) -> float:
    """Guarded / undefended time of one batch of 32."""
    served = guard.fresh().with_options(on_spent="decoy")  # a refusal would be an error here
    batches = [*x[:512].split(BATCH)] * 3  # type: ignore[no-untyped-call]
    return paired_ratio(lambda batch: served.answer(batch, client="time"), victim.clean, batches)


@torch.inference_mode()
def place_on_map(guard: Guard, x: Tensor) -> MapPoints:
    """Where images fall on the map."""
    features, logits = guard.bundle.split(x)
    return guard.bundle.mapping(features).double().numpy(), logits.argmax(1).numpy()


def judge_queries(guard: Guard, pool: Tensor) -> Queries:
    """Where an attacker's queries fall on the map, and the verdict on each."""
    reply = guard.answer(pool, client="map")
    return Queries(*place_on_map(guard, pool), "".join(verdict.value for verdict in reply.verdicts))
