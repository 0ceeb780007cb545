"""`queen demo --adaptive`: attackers who know the sentinel, and what each of them gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from queen.attacks.adaptive import (
    Loot,
    Plan,
    carry_out,
    cover,
    jittered,
    look_alike,
    many_accounts,
    plain,
    remap,
    shifted,
    warm_up,
)
from queen.demo.thieves import rob
from queen.guard import Guard
from queen.options import Group, Limits, Sentinel
from queen.progress import Progress

if TYPE_CHECKING:
    from queen.demo.run import Images

WARM_UP, LOOK_ALIKES, OWN_LABELS, FEW = 1000, 600, 100, 20
RATIOS = {1: 600, 3: 600, 10: 200}  # cover images per attack query, and attack queries at most
ACCOUNTS = (1, 10, 100, 1000)
JITTER = 0.05  # beyond what counts as the same picture


def try_adaptive(
    guard: Guard, images: Images, original: Tensor, seeds: Sequence[int], show: Progress
) -> dict[str, dict[str, Any]]:
    """Every attacker against a sentinel that has seen nobody yet: attacker name -> what it got.

    Each is trained twice: on all it got, cover included, and on the honest answers alone. Only
    directly: what is kept is honest, which labels alone say less of, or a decoy, of which they say nothing either.
    """
    with show.bar("adaptive attackers", 1) as advance:
        loot = _attack(guard, images)
        advance()
    kept: dict[tuple[str, str], tuple[Tensor, Tensor]] = {}
    for name, found in loot.items():
        kept[name, "all"] = found.training_set(~found.refused)
        kept[name, "honest"] = found.training_set(found.honest)
    own, remapped = _own_labels(loot["plain"], images.pool_labels["foreign"])
    kept["remap 100 labels", "all"] = remapped
    kept["remap 100 labels", "honest"] = kept["plain", "honest"]
    kept["100 own labels alone", "all"] = kept["100 own labels alone", "honest"] = own
    trained = rob(kept, images.test, original, seeds, show, kinds=("direct",))
    loot |= {"remap 100 labels": loot["plain"]}
    result = {}
    for name in dict.fromkeys(name for name, _ in kept):
        both = trained[name, "all"], trained[name, "honest"]
        everything, honest_only = (one["thief_direct"] for one in both)
        result[name] = {
            **(_facts(loot[name]) if name in loot else _NO_QUERIES),
            "thief_accuracy": max(a for a in (everything, honest_only, 0.0) if a is not None),
            "thief_all": everything,
            "thief_honest_only": honest_only,
            "seeds": list(seeds),
            "flags": sorted({flag for one in both for flag in one["flags"]}),
        }
    return result


_NO_QUERIES = {
    "queries": 0,
    "attack_queries": 0,
    "accounts": 0,
    "honest_answers": 0,
    "honest_cover": 0,
    "alarm_at": None,
}


def _facts(found: Loot) -> dict[str, Any]:
    plan = found.plan
    return {
        "queries": len(plan.images),
        "attack_queries": int(plan.attack.sum()),
        "accounts": len(np.unique(plan.accounts)),
        "honest_answers": found.honest_answers,
        "honest_cover": int((found.honest & ~plan.attack).sum()),
        "alarm_at": found.alarm_at,
    }


def _attack(guard: Guard, images: Images) -> dict[str, Loot]:
    pool, benign = images.pools["foreign"], shifted(images.pools["own_kind"])
    usual = _energy(guard, benign).argsort(stable=True)
    generator = torch.Generator().manual_seed(0)
    few = jittered(benign[usual[:FEW]], len(benign), JITTER, generator)
    plans: dict[str, Plan] = {
        "plain": plain(pool),
        "look-alike selection": look_alike(pool, _energy(guard, pool).tolist(), LOOK_ALIKES),
        "binarised": plain((pool > 0.5).float()),
        f"warm-up {WARM_UP}": warm_up(pool, benign[:WARM_UP]),
    }
    for ratio, attacks in RATIOS.items():
        some = pool[:attacks]
        plans[f"cover {ratio}:1"] = cover(some, benign, ratio)
        plans[f"cover {ratio}:1, central"] = cover(some, benign[usual[: len(usual) // 4]], ratio)
        plans[f"cover {ratio}:1, jittered copies"] = cover(some, few, ratio)
    loot = {name: carry_out(plan, guard.fresh()) for name, plan in plans.items()}
    both = guard.fresh(sentinel=Sentinel(scores=("energy", "knn")))
    for name in ("plain", "look-alike selection", "binarised"):
        loot[f"{name}, knn too"] = carry_out(plans[name], both.fresh())
    limits = guard.bundle.limits
    everyone = Group(limits=Limits(radius=limits.radius, threshold=limits.threshold), enforce_alarm=True)
    for accounts in ACCOUNTS:
        plan = many_accounts(plain(pool), accounts)
        loot[f"{accounts} accounts"] = carry_out(plan, guard.fresh())
        loot[f"{accounts} accounts, pooled"] = carry_out(plan, guard.fresh(groups={"all": everyone}), groups=["all"])
    return loot


def _energy(guard: Guard, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return torch.cat([-guard.bundle.split(part)[1].logsumexp(1) for part in x.split(256)])  # type: ignore[no-untyped-call]


def _own_labels(found: Loot, truth: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training sets of a thief who labels 100 images by hand: those alone, and with all decoys re-mapped by them."""
    rows = np.random.default_rng(0).permutation(len(truth))[:OWN_LABELS]
    labels = truth[torch.from_numpy(rows)]
    guess = remap(found, rows, labels)
    guess[torch.from_numpy(rows)] = labels
    hard = F.one_hot(guess, found.answers.shape[1]).float()
    return (found.plan.images[rows], hard[rows]), (found.plan.images, hard)
