"""How fast a thief trains: every step in Python, as a recorded CUDA graph, and compiled as well.

    python benchmarks/training/speed.py --device cuda --out results/training/h200.json

Random images, VGG16-BN, the thief's schedule. Each row is the median over the epochs after the first two, in which
networks are compiled and steps recorded; `seconds_before` is what those took. Two to three minutes on a large GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from queen.bench.code import describe_code
from queen.bench.trials.cell import hardware
from queen.training import Schedule, compiled, train
from queen.zoo import build, seeded

WARM_UP = 2  # epochs
KINDS = ("plain", "recorded", "compiled")


def measure(
    network: str, kind: str, *, batch: int, augment: bool, images: int, epochs: int, device: str
) -> dict[str, Any]:
    """Images per second of one way to train."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(images, 3, 32, 32, generator=generator).to(device)
    y = torch.randint(10, (images,), generator=generator).to(device)
    compiled.COMPILED_FROM = 1 if kind == "compiled" else 10**9
    with seeded(generator):
        model = build(network, classes=10, channels=3)
    times = [time.perf_counter()]

    def note_time(_: torch.nn.Module) -> None:
        if x.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter())

    schedule = Schedule(epochs=epochs + WARM_UP, batch=batch, lr=0.01, augment=augment, record=kind != "plain")
    train(model, x, y, schedule, generator, on_epoch=note_time)
    seconds = statistics.median(b - a for a, b in zip(times[WARM_UP:], times[WARM_UP + 1 :], strict=False))
    row = {"network": network, "kind": kind, "batch": batch, "augment": augment}
    per_epoch = images // batch * batch
    return row | {
        "images_per_second": round(per_epoch / seconds),
        "seconds_before": round(times[WARM_UP] - times[0], 1),
    }


def main() -> None:
    """Measure all cases and write them down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--epochs", type=int, default=5, help="that are timed")
    parser.add_argument("--network", default="vgg16_bn")
    parser.add_argument("--out", type=Path, help="JSON file for all figures")
    options = parser.parse_args()
    cases = [(kind, 512, augment) for kind in KINDS for augment in (False, True)] + [("compiled", 1024, True)]
    rows = []
    for kind, batch, augment in cases if options.device != "cpu" else cases[:2]:
        rows.append(
            measure(
                options.network,
                kind,
                batch=batch,
                augment=augment,
                images=options.images,
                epochs=options.epochs,
                device=options.device,
            )
        )
        print(rows[-1], flush=True)
    report = {"rows": rows, "hardware": hardware(torch.device(options.device)), "versions": describe_code()}
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report | {"torch": torch.__version__}, indent=1) + "\n")


if __name__ == "__main__":
    main()
