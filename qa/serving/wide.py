"""A model whose requests can be large: digits as pictures of 3 x 32 x 32, which it makes small again at once."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from queen import protect
from queen.options import Limits
from tests.support.guards import QUICK, SECRET, make_mlp, train
from tests.support.guards import digits as flat_digits

SHAPE = (3, 32, 32)
WIDE = Limits(threshold=100.0, extra_answers=10**6)  # nobody runs out
TRAIN = 600


def make_model() -> nn.Module:
    """Its memory for activations is small, so that a server's memory is that of its requests."""
    return nn.Sequential(nn.AvgPool3d((3, 4, 4)), nn.Flatten(), *make_mlp())


def pictures(rows: int) -> Tensor:
    """Pictures (rows, 3, 32, 32), the same ones again after 1,797."""
    x, _ = flat_digits()
    small = x[torch.arange(rows) % len(x)].view(-1, 1, 8, 8)
    return small.repeat_interleave(4, 2).repeat_interleave(4, 3).expand(-1, 3, -1, -1).contiguous()


@cache
def wide_bundle() -> Path:
    """The model protected, in a folder named wide."""
    _, y = flat_digits()
    x = pictures(TRAIN)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = train(make_model(), x, y[:TRAIN], epochs=5).eval()
    folder = Path(tempfile.mkdtemp(prefix="queen-qa-")) / "wide"
    options = {"policy": "strict", "limits": WIDE, "mapping": QUICK, "secret": SECRET, "progress": False}
    protect(model, (x, y[:TRAIN]), factory="qa.serving.wide:make_model", **options).save(folder)
    return folder
