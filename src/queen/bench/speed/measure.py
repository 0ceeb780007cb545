"""What the guard costs: ratios and rates measured inside one run, so that they mean something on any machine."""

from __future__ import annotations

import statistics
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor, nn

from queen.bench.speed.timing import WARM_UP_PAIRS, describe_machine, paired_ratio, seconds_of
from queen.core.geometry import Geometry
from queen.core.mapping import MapRecipe
from queen.core.perturb import move_feature, reverse_gradient
from queen.fit.protect import protect
from queen.fit.shadows import ShadowRecipe
from queen.guard import Guard
from queen.ledger import Ledger, MemoryLedger, SqliteLedger
from queen.ledger.rows import make_rows
from queen.options import Limits
from queen.progress import Progress
from queen.recipe import Recipe
from queen.sentinel.bets import Bets, Betting, Test
from queen.sentinel.ranks import Ranking, robust_spreads
from queen.sentinel.scores import RANK, Reference
from queen.zoo import build, seeded

CLASSES = 10
REFERENCE_ROWS = 2000  # of the knn score, as a real training set gives
DIMS = 512
NETWORK = "vgg16_bn"
INPUT_RANGE = (-20.0, 20.0)  # is checked, and noise does not leave it


@dataclass(frozen=True)
class Effort:
    """How much is measured; `scale` divides the numbers of pairs, queries and rows."""

    scale: int = 1
    network: str = NETWORK
    shadow_network: str = "vgg11_bn"
    stored_clients: int = 100_000


WHOLE, QUICK = Effort(), Effort(scale=10)


def measure_speed(effort: Effort = WHOLE, *, progress: bool | None = None) -> dict[str, Any]:
    """Everything `queen speed` prints; less than the whole effort gives rough figures."""
    with Progress(progress) as show:
        stages: dict[str, Callable[[], Any]] = {
            "guard_ratio": lambda: guard_ratios(effort),
            "judge_per_second": lambda: judge_rates(effort),
            "sqlite_per_second": lambda: sqlite_rate(effort.scale),
            "sqlite_sentinel_per_second": lambda: sqlite_rate(effort.scale, watched=True),
            "rows_per_second": lambda: perturb_rates(effort.scale),
        }
        result = {name: stage() for name, stage in show.each("speed", stages.items(), len(stages))}
    result["guard_verdicts"] = result["guard_ratio"].pop("verdicts")
    result["slsqp_ratio"] = result["rows_per_second"].pop("slsqp_ratio")
    result["machine"] = describe_machine()
    result["quick"] = effort != WHOLE
    return result


