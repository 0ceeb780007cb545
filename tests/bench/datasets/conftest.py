from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support import official_sets as official
from tests.support.official_sets import noise, write_tar
from tests.support.packs import write_pack


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with CIFAR-10 as published and MNIST as a pack."""
    batches = official.cifar10_batches()
    write_tar(official.cifar10_binary(batches), tmp_path / "data" / "cifar-10-binary.tar.gz")
    x, y = noise(30, 28, 28), np.arange(30, dtype=np.uint8) % 10
    write_pack(tmp_path / "data" / "mnist_lossless.npz", train=x, y_train=y, test=x[:10], y_test=y[:10])
    return tmp_path / "data"
