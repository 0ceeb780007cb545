"""A model that takes token ids, of any length: the mean of what it looks up, and a last layer."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from queen import protect
from queen.options import Limits
from tests.support.guards import QUICK, SECRET

WORDS, LENGTH = 50, 6


class Reader(nn.Module):
    """Classifies a text into three kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Token ids (n, length) -> logits (n, 3)."""
        logits: Tensor = self.head(self.table(x).mean(1))
        return logits


@cache
def text_bundle() -> Path:
    """The model protected, in a folder named text; it was never trained, and nobody asks whether it is right."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Reader().eval()
    x = torch.randint(WORDS, (400, LENGTH), generator=generator)
    with torch.no_grad():
        y = model(x).argmax(1)
    folder = Path(tempfile.mkdtemp(prefix="queen-qa-")) / "text"
    limits = Limits(threshold=100.0, extra_answers=10**6)  # nobody runs out
    options = {"policy": "strict", "limits": limits, "mapping": QUICK, "min_agreement": 0, "progress": False}
    protect(model, (x, y), factory="qa.serving.text:Reader", secret=SECRET, **options).save(folder)
    return folder
