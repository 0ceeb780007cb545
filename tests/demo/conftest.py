from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import queen.demo.benign
import queen.demo.run as module
import queen.demo.thieves
from queen.bench.datasets import mnist5k
from queen.demo import Demo, run_demo
from queen.demo.run import load_images

Small = Callable[[], Demo]
torch.set_num_threads(1)  # the last digits of a training run depend on it


@pytest.fixture(scope="session")
def mnist() -> tuple[Tensor, Tensor]:
    return mnist5k()


def quick(patch: pytest.MonkeyPatch) -> None:
    """Short trainings in this process, and few simulated clients."""
    patch.setattr(queen.demo.thieves, "EPOCHS", 7)
    patch.setattr(queen.demo.thieves, "MIN_STEPS", 40)
    patch.setattr(queen.demo.thieves.os, "cpu_count", lambda: 1)
    patch.setattr(queen.demo.benign, "ORDERS", 30)
    patch.setattr(queen.demo.benign, "ATTACK_ORDERS", 30)


@pytest.fixture(scope="session")
def small_demo(mnist) -> Small:
    """The real demo on fewer images and with shorter training, in this process."""

    def run() -> Demo:
        (x, y), (other, labels) = mnist, module.digits(28, margin=4)
        with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
            patch.setattr(module, "mnist5k", lambda: (x, y))
            patch.setattr(module, "digits", lambda *_, **__: (other[:300], labels[:300]))
            patch.setattr(module, "TRAIN", 1500)
            patch.setattr(module, "CALIBRATION", 2300)
            patch.setattr(module, "POOL", 800)
            patch.setattr(module, "SEEDS", (0,))
            quick(patch)
            assert len(load_images().test[1]) == 400
            return run_demo(progress=False)

    return run


@pytest.fixture(scope="session")
def demo(small_demo: Small) -> Demo:
    return small_demo()
