"""Models of 1,000 classes are evaluated within a machine's memory."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

FOUR_GIB = 4 * 2**30  # of address space: all that is mapped counts, the images too


@pytest.mark.long
@pytest.mark.slow
def test_a_thousand_classes_of_64_pixels_are_evaluated_within_4_gib():
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}  # CUDA reserves far more
    command = [sys.executable, "-m", "tests.support.thousand_classes", str(FOUR_GIB)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [
        "the published table does not fit",
        "none pbayes 1000",
        "mad direct 1000",
        "modelguard_w direct 1000",
        "queen-sentinel direct 1000",
    ]
