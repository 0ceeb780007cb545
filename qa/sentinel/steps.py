"""Goal 29: small steps between foreign images do not hide them.

A thief goes from one foreign image to the next in 60 to 120 steps, so that every query looks like a near repeat of the
one before, and near repeats place no bet. Each is compared with the picture that did bet, though, not with its
neighbour.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from qa.serving.scenario import Check
from queen import Guard, protect
from queen.bench.protectee import make_protectee
from queen.cache import Cache
from queen.demo.run import demo_spec
from queen.errors import RefusedError
from queen.sentinel.sketch import Memory, Sketch

WITHIN = 300  # queries
STEPS = (60, 90, 120)
BATCH = 10


def demo_guard(folder: Path) -> tuple[Guard, Tensor]:
    """The demo's victim under the sentinel as it is by default, and the foreign images of its thief."""
    spec = demo_spec(seed=0)
    protectee = make_protectee(spec.protectee, spec.thief, Cache(folder), "cpu", None)
    victim = protectee.victim
    options = {"calibration": victim.calibration, "policy": "sentinel", "secret": bytes(32), "progress": False}
    return protect(victim.model, victim.train, **options), protectee.pool


def path(images: Tensor, steps: int, count: int, rng: np.random.Generator) -> Tensor:
    """The first `count` queries of a thief: from image to image, in a straight line of so many steps each."""
    corners = images[rng.permutation(len(images))[: 2 + count // steps]]
    shares = torch.arange(steps).div(steps).view(-1, *[1] * (images.ndim - 1))
    lines = [(1 - shares) * a + shares * b for a, b in pairwise(corners)]
    return torch.cat(lines)[:count]


def alarm_after(guard: Guard, queries: Tensor) -> int | None:
    """The number of the query that raised the alarm."""
    fresh = guard.fresh()
    for start in range(0, len(queries), BATCH):
        try:
            reply = fresh.answer(queries[start : start + BATCH], client="thief")
        except RefusedError as error:
            reply = error.reply
        if reply.alarmed.any():
            return start + int(reply.alarmed.argmax()) + 1
    return None


def checks_of(guard: Guard, pool: Tensor, thieves: int) -> list[Check]:
    """Several thieves for each number of steps; the slowest must be caught in time."""
    rng, checks = np.random.default_rng(0), []
    for steps in STEPS:
        alarms = [alarm_after(guard, path(pool, steps, WITHIN, rng)) for _ in range(thieves)]
        caught = sorted(alarm for alarm in alarms if alarm is not None)
        measured = f"{len(caught)} of {len(alarms)}"
        measured += f", median {np.median(caught):g}, last {caught[-1]}" if caught else ""
        checks.append(
            Check(f"alarm within {WITHIN} queries, {steps} steps a pair", len(caught) == len(alarms), measured)
        )
    return checks


def run(folder: Path, quick: bool) -> list[Check]:
    """Thieves at the demo's guard."""
    return checks_of(*demo_guard(folder), 5 if quick else 30)


@contextmanager
def near_repeats_become_pictures() -> Iterator[None]:
    """A defect: what is near a picture is remembered as a picture too, so one step hides the next."""
    sound = Memory.has_near

    def has_near(memory: Memory, sketch: Sketch) -> bool:
        near = sound(memory, sketch)
        if near:
            memory.add_picture(sketch)
        return near

    Memory.has_near = has_near
    try:
        yield
    finally:
        Memory.has_near = sound


def control(folder: Path, quick: bool) -> list[Check]:
    """The same thieves at a guard with that defect."""
    with near_repeats_become_pictures():
        return run(folder, quick=True)
