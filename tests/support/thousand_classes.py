"""A program that evaluates a model of 1,000 classes on memory-mapped images of 64 pixels, within so many bytes.

`python -m tests.support.thousand_classes BYTES` prints a line per result.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn

from queen.attacks.base import Sizes
from queen.bench import evaluate
from queen.bench.spec import Utility
from queen.training import Schedule
from queen.zoo import seeded

CLASSES = 1000
COUNTS = {"train": 5 * CLASSES, "calibration": 2 * CLASSES, "test": 200, "pool": 500}


def network(generator: torch.Generator) -> nn.Module:
    with seeded(generator):
        return nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def write_images(path: Path, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of a pattern per class under noise, and their labels; the images stay on disk."""
    rng, labels = np.random.default_rng(count), np.arange(count) % CLASSES
    patterns = np.random.default_rng(0).random((CLASSES, 3, 8, 8), dtype=np.float32)
    images = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(count, 3, 64, 64))
    for start in range(0, count, 500):
        clear = patterns[labels[start : start + 500]].repeat(8, 2).repeat(8, 3)
        images[start : start + 500] = (clear + rng.random(clear.shape, dtype=np.float32)) / 2
    del images  # written
    return np.load(path, mmap_mode="r"), labels


def main(most_bytes: int) -> None:
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    try:
        torch.ones(2, Sizes().table, CLASSES)
    except RuntimeError:
        print("the published table does not fit")
    with TemporaryDirectory() as folder:
        sets = {name: write_images(Path(folder, f"{name}.npy"), count) for name, count in COUNTS.items()}
        model, quick = network(torch.Generator().manual_seed(1)), {"map_epochs": 1, "shadow_models": 1}
        common = {"budget": 20, "schedule": Schedule(epochs=1), "utility": Utility(clients=1), "progress": False}
        for attack, columns in {
            "pbayes": {"none": {}},
            "direct": {"mad": {}, "modelguard_w": {}, "queen-sentinel": quick},
        }.items():
            for one in evaluate(model, defenses=columns, attacks=[attack], **sets, **common).results:
                print(one["column"], one["attack"], one["protectee"]["classes"])


if __name__ == "__main__":
    main(int(sys.argv[1]))
