"""What an undefended thief's accuracy depends on: one change at a time of how the victim and the thief are trained.

    python benchmarks/training/ablation.py --device cuda --data data --out results/training/ablation-h200.json

Takes the protectee, the thief and the budget of a spec (benchmarks/paper/cifar10.yaml), no defense, the attack
`direct`; every row is the same but for what it says. Rows run in parallel (--jobs). A few minutes on a large GPU.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from queen.bench.code import describe_code
from queen.bench.naming import as_json
from queen.bench.protectee import make_protectee
from queen.bench.spec import Spec, read_spec
from queen.bench.trials.cell import hardware, run_trial
from queen.bench.trials.trial import Trial
from queen.cache import Cache

SPEC = Path(__file__).parents[1] / "paper" / "cifar10.yaml"


@dataclass(frozen=True)
class Change:
    """What differs in one row: fields of the protectee, of the thief's schedule, and the thief's seed."""

    victim: Mapping[str, Any] = field(default_factory=dict)
    thief: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0


UNEXPOSED: Mapping[str, Any] = {"outliers": None}
PUBLISHED: Mapping[str, Any] = {
    "epochs": 30, "batch": 128, "momentum": 0.5, "weight_decay": 0.0, "decay": "step", "augment": False
}  # fmt: skip
CHANGES: Mapping[str, Change] = {
    "as in the spec": Change(),
    "another seed of the thief": Change(seed=1),
    "no outlier exposure": Change(UNEXPOSED),
    "no clipping": Change(thief={"clip": None}),
    "no outlier exposure, no clipping": Change(UNEXPOSED, {"clip": None}),
    "batches of 128": Change(thief={"batch": 128}),
    "batches of 128, a quarter of the rate": Change(thief={"batch": 128, "lr": 0.025}),
    "batches of 1,024": Change(thief={"batch": 1024}),
    "half the rate": Change(thief={"lr": 0.05}),
    "twice the rate": Change(thief={"lr": 0.2}),
    "four times the rate": Change(thief={"lr": 0.4}),
    "12 epochs (about 1,200 steps)": Change(thief={"epochs": 12, "min_steps": 1}),
    "40 epochs": Change(thief={"epochs": 40}),
    "no augmentation": Change(thief={"augment": False}),
    "as published": Change(thief=PUBLISHED),
    "40 epochs, no outlier exposure": Change(UNEXPOSED, {"epochs": 40}),
}


def measure(name: str, spec: Spec, cache: Cache, device: str, root: Path | None) -> dict[str, Any]:
    """The thief's and the victim's figures after one change."""
    change = CHANGES[name]
    thief = replace(spec.thief, schedule=replace(spec.thief.schedule, **change.thief))
    protectee = make_protectee(replace(spec.protectee, **change.victim), thief, cache, device, root)
    trial = Trial(
        column="none",
        defense="none",
        query="knockoff",
        attack="direct",
        budget=spec.budget,
        seed=change.seed,
        sizes=spec.sizes,
        utility=replace(spec.utility, clients=1),
    )
    result = run_trial(trial, protectee, cache)
    epochs, per_epoch = thief.schedule.plan(spec.budget)
    figures = {key: result["thief"][key] for key in ("accuracy", "best_accuracy", "agreement", "images_per_second")}
    return {
        "change": name,
        "victim": result["protectee"]["accuracy"],
        "confidence": protectee.victim.clean(protectee.pool[:5000]).amax(1).mean().item(),
        **figures,
        "steps": epochs * per_epoch,
        "schedule": as_json(thief.schedule),
        "flags": result["flags"],
        "seconds": result["seconds"],
    }


def main() -> None:
    """Measure all changes and write them down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", type=Path, default=SPEC)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", type=Path, help="folder of published image sets (or $QUEEN_DATA)")
    parser.add_argument("--cache", type=Path, help="folder for victims; forgotten afterwards, if not given")
    parser.add_argument("--out", type=Path, help="JSON file for all figures, written after every row")
    parser.add_argument("--jobs", type=int, default=1, help="rows at a time")
    parser.add_argument("--change", choices=CHANGES, action="append", help="only this row; may be repeated")
    options = parser.parse_args()
    spec, rows = read_spec(options.spec), []
    processes = ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn"))
    with tempfile.TemporaryDirectory() as folder, processes as pool:
        arguments = (spec, Cache(options.cache or Path(folder)), options.device, options.data)
        for measured in [pool.submit(measure, name, *arguments) for name in options.change or CHANGES]:
            row = measured.result()
            rows.append(row)
            name = row["change"]
            print(f"{name}: thief {row['accuracy']:.3f}, victim {row['victim']:.3f}, {row['steps']} steps", flush=True)
            report = {"rows": rows, "hardware": hardware(torch.device(options.device)), "versions": describe_code()}
            if options.out is not None:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(report | {"torch": torch.__version__}, indent=1) + "\n")


if __name__ == "__main__":
    main()
