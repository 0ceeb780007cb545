"""What 1,000 queries take behind every defense, in times of none, beside what the paper says."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from queen.bench import untrained
from queen.bench.rivals_speed import ratios_to_none, turns
from queen.cache import Cache
from queen.defenses import DEFENSES
from queen.defenses.base import Endpoint, Victim
from queen.defenses.queen import GuardedEndpoint
from queen.training import Schedule
from queen.types import Oracle

BATCH = 32
REPEATS = 3
# Seconds for 1,000 queries there, divided by those without defense; ModelGuard is ModelGuard-W, QUEEN its own policy.
PAPER: Mapping[str, float] = {
    "reverse_sigmoid": 1.2,
    "mad": 24,
    "adaptive_misinformation": 1.9,
    "rounding": 1.07,
    "emdp": 1.2,
    "modelguard_w": 1.9,
    "queen": 3.3,
}


@dataclass(frozen=True)
class InBatches:
    """A service whose clients send `BATCH` queries at a time."""

    service: Endpoint

    def client(self, name: str) -> Oracle:
        """The same answers (n, K), batch by batch."""
        oracle = self.service.client(name)
        return lambda x: torch.cat([oracle(part) for part in x.split(BATCH)])  # type: ignore[no-untyped-call]


def defense_costs(scale: int) -> dict[str, Any]:
    """Ratios and seconds of every defense, by turns on the same queries of new clients; `scale` takes fewer of them.

    The victim is untrained: what its answers are changes nothing but QUEEN's verdicts, whose shares are told, and how
    much ModelGuard-S has to keep.
    """
    generator = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        services = _services(scale, Path(folder), generator)
        x, _ = untrained.images(max(BATCH, 1000 // scale**2), generator)
        seconds = turns({name: InBatches(one) for name, one in services.items()}, x, max(1, REPEATS // scale))
    return {
        "ratio": ratios_to_none(seconds),
        "seconds": {name: 1000 / len(x) * statistics.median(times) for name, times in seconds.items()},
        "verdicts": {name: _shares(one) for name, one in services.items() if isinstance(one, GuardedEndpoint)},
        "network": f"{untrained.NETWORK}, untrained, {len(x)} images of 32x32, {BATCH} at a time",
    }


def _services(scale: int, folder: Path, generator: torch.Generator) -> dict[str, Endpoint]:
    """Every defense around the same victim; what they must learn, they learn badly and fast."""
    victim = Victim(
        untrained.network(generator),
        untrained.images(max(40, 240 // scale), generator),
        _blank,
        Schedule(epochs=1),
        calibration=untrained.images(max(60, 400 // scale), generator),
        outliers=untrained.images(BATCH, generator)[0],
        cache=Cache(folder),
    )
    quickly: dict[str, Any] = {"map_epochs": 20}
    return {
        name: defense.start(victim, generator, **{k: v for k, v in quickly.items() if k in defense.options})
        for name, defense in DEFENSES.items()
    }


def _blank(generator: torch.Generator) -> nn.Module:
    return untrained.network(generator).requires_grad_(True)


def _shares(service: GuardedEndpoint) -> dict[str, float]:
    letters = {name: count for name, count in service.verdicts.items() if len(name) == 1}
    return {name: count / sum(letters.values()) for name, count in letters.items()}
