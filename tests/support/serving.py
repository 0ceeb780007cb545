"""A small model to serve: digits as 8x8 images, a sentinel calibrated on held-out ones, saved once a process."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from queen import Guard, calibrate, protect
from queen.options import Limits, Sentinel
from tests.support.guards import QUICK, SECRET, images, make_mlp, train
from tests.support.guards import digits as flat_digits

TRAIN, KNOWN, REST = slice(0, 600), slice(600, 1500), slice(1500, None)
WIDE = Limits(threshold=100.0, extra_answers=10**6)  # nobody runs out


def make_model(classes: int = 10) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *make_mlp(classes=classes))


def _labels(classes: int) -> Tensor:
    """The digits, or for 20 classes the light and the dark ones of each."""
    x, y = flat_digits()
    return y if classes == 10 else y + 10 * (x.mean(1) > 0.3)


@cache
def trained(seed: int = 0, classes: int = 10) -> nn.Module:
    x, y = flat_digits()[0], _labels(classes)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return train(make_model(classes), images(x[TRAIN]), y[TRAIN], epochs=20).eval()


@cache
def _fitted(seed: int = 0, classes: int = 10) -> Guard:
    x, y = flat_digits()[0], _labels(classes)
    x = images(x)
    return protect(
        trained(seed, classes),
        (x[TRAIN], y[TRAIN]),
        calibration=(x[KNOWN], y[KNOWN]),
        policy="sentinel",
        limits=WIDE,
        sentinel=Sentinel(digits=None),  # so that honest answers can be recognised to the last bit
        mapping=QUICK,
        factory="tests.support.serving:make_model",
        factory_args={"classes": classes},
        secret=SECRET,
        progress=False,
    )


def small_guard(**options) -> Guard:
    """Fitted once, asked by nobody yet."""
    return _fitted().fresh(**options)


@cache
def small_bundle() -> Path:
    """The same as a folder, named digits, with its secret beside it."""
    return _saved(_fitted())


@cache
def retrained_bundle(classes: int = 10) -> Path:
    """The bundle of a model that was trained again, for as many classes; clients call it digits, too."""
    return _saved(_fitted(1, classes))


@cache
def recalibrated_bundle(*, start_over: bool = False) -> Path:
    """The first bundle, calibrated on other images; its maps are the same."""
    x = images(flat_digits()[0][KNOWN])
    return _saved(calibrate(_fitted(), x[:800], start_over=start_over, progress=False))


def _saved(guard: Guard) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="queen-test-")) / "digits"
    guard.save(folder)
    return folder


def digits() -> Tensor:
    """Images (297, 1, 8, 8) that nobody trained or calibrated with."""
    return images(flat_digits()[0][REST])


def noise(rows: int = 150, seed: int = 0) -> Tensor:
    """What a thief without data sends."""
    return torch.rand(rows, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def honest(x: Tensor) -> Tensor:
    """What the undefended model says (n, 10)."""
    model = trained()  # trained here if nobody has asked before
    with torch.no_grad():
        return model(x).softmax(1)


def inference_body(x: Tensor) -> bytes:
    """A request for answers to these rows, in JSON."""
    tensor = {"name": "input", "datatype": "FP32", "shape": list(x.shape), "data": x.flatten().tolist()}
    return json.dumps({"inputs": [tensor]}).encode()
