"""What a thief with few answers learns in so many steps: why schedules have `min_steps`.

    python benchmarks/training/few.py --data data --out results/training/few-cpu.json

An eighth as wide a VGG16-BN as the paper's learns so many CIFAR-10 images by their true labels, in batches of at most
512 as the thieves of benchmarks/paper/cifar10.yaml do. 685 answers are what a thief of the first sentinel kept, 1,000
images are those of JBDA-TR's first thief. Half an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch

from queen.bench.code import describe_code
from queen.bench.datasets import Images, load_set
from queen.bench.spec import read_spec
from queen.bench.trials.cell import hardware
from queen.training import Schedule, train
from queen.training.outputs import predict
from queen.zoo import PLAN_D, VGG, seeded

SPEC = Path(__file__).parents[1] / "paper" / "cifar10.yaml"
NARROW = " ".join(layer if layer == "M" else str(int(layer) // 8) for layer in PLAN_D.split())
ANSWERS, STEPS, SEEDS = (685, 1000), (20, 60, 240, 600, 1500), (0, 1)


def measure(x: torch.Tensor, y: torch.Tensor, test: Images, schedule: Schedule, seed: int) -> float:
    """A thief's accuracy on the test images after this schedule on these images."""
    generator = torch.Generator().manual_seed(seed)
    with seeded(generator):
        thief = VGG(NARROW, classes=10)
    found = predict(train(thief, x, y, schedule, generator), test.x)
    return (found == test.y).float().mean().item()


def main() -> None:
    """Measure every number of answers and steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of published image sets (or $QUEEN_DATA)")
    parser.add_argument("--out", type=Path, help="JSON file for all figures, written after every row")
    options = parser.parse_args()
    images, test = (
        load_set("cifar10", "train", root=options.data),
        load_set("cifar10", "test", root=options.data, count=2000),
    )
    base, rows = read_spec(SPEC).thief.schedule, []
    for answers in ANSWERS:
        x, y = images.x[:answers], images.y[:answers]
        for steps in STEPS:
            schedule = replace(base, epochs=1, batch=min(base.batch, answers), min_steps=steps)
            accuracies = [measure(x, y, test, schedule, seed) for seed in SEEDS]
            rows.append({"answers": answers, "steps": steps, "accuracies": accuracies})
            print(f"{answers:,} answers, {steps:,} steps: {', '.join(f'{a:.3f}' for a in accuracies)}", flush=True)
            report = {"rows": rows, "hardware": hardware(torch.device("cpu")), "versions": describe_code()}
            if options.out is not None:
                options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
