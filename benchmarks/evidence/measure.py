"""What the sentinel sees of a victim's clients and thieves: predicted labels and scores, one .npz per victim.

    PYTHONPATH=src:. python3 -m benchmarks.evidence.measure cifar10 --data FOLDER --out build/evidence [--device cuda]

Trains the victim (`victims`), protects it with `queen.protect`, and measures calibration, held-out and foreign images,
and held-out images changed as honest clients' cameras change them. `replay` makes the results of these files. MNIST
takes minutes on a CPU, CIFAR minutes on a GPU. FOLDER holds the image sets of docs/data.md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

import queen
from benchmarks.evidence.victims import VICTIMS, Victim
from queen.bundle.bundle import Bundle
from queen.sentinel.conditions import apply
from queen.sentinel.scores import all_scores
from queen.training import one_thread

CHANGED = 5000  # held-out images that are changed
Arrays = dict[str, NDArray[Any]]


def _levels(low: float, high: float) -> list[float]:
    return np.linspace(low, high, 8).round(4).tolist()


CHANGES: Mapping[str, Mapping[str, Sequence[float]]] = {  # kind: range of strengths: those that clients draw from
    "brightness": {".95 to 1": _levels(0.95, 1), ".8 to 1": _levels(0.8, 1)},
    "contrast": {".9 to 1": _levels(0.9, 1), ".7 to 1": _levels(0.7, 1)},
    "noise": {"up to .03": _levels(0.001, 0.03), "up to .1": _levels(0.01, 0.1)},
    "blur": {"up to .2": _levels(0.05, 0.2), "up to .5": _levels(0.1, 0.5)},
    "jpeg": {"95 to 80": _levels(80, 95), "80 to 30": _levels(30, 80)},
}


def changed(x: Tensor, kind: str, strength: float) -> Tensor:
    """Images (n, C, H, W) in 0..1 as a client's camera might change them, in 0..1 again."""
    if kind == "blur":
        return _blurred(x, strength)
    return apply(f"{kind}:{strength}", x, torch.Generator().manual_seed(0))


def _blurred(x: Tensor, sigma: float) -> Tensor:
    """Gaussian blur of `sigma` pixels over 5 x 5 pixels."""
    weights = torch.exp(-0.5 * (torch.arange(-2, 3, device=x.device) / sigma) ** 2)
    weights /= weights.sum()
    kernel = torch.outer(weights, weights).expand(x.shape[1], 1, 5, 5)
    return F.conv2d(F.pad(x, (2,) * 4, mode="replicate"), kernel, groups=x.shape[1])


@torch.inference_mode()
def measured(bundle: Bundle, x: Tensor, name: str, batch: int = 1000) -> Arrays:
    """Predicted labels (n,) and all scores (n, 4) of images, under names that begin with `name`."""
    labels, scores = [], []
    for part in x.split(batch):
        features, logits = (t.float() for t in bundle.split(part))
        predicted = logits.argmax(1)
        points = bundle.geometry.relative(bundle.mapping(features), predicted)
        labels.append(predicted)
        scores.append(all_scores(features, logits, points, bundle.reference))
    return _named(name, torch.cat(labels), torch.cat(scores))


def _named(name: str, labels: Tensor, scores: Tensor) -> Arrays:
    return {
        f"{name}/labels": labels.cpu().numpy().astype(np.uint8),
        f"{name}/scores": scores.float().cpu().numpy(),
    }


def measure(victim: Victim) -> Arrays:
    """Everything that `replay` needs of a victim."""
    guard = queen.protect(
        victim.model,
        victim.train,
        calibration=victim.calibration,
        policy="sentinel",
        mapping=victim.map,
        min_agreement=0.0,  # a plane has no room for a hundred classes: part of what is measured
        secret=bytes(32),
        progress=False,
    )
    bundle, calibration = guard.bundle, guard.bundle.calibration
    if calibration is None:
        raise ValueError("the guard must be calibrated")
    arrays = _named("calibration", calibration.labels, calibration.scores)
    x, y = victim.held_out
    arrays |= measured(bundle, x, "held out")
    right = arrays["held out/labels"] == y.cpu().numpy()
    arrays |= {"held out/truth": y.cpu().numpy().astype(np.uint8)}
    for name, pool in victim.pools.items():
        arrays |= measured(bundle, pool, f"pool {name}")
    accuracy = {}
    for kind, ranges in CHANGES.items():
        for strength in sorted({level for levels in ranges.values() for level in levels}):
            name = f"{kind} {strength}"
            arrays |= measured(bundle, changed(x[:CHANGED], kind, strength), name)
            accuracy[name] = float((arrays[f"{name}/labels"] == y[:CHANGED].cpu().numpy()).mean())
    about = {
        "about": victim.about,
        "sources": list(victim.sources),
        "classes": bundle.geometry.classes,
        "accuracy": float(right.mean()),
        "accuracy_changed": accuracy,
        "map_agreement": bundle.report["agreement"],
        "images": {name: len(getattr(victim, name)[1]) for name in ("train", "calibration", "held_out")}
        | {"same_draw": len(y) if victim.same_draw is None else victim.same_draw},
        "torch": torch.__version__,
    }
    return arrays | {"about": np.array(json.dumps(about))}


def main() -> None:
    """Measure the victims named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("victims", nargs="+", choices=VICTIMS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("build/evidence"))
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for name in asked.victims:
        start = time.perf_counter()
        with one_thread():
            victim = VICTIMS[name](asked.data, asked.device)
            taught = time.perf_counter()
            arrays = measure(victim)
        np.savez_compressed(asked.out / f"{name}.npz", **arrays)
        print(name, f"{taught - start:.0f} s to teach, {time.perf_counter() - taught:.0f} s to measure")
        print(str(arrays["about"])[:600], flush=True)


if __name__ == "__main__":
    main()
