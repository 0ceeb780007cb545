from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import queen.demo.run as module
from queen.bench.data import mnist5k
from queen.demo import Demo, run_demo
from queen.demo.run import load_images

Small = Callable[[], Demo]
torch.set_num_threads(1)  # the last digits of a training run depend on it


@pytest.fixture(scope="session")
def mnist() -> tuple[Tensor, Tensor]:
    return mnist5k()


@pytest.fixture(scope="session")
def small_demo(mnist) -> Small:
    """The real demo on fewer images and with shorter training, in this process."""

    def run() -> Demo:
        train, (x, y), (other, labels) = module.train, mnist, module.digits(28, margin=4)
        with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
            patch.setattr(module, "mnist5k", lambda: (x[::2], y[::2]))
            patch.setattr(module, "digits", lambda *_, **__: (other[:300], labels[:300]))
            patch.setattr(module, "TRAIN", 1000)
            patch.setattr(module, "CALIBRATION", 300)
            patch.setattr(module, "POOL", 800)
            patch.setattr(module, "SEEDS", (0,))
            patch.setattr(module, "train", lambda *a, epochs, **o: train(*a, epochs=epochs // 3, **o))
            patch.setattr(module.os, "cpu_count", lambda: 1)
            assert len(load_images().test[1]) == 400
            return run_demo(progress=False)

    return run


@pytest.fixture(scope="session")
def demo(small_demo: Small) -> Demo:
    return small_demo()
