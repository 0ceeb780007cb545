"""Which radius makes QUEEN work on a map: what becomes of a thief's queries and of a benign client, radius by radius.

    python benchmarks/training/radius.py --device cuda --data data --out results/training/radius-h200.json

Takes the protectee, the budget and one column of a spec (benchmarks/paper/cifar10.yaml, queen-paper) and replaces the
column's absolute radius. The scale of a map is arbitrary, so a radius that reverses many answers on one may reverse
none on another: choose the one that costs the benign client what the paper's does, 2 to 3 points. Trains no thief: a
minute on a large GPU once there is a victim.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from queen.bench.code import describe_code
from queen.bench.protectee import Protectee, make_protectee
from queen.bench.spec import Utility, read_spec
from queen.bench.trials.asking import interrogate
from queen.bench.trials.cell import hardware
from queen.bench.trials.trial import Trial
from queen.bench.trials.utility import measure_utility
from queen.cache import Cache

SPEC = Path(__file__).parents[1] / "paper" / "cifar10.yaml"
RADII = (0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1)


def measure(trial: Trial, protectee: Protectee, radius: float) -> dict[str, Any]:
    """Shares of the verdicts on a thief's queries, and how many points of accuracy a benign client loses."""
    trial = replace(trial, options={**trial.options, "absolute_radius": radius})
    asked = interrogate(trial, protectee)
    utility = measure_utility(trial.start_endpoint(protectee), protectee, trial.utility)["one_client"]
    return {
        "absolute_radius": radius,
        "thief": {letter: asked.verdicts.get(letter, 0) / asked.sent for letter in "ABCD"},
        "points_lost": 100 * (protectee.facts()["accuracy"] - utility["accuracy"]),
    }


def main() -> None:
    """Measure all radii and write them down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", type=Path, default=SPEC)
    parser.add_argument("--column", default="queen-paper", help="a column of the spec whose method is a guard")
    parser.add_argument("--radii", type=float, nargs="+", default=RADII)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", type=Path, help="folder of published image sets (or $QUEEN_DATA)")
    parser.add_argument("--cache", type=Path, help="folder for victims; forgotten afterwards, if not given")
    parser.add_argument("--out", type=Path, help="JSON file for all figures")
    options = parser.parse_args()
    spec = read_spec(options.spec)
    [cell, *_] = spec.select(columns=[options.column], queries=["knockoff"], attacks=["direct"])
    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(options.cache or Path(folder))
        protectee = make_protectee(spec.protectee, spec.thief, cache, options.device, options.data)
        trial = replace(Trial.of(cell), utility=Utility(clients=1, queries=1))
        rows = []
        for radius in options.radii:
            rows.append(measure(trial, protectee, radius))
            shares = ", ".join(f"{letter} {share:.3f}" for letter, share in rows[-1]["thief"].items())
            print(f"radius {radius:g}: thief {shares}; benign client loses {rows[-1]['points_lost']:.2f}", flush=True)
    report = {"rows": rows, "hardware": hardware(torch.device(options.device)), "versions": describe_code()}
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report | {"torch": torch.__version__}, indent=1) + "\n")


if __name__ == "__main__":
    main()
