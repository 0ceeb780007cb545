"""What the guard costs: ratios and rates measured inside one run, so that they mean something on any machine."""

from __future__ import annotations

import platform
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from queen.bench.defense_speed import PAPER, defense_costs
from queen.bench.rivals_speed import solver_ratios
from queen.bench.untrained import CLASSES, images, network
from queen.core.geometry import Geometry
from queen.core.mapping import MapRecipe
from queen.core.perturb import move_feature, reverse_gradient
from queen.fit.protect import ShadowRecipe, protect
from queen.guard import Guard
from queen.ledger import Ledger, MemoryLedger, SqliteLedger
from queen.ledger.rows import make_rows
from queen.options import Limits
from queen.progress import Progress
from queen.recipe import Recipe
from queen.sentinel.evidence import EXPONENTS, Bets

DIMS = 512
WARM_UP = 2  # pairs that do not count


def measure_speed(*, quick: bool = False, progress: bool | None = None) -> dict[str, Any]:
    """Everything `queen speed` prints; `quick` takes a tenth of the time and is rough."""
    scale = 10 if quick else 1
    with Progress(progress) as show:
        stages: dict[str, Callable[[], Any]] = {
            "guard_ratio": lambda: guard_ratios(scale),
            "judge_per_second": lambda: judge_rates(scale),
            "sqlite_per_second": lambda: sqlite_rate(scale),
            "sqlite_sentinel_per_second": lambda: sqlite_rate(scale, watched=True),
            "rows_per_second": lambda: perturb_rates(scale),
            "solver_ratio": lambda: solver_ratios(scale),
            "query_time": lambda: defense_costs(scale),
        }
        result = {name: stage() for name, stage in show.each("speed", stages.items(), len(stages))}
    result["guard_verdicts"] = result["guard_ratio"].pop("verdicts")
    result["slsqp_ratio"] = result["rows_per_second"].pop("slsqp_ratio")
    for name, value in result.pop("query_time").items():
        result[f"query_time_{name}"] = value
    result["paper_query_time_ratio"] = dict(PAPER)
    result["machine"] = {
        "threads": torch.get_num_threads(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    result["quick"] = quick
    return result


def paired_ratio(
    guarded: Callable[[Tensor], object], plain: Callable[[Tensor], object], batches: list[Tensor]
) -> float:
    """Median of guarded / plain over interleaved pairs on the same batch, so that a busy moment hits both sides."""
    ratios = []
    for pair, batch in enumerate(batches):
        seconds = {}
        for function in (guarded, plain) if pair % 2 else (plain, guarded):
            start = time.perf_counter()
            function(batch)
            seconds[function] = time.perf_counter() - start
        ratios.append(seconds[guarded] / seconds[plain])
    return statistics.median(ratios[WARM_UP:])


def guard_ratios(scale: int) -> dict[str, Any]:
    """Guard / undefended time for VGG16-BN on 32x32: benign traffic, every query A, every query B; with the sentinel,
    benign traffic and nothing but decoys."""
    generator = torch.Generator().manual_seed(0)
    model = network(generator)
    x, y = images(240, generator)
    held_out = images(400, generator)
    wide = (-20.0, 20.0)  # an input range that is checked and that noise does not leave
    heads = protect(
        model,
        (x, y),
        calibration=held_out,
        mapping=MapRecipe(epochs=20),
        min_agreement=0,
        input_range=wide,
        progress=False,
    )
    recipe = Recipe("queen.zoo:build", {"name": "vgg11_bn", "classes": CLASSES, "channels": 3})
    shadows = ShadowRecipe(kind="network", epochs=1, per_class=2, networks=[recipe])
    networks = protect(
        model,
        (x, y),
        mapping=MapRecipe(epochs=1),
        min_agreement=0,
        shadows=shadows,
        input_range=wide,
        progress=False,
    )
    benign = _mostly_inside(heads, images(160, generator)[0])
    watched = benign.fresh(policy="sentinel", limits=Limits(extra_answers=10**9))
    decoys = heads.fresh(policy="sentinel", on_spent="decoy", limits=Limits(threshold=0.0, extra_answers=0))
    cases = {
        "benign_b32": (benign, 32, 40),
        "benign_b1": (benign, 1, 120),
        "all_a_b32": (_everything_outside(heads), 32, 40),
        "all_a_b1": (_everything_outside(heads), 1, 120),
        "all_b_b32": (_everything_spent(heads), 32, 40),
        "all_b_b1": (_everything_spent(heads), 1, 120),
        "sentinel_b32": (watched, 32, 40),
        "sentinel_b1": (watched, 1, 120),
        "sentinel_decoys_b32": (_with_spreads(decoys, decoys.bundle.geometry.spreads * 1e-9), 32, 40),
        "sentinel_decoys_b1": (_with_spreads(decoys, decoys.bundle.geometry.spreads * 1e-9), 1, 120),
        "network_shadows_all_b_b32": (_everything_spent(networks), 32, 10),
    }
    result: dict[str, Any] = {"verdicts": {}}
    plain = torch.inference_mode()(lambda x: model(x).softmax(1))
    for name, (guard, batch, pairs) in cases.items():
        fresh = [images(batch, generator)[0] for _ in range(max(3, pairs // scale) + WARM_UP)]
        counted = _Counted(guard)
        result[name] = paired_ratio(counted, plain, fresh)
        result["verdicts"][name] = {k: v / counted.seen.total() for k, v in sorted(counted.seen.items())}
    return result


class _Counted:
    """A guard that counts its verdicts."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.seen: Counter[str] = Counter()

    def __call__(self, x: Tensor) -> None:
        self.seen.update(verdict.value for verdict in self.guard.answer(x, client="speed").verdicts)


def _mostly_inside(guard: Guard, x: Tensor) -> Guard:
    """The same guard with discs sized so that 30 % of fresh images lie outside, as of a trained classifier's."""
    with torch.inference_mode():
        features, logits = guard.bundle.split(x)
        points = guard.bundle.geometry.relative(guard.bundle.mapping(features), logits.argmax(1))
    wider = torch.linalg.vector_norm(points, dim=1).quantile(0.7)
    return _with_spreads(guard.fresh(limits=Limits()), guard.bundle.geometry.spreads * wider)


def _everything_outside(guard: Guard) -> Guard:
    """The same guard with discs so small that no query falls inside."""
    return _with_spreads(guard.fresh(limits=Limits()), guard.bundle.geometry.spreads * 1e-9)


def _everything_spent(guard: Guard) -> Guard:
    """The same guard with discs so large that every query falls inside, and nothing left to give."""
    spent = guard.fresh(limits=Limits(radius=1e-6, threshold=0.0))
    return _with_spreads(spent, guard.bundle.geometry.spreads * 1e3)


def _with_spreads(guard: Guard, spreads: Tensor) -> Guard:
    old = guard.bundle.geometry
    return guard.with_bundle(replace(guard.bundle, geometry=Geometry(old.centres, spreads, old.feature_centres)))


def judge_rates(scale: int) -> dict[str, float]:
    """Queries a second of MemoryLedger.judge, and how the cost grows from 1 to 100,000 stored clients."""
    rng = np.random.default_rng(0)
    result = {}
    for batch in (32, 4096):
        result[f"b{batch}"] = _judged_per_second(MemoryLedger(), rng, batch, 409_600 // scale)
        result[f"sentinel_b{batch}"] = _judged_per_second(
            MemoryLedger(), rng, batch, max(batch, 40_960 // scale), watched=True
        )
    many = MemoryLedger()
    for client in range(100_000):
        many.judge(f"client {client}", np.array([client % CLASSES]), rng.normal(size=(1, 2)) * 0.5, Limits())
    crowded = [_judged_per_second(many, rng, 32, 32_000 // scale, f"new {i}") for i in range(5)]
    alone = [_judged_per_second(MemoryLedger(), rng, 32, 32_000 // scale, f"new {i}") for i in range(5)]
    result["cost_ratio_100000_clients"] = statistics.median(alone) / statistics.median(crowded)
    return result


def sqlite_rate(scale: int, *, watched: bool = False) -> float:
    """Queries a second of SqliteLedger at batch 32: every batch is on disk before it is answered."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        ledger = SqliteLedger(Path(folder) / "speed.sqlite")
        # A new client after every 20 batches, so that nearly every batch has something to write.
        rng = np.random.default_rng(0)
        rates = [_judged_per_second(ledger, rng, 32, 640, f"client {i}", watched=watched) for i in range(100 // scale)]
        rate = statistics.harmonic_mean(rates)
        ledger.close()
    return rate


def _judged_per_second(
    ledger: Ledger, rng: np.random.Generator, batch: int, queries: int, client: str = "speed", *, watched: bool = False
) -> float:
    """With `watched`, every query also places a bet of ten factors (which loses) and is remembered."""
    labels, points = rng.integers(0, CLASSES, queries), rng.normal(size=(queries, 2)) * 0.8
    limits = Limits(extra_answers=10**9)
    slices = [slice(i, i + batch) for i in range(0, queries, batch)]
    bets = [_losing_bets(rng, batch) if watched else None for _ in slices]
    start = time.perf_counter()
    for part, bet in zip(slices, bets, strict=True):
        ledger.judge_rows(make_rows((client,), None, labels[part], points[part], limits, bets=bet))
    return queries / (time.perf_counter() - start)


def _losing_bets(rng: np.random.Generator, rows: int) -> Bets:
    sketches = [tuple(row) for row in (100 * rng.standard_normal((rows, 8), np.float32)).tolist()]
    digests = rng.integers(1, 2**62, rows).tolist()
    factors = [(0.9,) * len(EXPONENTS)] * rows
    return Bets(factors, digests, sketches, form="mixture", size=len(EXPONENTS), bar=1e4, enforce=True)


@torch.inference_mode()
def perturb_rates(scale: int) -> dict[str, Any]:
    """Rows a second of both perturbations at K = 10, 512 features, batch 2,048; and against scipy's SLSQP."""
    generator = torch.Generator().manual_seed(0)
    rows = 2048
    honest = (4 * torch.randn(rows, CLASSES, generator=generator)).softmax(1)
    pirate = torch.randn(rows, CLASSES, generator=generator).softmax(1)
    features = torch.randn(rows, DIMS, generator=generator).relu()
    centres = torch.randn(CLASSES, DIMS, generator=generator).relu()
    head = torch.nn.Linear(DIMS, CLASSES)
    logits, centre_logits = head(features), head(centres)
    functions: dict[str, Callable[[], object]] = {
        "reverse_gradient": lambda: reverse_gradient(honest, pirate),
        "move_feature": lambda: move_feature(features, logits, centres, centre_logits),
    }
    result: dict[str, Any] = {}
    for name, function in functions.items():
        result[name] = rows / _median_seconds(function, 200 // scale)
    start = time.perf_counter()
    for i in range(max(1, 30 // scale)):
        _reverse_by_slsqp(honest[i].double().numpy(), pirate[i].double().numpy())
    per_row = (time.perf_counter() - start) / max(1, 30 // scale)
    result["slsqp_ratio"] = per_row * result["reverse_gradient"]
    return result


def _median_seconds(function: Callable[[], object], repeats: int) -> float:
    seconds = []
    for _ in range(repeats + 3):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[3:])


def _reverse_by_slsqp(honest: Any, pirate: Any) -> Any:
    """The paper's optimisation problem handed to a solver, as its released code does."""
    target = 2 * pirate - honest
    target = target / np.linalg.norm(target)
    return minimize(
        lambda y: -(y @ target) / np.linalg.norm(y),
        np.full(len(honest), 1 / len(honest)),
        bounds=[(0, 1)] * len(honest),
        constraints={"type": "eq", "fun": lambda y: y.sum() - 1},
        method="SLSQP",
    ).x
