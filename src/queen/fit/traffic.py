"""The recorded traffic of trusted clients: what they sent calibrates, or sets the bar that they must stay below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nextafter

import numpy as np

from queen.bundle.calibration import Trusted
from queen.errors import CalibrationError, OptionError
from queen.fit.data import Images, image_batches
from queen.guard import Guard
from queen.ledger.rows import check_client
from queen.progress import Progress
from queen.sentinel.sketch import Memory, Sketch
from queen.sentinel.wealth import Winnings, largest_sum, place_bets
from queen.types import Inputs


@dataclass(frozen=True)
class TrustedSplit:
    """Whose images calibrate (none: the data does) and whose traffic sets the bar."""

    calibrating: Sequence[str]
    setting_bar: Sequence[str]


def split_clients(trusted: Mapping[str, Images], *, has_data: bool, seed: int) -> TrustedSplit:
    """Without data, half of the clients, drawn at random, calibrate: the bar must come from others."""
    if not isinstance(trusted, Mapping):
        raise OptionError(f"trusted must map client names to their images, got {type(trusted).__name__}")
    names = sorted(map(check_client, trusted))
    if len(names) < (1 if has_data else 2):
        raise CalibrationError(
            f"expected traffic of at least {'one client' if has_data else 'two clients (half of them calibrate)'}, got "
            f"{len(names)}: record more, or give calibration images as data"
        )
    if has_data:
        return TrustedSplit((), names)
    shuffled = [names[i] for i in np.random.default_rng(seed).permutation(len(names))]
    half = len(names) // 2
    return TrustedSplit(sorted(shuffled[:half]), sorted(shuffled[half:]))


def all_batches(trusted: Mapping[str, Images], names: Sequence[str]) -> list[Inputs]:
    """What these clients sent, one client after the other."""
    return [x for name in names for x, _ in image_batches(trusted[name])]


def replay(guard: Guard, trusted: Mapping[str, Images], names: Sequence[str], show: Progress) -> tuple[Trusted, str]:
    """The highest wealth that any of these clients reaches, and whose it is; the guard's ledger is left alone."""
    watching = guard.fresh(policy="sentinel")
    reached = {name: _highest_sum(watching, trusted[name]) for name in show.each("trusted clients", names)}
    name = max(reached, key=lambda one: reached[one])
    if not isfinite(reached[name]):
        raise CalibrationError(
            f"trusted client '{name}' differs so much from the calibration images that no bar is above its wealth: "
            "leave it out, or calibrate on images like its own"
        )
    test, settings = watching.bundle.test, watching.bundle.sentinel
    highest = reached[name] / test.size
    while test.size * nextafter(highest, inf) <= reached[name]:  # so that the bar is above it, however it is rounded
        highest = nextafter(highest, inf)
    return Trusted(clients=len(names), highest=highest, scores=settings.scores, margin=settings.margin), name


def _highest_sum(guard: Guard, data: Images) -> float:
    """The highest sum of wealth that a client reaches who sends this, counted as a ledger without a bar would."""
    test = guard.bundle.test
    memory, wealth, highest = Memory(), Winnings.empty(test.scores), 0.0
    for x, _ in image_batches(data):
        batch = guard.measure(x)
        if batch.bets is None:
            raise CalibrationError("only the policy 'sentinel' has evidence to replay")
        rows = [row for row, sketch in enumerate(batch.bets.sketches) if _is_new(memory, sketch)]
        while rows and isfinite(highest):
            owner = np.zeros(len(rows), np.intp)
            [above] = place_bets([wealth], owner, batch.labels[rows], batch.bets.take(rows), nextafter(highest, inf))
            if above is None:
                break
            highest = largest_sum(wealth.purses[None]).item()  # it stopped at the row that is higher than all before
            rows = rows[above + 1 :]
    return highest


def _is_new(memory: Memory, sketch: Sketch) -> bool:
    """Whether no picture like this one is remembered; then it is from now on. Only new ones place bets."""
    if memory.has_near(sketch):
        return False
    memory.add_picture(sketch)
    return True