def untrained_network(generator: torch.Generator, name: str = NETWORK) -> nn.Module:
    """A network of the zoo for images (n, 3, 32, 32): its answers are worthless, the time they take is not."""
    with seeded(generator):  # the verdicts, and so the work, depend on the weights
        model = build(name, classes=CLASSES, channels=3).eval().requires_grad_(False)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def patterned_images(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noisy copies of one pattern per class, and labels; training data and benign traffic both come from here."""
    labels = torch.randint(CLASSES, (count,), generator=generator)
    patterns = torch.randn(CLASSES, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    x = 0.5 * torch.randn(count, 3, 32, 32, generator=generator) + patterns[labels]
    return x.contiguous(memory_format=torch.channels_last), labels


def guard_ratios(effort: Effort) -> dict[str, Any]:
    """Guarded / undefended time for images of 32x32, case by case, and each case's verdicts.

    The cases are benign traffic, every query A and every query B; under the sentinel, benign traffic and nothing but
    decoys; and every query B with whole networks as shadow models.
    """
    generator = torch.Generator().manual_seed(0)
    model = untrained_network(generator, effort.network)
    heads, networks = _protect_twice(model, effort, generator)
    benign = _mostly_inside(heads, patterned_images(160, generator)[0])
    for_ever = {"policy": "sentinel", "on_alarm": "decoy", "after_alarm": None}  # a refusal would end the measurement
    watched = benign.fresh(**for_ever, limits=Limits(extra_answers=10**9))
    decoys = heads.fresh(**for_ever, on_spent="decoy", limits=Limits(threshold=0.0, extra_answers=0))
    cases = {
        "benign_b32": (benign, 32, 40),
        "benign_b1": (benign, 1, 300),
        "all_a_b32": (_everything_outside(heads), 32, 40),
        "all_a_b1": (_everything_outside(heads), 1, 300),
        "all_b_b32": (_everything_spent(heads), 32, 40),
        "all_b_b1": (_everything_spent(heads), 1, 300),
        "sentinel_b32": (watched, 32, 40),
        "sentinel_b1": (watched, 1, 300),
        "sentinel_decoys_b32": (_with_spreads(decoys, decoys.bundle.geometry.spreads * 1e-9), 32, 40),
        "sentinel_decoys_b1": (_with_spreads(decoys, decoys.bundle.geometry.spreads * 1e-9), 1, 300),
        "network_shadows_all_b_b32": (_everything_spent(networks), 32, 10),
    }
    result: dict[str, Any] = {"verdicts": {}}
    plain = torch.inference_mode()(lambda x: model(x).softmax(1))
    for name, (guard, batch, pairs) in cases.items():
        count = max(3, pairs // effort.scale) + WARM_UP_PAIRS
        batches = [patterned_images(batch, generator)[0] for _ in range(count)]
        counting = _CountingGuard(guard)
        result[name] = paired_ratio(counting, plain, batches)
        verdicts = counting.verdicts
        result["verdicts"][name] = {letter: count / verdicts.total() for letter, count in sorted(verdicts.items())}
    return result


def _protect_twice(model: nn.Module, effort: Effort, generator: torch.Generator) -> tuple[Guard, Guard]:
    """The model behind a guard with shadow heads, and behind one with shadow networks."""
    train, calibration = patterned_images(240, generator), patterned_images(400, generator)
    options: dict[str, Any] = {"min_agreement": 0, "input_range": INPUT_RANGE, "progress": False}
    heads = protect(model, train, calibration=calibration, policy="paper", mapping=MapRecipe(epochs=20), **options)
    heads = heads.with_bundle(replace(heads.bundle, reference=_whole_reference(heads.bundle.reference)))
    recipe = Recipe("queen.zoo:build", {"name": effort.shadow_network, "classes": CLASSES, "channels": 3})
    shadows = ShadowRecipe(kind="network", epochs=1, per_class=2, networks=[recipe])
    return heads, protect(model, train, policy="paper", mapping=MapRecipe(epochs=1), shadows=shadows, **options)


def _whole_reference(small: Reference) -> Reference:
    """The reference with as many axes and features as that of a real training set; what is added is near nobody."""
    dims, rank = small.axes.shape
    axes = torch.zeros(dims, RANK)
    axes[:, :rank] = small.axes
    coordinates = torch.zeros(RANK, REFERENCE_ROWS)
    coordinates[:rank, : small.coordinates.shape[1]] = small.coordinates
    return Reference(axes, coordinates)


class _CountingGuard:
    """Answers through a guard and counts the verdicts."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.verdicts: Counter[str] = Counter()

    def __call__(self, x: Tensor) -> None:
        self.verdicts.update(verdict.value for verdict in self.guard.answer(x, client="speed").verdicts)


def _mostly_inside(guard: Guard, x: Tensor) -> Guard:
    """The same guard with discs sized so that 30 % of fresh images lie outside, as with a trained classifier."""
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


def judge_rates(effort: Effort) -> dict[str, float]:
    """Queries per second of MemoryLedger.judge, and how the cost grows from one stored client to many."""
    rng = np.random.default_rng(0)
    result = {}
    for batch in (32, 4096):
        queries = 409_600 // effort.scale
        result[f"b{batch}"] = _judged_per_second(MemoryLedger(), rng, batch, queries)
        result[f"sentinel_b{batch}"] = _judged_per_second(
            MemoryLedger(), rng, batch, max(batch, queries // 10), watched=True
        )
    queries = max(4096, 40_960 // effort.scale)
    for clients, classes in ((64, CLASSES), (1, 100), (64, 100)):
        result[f"sentinel_b4096_{clients}_clients_{classes}_classes"] = _judged_per_second(
            MemoryLedger(), rng, 4096, queries, clients=clients, classes=classes, watched=True
        )
    many = MemoryLedger()
    for client in range(effort.stored_clients):
        many.judge(f"client {client}", np.array([client % CLASSES]), rng.normal(size=(1, 2)) * 0.5, Limits())
    queries = 32_000 // effort.scale
    crowded = [_judged_per_second(many, rng, 32, queries, f"new {i}") for i in range(5)]
    alone = [_judged_per_second(MemoryLedger(), rng, 32, queries, f"new {i}") for i in range(5)]
    result["cost_ratio_100000_clients"] = statistics.median(alone) / statistics.median(crowded)
    return result


def sqlite_rate(scale: int, *, watched: bool = False) -> float:
    """Queries per second of SqliteLedger at batch 32: every batch is on disk before it is answered."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        ledger = SqliteLedger(Path(folder) / "speed.sqlite")
        rng = np.random.default_rng(0)
        # A new client after every 20 batches, so that nearly every batch has something to write.
        clients = [f"client {i}" for i in range(max(1, 100 // scale))]
        rates = [_judged_per_second(ledger, rng, 32, 640, client, watched=watched) for client in clients]
        ledger.close()
    return statistics.harmonic_mean(rates)


def _judged_per_second(
    ledger: Ledger,
    rng: np.random.Generator,
    batch: int,
    queries: int,
    client: str = "speed",
    *,
    clients: int = 1,
    classes: int = CLASSES,
    watched: bool = False,
) -> float:
    """With `watched`, every query also places its bets, which lose, and is remembered. `clients` mix in every batch."""
    labels, points = rng.integers(0, classes, queries), rng.normal(size=(queries, 2)) * 0.8
    owner, names = rng.integers(0, clients, queries), tuple(f"{client} {i}" for i in range(clients))
    limits = Limits(extra_answers=10**9)
    slices = [slice(i, i + batch) for i in range(0, queries, batch)]
    bets = [_losing_bets(rng, labels[part], classes) if watched else None for part in slices]

    def judge_all() -> None:
        for part, bet in zip(slices, bets, strict=True):
            ledger.judge_rows(make_rows(names, owner[part], labels[part], points[part], limits, bets=bet))

    return queries / seconds_of(judge_all)


def _losing_bets(rng: np.random.Generator, labels: NDArray[np.int64], classes: int) -> Bets:
    rows = len(labels)
    sketches = [tuple(row) for row in (100 * rng.standard_normal((rows, 8), np.float32)).tolist()]
    digests = rng.integers(1, 2**62, rows).tolist()
    known, scores = rng.integers(0, classes, 5000), rng.standard_normal((5000, 3))
    betting = Betting(Ranking(known, scores, robust_spreads(known, scores, classes), classes, margin=0.2))
    lanes = betting.lanes(labels, rng.standard_normal((rows, 3)))
    return Bets(*lanes, digests, sketches, Test(id=1, scores=3, alpha=1e-3, delta=0.05), enforce=True)


@torch.inference_mode()
def perturb_rates(scale: int) -> dict[str, Any]:
    """Rows per second of both perturbations at K = 10, 512 features, batch 2,048; and against scipy's SLSQP."""
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
        seconds = [seconds_of(function) for _ in range(max(1, 200 // scale) + 3)]
        result[name] = rows / statistics.median(seconds[3:])
    few = [(honest[i].double().numpy(), pirate[i].double().numpy()) for i in range(max(1, 30 // scale))]
    slow = seconds_of(lambda: [_reverse_by_slsqp(*pair) for pair in few])
    result["slsqp_ratio"] = slow / len(few) * result["reverse_gradient"]
    return result


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
