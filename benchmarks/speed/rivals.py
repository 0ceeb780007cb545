"""How fast the rival defenses are here: their exact solvers against the usual ones, and 1,000 queries behind each.

    python benchmarks/speed/rivals.py --json > results/speed/rivals-cpu-2-cores.json

Figures are ratios inside one run; `--quick` takes a tenth of the time and is rough.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog
from torch import Tensor, nn
from torch.nn import functional as F

from queen.bench.render.markdown import markdown_table
from queen.bench.speed.measure import NETWORK, patterned_images, untrained_network
from queen.bench.speed.timing import describe_machine, ratios_to_none, seconds_of, seconds_per_thousand, time_in_turns
from queen.bench.studies.runtime import PAPER_RATIOS
from queen.cache import Cache
from queen.defenses import DEFENSES, mad, modelguard_w
from queen.defenses.base import Endpoint, Victim
from queen.defenses.queen import GuardedEndpoint
from queen.training import Schedule
from queen.types import Oracle

SOLVER_ROWS = 20_000  # for our solvers
USUAL_ROWS = 40  # for the usual ones
FEATURES = 512  # of the imagined thief, as VGG16-BN has
ROUNDS, WARM_UP_ROUNDS = 5, 1
BATCH = 32  # queries that a client sends at a time
TURNS = 3
SOLVERS = {
    "modelguard_w_k10": "ModelGuard-W at K = 10, times faster than HiGHS row by row",
    "modelguard_w_k100": "ModelGuard-W at K = 100, times faster than HiGHS row by row",
    "mad_k10": "MAD at K = 10, times faster than with autograd row by row",
}


def solver_ratios(scale: int) -> dict[str, float]:
    """How many times faster our solvers answer a row: ModelGuard-W than a linear program, MAD than with autograd.

    `scale` divides the number of rows. Both ways of MAD get the features of the imagined thief.
    """
    generator = torch.Generator().manual_seed(0)
    rows, few = max(1, SOLVER_ROWS // scale), max(2, USUAL_ROWS // scale)
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
    """Time per row of the usual way, divided by that of ours; both are medians over the same rounds."""
    seconds = [(seconds_of(usual), seconds_of(ours)) for _ in range(ROUNDS + WARM_UP_ROUNDS)][WARM_UP_ROUNDS:]
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
    solution = linprog(
        np.concatenate([costs, -costs]),
        A_ub=np.vstack([np.concatenate([ones, ones]), np.hstack([behind, -behind])]),
        b_ub=np.concatenate([[epsilon], -modelguard_w.MARGIN - behind @ y]),
        A_eq=np.concatenate([ones, -ones])[None],
        b_eq=[1 - y.sum()],
        bounds=np.column_stack([np.zeros(2 * classes), np.concatenate([1 - y, y])]),
        method="highs",
    )
    answer: NDArray[np.float64] = y + solution.x[:classes] - solution.x[classes:]
    return answer


def worst_by_autograd(y: Tensor, features: Tensor, layer: torch.nn.Linear, table: Tensor) -> Tensor:
    """MAD's candidate (K,) for y (K,) from the gradients of the last layer's weights: K backward passes per row.

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


@dataclass(frozen=True)
class InBatches:
    """A service whose clients send `BATCH` queries at a time."""

    service: Endpoint

    def client(self, name: str) -> Oracle:
        """The same answers (n, K), batch by batch."""
        oracle = self.service.client(name)
        return lambda x: torch.cat([oracle(part) for part in x.split(BATCH)])  # type: ignore[no-untyped-call]


def defense_costs(scale: int, network: str = NETWORK) -> dict[str, Any]:
    """Time of 1,000 queries behind every defense, by turns on the same queries of new clients; `scale` takes fewer.

    The victim is untrained. Its answers change nothing but QUEEN's verdicts, whose shares are given, and how many
    answers ModelGuard-S has to remember.
    """
    generator = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        services = _start_defenses(scale, network, Path(folder), generator)
        x, _ = patterned_images(max(BATCH, 1000 // scale**2), generator)
        seconds = time_in_turns({name: InBatches(one) for name, one in services.items()}, x, max(1, TURNS // scale))
    return {
        "query_time_ratio": ratios_to_none(seconds),
        "query_time_seconds": seconds_per_thousand(seconds, len(x)),
        "query_time_verdicts": {
            name: _shares(one) for name, one in services.items() if isinstance(one, GuardedEndpoint)
        },
        "query_time_network": f"{network}, untrained, {len(x)} images of 32x32, {BATCH} at a time",
    }


def _start_defenses(scale: int, network: str, folder: Path, generator: torch.Generator) -> dict[str, Endpoint]:
    """Every defense around the same victim; those that must learn something learn it badly and fast."""

    def make_network(generator: torch.Generator) -> nn.Module:
        return untrained_network(generator, network).requires_grad_(True)

    victim = Victim(
        untrained_network(generator, network),
        patterned_images(max(40, 240 // scale), generator),
        make_network,
        Schedule(epochs=1),
        calibration=patterned_images(max(60, 400 // scale), generator),
        outliers=patterned_images(BATCH, generator)[0],
        cache=Cache(folder),
    )
    return {
        name: defense.start(victim, generator, **({"map_epochs": 20} if "map_epochs" in defense.options else {}))
        for name, defense in DEFENSES.items()
        if "life" not in defense.options  # a detector: it is calibrated on traffic, which an untrained network has not
    }


def _shares(service: GuardedEndpoint) -> dict[str, float]:
    letters = {name: count for name, count in service.verdicts.items() if len(name) == 1}
    return {name: count / sum(letters.values()) for name, count in letters.items()}


def measure_rivals(*, quick: bool = False) -> dict[str, Any]:
    """Everything this program prints."""
    scale = 10 if quick else 1
    return {
        "solver_ratio": solver_ratios(scale),
        **defense_costs(scale),
        "paper_query_time_ratio": dict(PAPER_RATIOS),
        "machine": describe_machine(),
        "quick": quick,
    }


def to_text(result: dict[str, Any]) -> str:
    """Both tables for people."""
    solvers = markdown_table(
        ("solver", "ratio"), [(SOLVERS[name], f"{ratio:,.0f}") for name, ratio in result["solver_ratio"].items()]
    )
    seconds, paper = result["query_time_seconds"], result["paper_query_time_ratio"]
    rows = [
        (name, f"{seconds[name]:.2f}", f"{ratio:.3f}", f"{paper[name]:g}" if name in paper else "")
        for name, ratio in result["query_time_ratio"].items()
    ]
    defenses = markdown_table(("defense", "seconds", "x none", "paper"), rows)
    return f"{solvers}\n1,000 queries behind each defense; {result['query_time_network']}\n\n{defenses}"


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the time, rough")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args(arguments)
    result = measure_rivals(quick=options.quick)
    print(json.dumps(result, indent=1) if options.json else to_text(result))


if __name__ == "__main__":
    main(sys.argv[1:])
