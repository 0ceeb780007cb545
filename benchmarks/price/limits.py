"""What limits cost a benign client of one day, on the victim of the CIFAR-10 benchmark.

    python benchmarks/price/limits.py --data FOLDER --cache FOLDER --json > results/limits/cifar10.json

For each of some limits a client sends all 10,000 test images within one day, in one order, and others send those that
the model takes for one class alone: the share refused, and how many answers have another label than the model's own.
The victim is trained, or taken from the cache (docs/data.md says how to carry one).

With --save the guarded victim and its images are written instead, so that its copies can be priced:

    python benchmarks/price/limits.py --data FOLDER --save build/cifar10 --device cuda
    queen price build/cifar10/bundle --data build/cifar10/train.npz --calibration build/cifar10/held_out.npz \\
      --device cuda --jobs 6 --json > results/price/cifar10.json
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from queen.bench.code import describe_code
from queen.bench.protectee import Protectee, make_protectee
from queen.bench.spec import Spec, read_spec
from queen.bench.trials.cell import hardware
from queen.bundle.bundle import Bundle
from queen.bundle.store import save_bundle
from queen.cache import Cache
from queen.defenses.queen import GuardedEndpoint, load_or_fit
from queen.errors import RefusedError
from queen.options import SENTINEL_LIMITS, Limits
from queen.perturber import MeasuredBatch

SPEC = Path(__file__).parents[1] / "paper/cifar10.yaml"
BATCH, SECRET = 500, bytes(32)
CHOICES = {
    "default": SENTINEL_LIMITS,
    "1,000 a day": replace(SENTINEL_LIMITS, extra_answers="1000/day"),
    "100 a day": replace(SENTINEL_LIMITS, extra_answers="100/day"),
    "2,000 for life, class budgets": Limits(),
}


def fit(spec: Spec, protectee: Protectee) -> Bundle:
    """The benchmark's fit of QUEEN around the victim."""
    options = spec.select(columns=["queen-sentinel"])[0].options
    names = ("map_epochs", "map_batch", "shadow_models", "shadow_kind", "seed")
    return load_or_fit(protectee.victim, **{name: options[name] for name in names})


def send(bundle: Bundle, batches: Sequence[MeasuredBatch]) -> dict[str, Any]:
    """What one client gets who sends these batches within a day."""
    guard, verdicts, wrong = GuardedEndpoint(bundle, SECRET).guard, Counter[str](), 0
    for batch in batches:
        try:
            reply = guard.respond(batch, guard.judge(batch, "benign"), "benign")
        except RefusedError as refusal:
            reply = refusal.reply
        answered = torch.from_numpy(~reply.refused)
        wrong += int((reply.probabilities.argmax(1) != batch.honest.argmax(1)).cpu()[answered].sum())
        verdicts.update(verdict.value for verdict in reply.verdicts)
        verdicts.update(refused=int(reply.refused.sum()), honest=int(reply.honest.sum()))
    sent = sum(len(batch.honest) for batch in batches)
    return {"queries": sent, "refused": verdicts["refused"] / sent, "wrong_labels": wrong, "verdicts": verdicts}


def measure(bundle: Bundle, x: Tensor) -> Iterator[dict[str, Any]]:
    """One row for each of the limits: a client of all classes, and the one of a single class that is refused most.

    What the model says of a batch does not depend on limits, so it is asked once.
    """
    guard = GuardedEndpoint(bundle.with_options(policy="sentinel"), SECRET).guard

    def batches(some: Tensor) -> list[MeasuredBatch]:
        return [guard.measure(part) for part in some.split(BATCH)]  # type: ignore[no-untyped-call]

    everything = batches(x)
    labels = torch.cat([batch.honest.argmax(1) for batch in everything])
    classes = [batches(x[labels == label]) for label in labels.unique()]
    for name, limits in CHOICES.items():
        limited = bundle.with_options(policy="sentinel", limits=limits)
        yield {
            "name": name,
            "limits": {key: getattr(limits, key) for key in ("radius", "threshold", "extra_answers")},
            "all_classes": send(limited, everything),
            "one_class": max((send(limited, one) for one in classes), key=lambda one: one["refused"]),
        }


def save(bundle: Bundle, protectee: Protectee, folder: Path) -> None:
    """The bundle under the sentinel, what trained the victim, and the images of its kind that did not."""
    save_bundle(bundle.with_options(policy="sentinel"), folder / "bundle")
    victim = protectee.victim
    if victim.calibration is None or protectee.benign is None:
        raise SystemExit("expected a spec that sets calibration and benign images aside")
    held_out = [torch.cat(parts) for parts in zip(victim.calibration, protectee.benign, strict=True)]
    for name, (x, y) in {"train": victim.train, "held_out": held_out}.items():
        np.savez(folder / f"{name}.npz", x=x.cpu().numpy(), y=y.cpu().numpy())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the image sets, or $QUEEN_DATA")
    parser.add_argument("--cache", type=Path, default=Path("build/limits"), help="folder of the victim and the fit")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--save", type=Path, help="write bundle and images into this folder, and measure nothing")
    parser.add_argument("--json", action="store_true", help="all figures, for results/")
    options = parser.parse_args()
    spec = read_spec(SPEC).for_seed(0)
    protectee = make_protectee(spec.protectee, spec.thief, Cache(options.cache), options.device, options.data)
    bundle = fit(spec, protectee)
    if options.save:
        save(bundle, protectee, options.save)
        return
    report = {
        "protectee": protectee.facts(),
        "rows": list(measure(bundle, protectee.test[0])),
        "hardware": hardware(protectee.pool.device),
        "versions": describe_code(),
    }
    if options.json:
        print(json.dumps(report, indent=1))
        return
    for row in report["rows"]:
        print(
            f"{row['name']:32} {row['all_classes']['refused']:.1%} refused, one class {row['one_class']['refused']:.1%}"
        )


if __name__ == "__main__":
    main()
