"""Benign but odd clients: how many are accused, what helps them, and what the help costs against thieves.

No certificate covers these clients. Half of the images are theirs to send, the other half stand for what clients of the
same kind sent before, so that remedies by calibration can be tried, at the default margin:

- `mixed`: the usual calibration images and such traffic calibrate together, as `conditions=` or a log of all clients do
- `own`: such traffic alone calibrates, a guard for clients of this kind
- `bar`: as `own`, and the bar is raised above all that other clients of this kind reach, as `calibrate(trusted=)` does
- `again`: where a camera drifts, a new calibration for every stage, on what clients sent in the stage before
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.evidence.clients import (
    FIRST_BAR,
    HONEST,
    MARGINS,
    SENT,
    SETTINGS,
    TEST,
    Images,
    Measured,
    Rows,
    alarms,
    hidden_thieves,
    highest_wealth,
    make_bets,
    make_betting,
    orders,
)
from benchmarks.evidence.measure import CHANGED, CHANGES
from queen.ledger import MemoryLedger
from queen.ledger.rows import make_rows
from queen.options import SCORES, Limits
from queen.sentinel.bets import Betting

TRUSTED = 20  # clients of a kind whose traffic calibrates, and as many others who set the bar
FRAMES = (2, 5, 20)  # pictures of one scene in a burst
GROWING = ("noise", "blur")  # changes that are the stronger the larger their number is
SPREAD = 0.1  # of the times at which images of one class are sent, as a share of a client's stay
Draw = Callable[[np.random.Generator, Rows, int, int], Rows]
Result = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """How clients of a kind choose what they send.

    `pictures` are `count` images, or those images several times over, changed by one level after the other.
    `draw(rng, rows, length, clients)` chooses rows of `pictures` (clients, length), made of the images `rows` only.
    `stages`: into how many changes a client's stay is divided, one after the other; 0 where nothing changes with time.
    """

    pictures: Images
    count: int
    draw: Draw = orders
    stages: int = 0


@dataclass(frozen=True)
class Accuser:
    """A test that accuses: bets against some calibration images, and the wealth that is proof."""

    betting: Betting
    bar: float = FIRST_BAR


def odd(victim: Measured) -> Result:
    """Clients of every odd kind at every margin, and after every remedy, with the thieves that each lets through."""
    calibration, usual = victim.images("calibration"), victim.images("held out").take(np.arange(CHANGED))
    thieves = partial(_thieves, usual, victim.images(f"pool {victim.pools[0]}"))
    return {
        "about": victim.about["about"],
        "pool": victim.pools[0],
        "thieves": thieves(Accuser(make_betting(calibration, victim.classes, SETTINGS.margin))),
        "retry": retries(calibration, usual, victim.classes),
        "kinds": {
            name: study(victim.classes, calibration, usual, kind, thieves) for name, kind in make_kinds(victim).items()
        },
    }


def make_kinds(victim: Measured) -> dict[str, Kind]:
    """Every kind of odd client, by name."""
    held_out = victim.images("held out")
    unsure = np.argsort(-held_out.all_scores[:, SCORES.index("confidence")], kind="stable")[: len(held_out) // 5]
    kinds = {"cascade": Kind(held_out.take(np.sort(unsure)), len(unsure))}
    unchanged = held_out.take(np.arange(CHANGED))
    for change, ranges in CHANGES.items():
        words, levels = list(ranges.items())[-1]
        cameras = [victim.images(f"{change} {level}") for level in levels]
        weakest_first = cameras if change in GROWING else cameras[::-1]
        stages = 1 + len(levels)
        kinds[f"camera: {change} {words}"] = Kind(
            _together(cameras), CHANGED, partial(one_camera, CHANGED, len(levels))
        )
        kinds[f"drift: {change} {words}"] = Kind(
            _together([unchanged, *weakest_first]), CHANGED, partial(drifting_camera, CHANGED, stages), stages
        )
    kinds["drift: classes"] = Kind(held_out, len(held_out), partial(drifting_classes, victim.truth))
    for frames in FRAMES:
        kinds[f"bursts of {frames}"] = Kind(held_out, len(held_out), partial(bursts, frames))
    return kinds


def one_camera(images: int, levels: int, rng: np.random.Generator, rows: Rows, length: int, clients: int) -> Rows:
    """Every client changes all its images alike, by a level of its own: at seed 0 that of the `tolerance` results."""
    level = rng.integers(levels, size=(clients, 1))
    return orders(rng, rows, length, clients) + images * level


def drifting_camera(images: int, levels: int, rng: np.random.Generator, rows: Rows, length: int, clients: int) -> Rows:
    """Every client changes its first images least and its last ones most."""
    return orders(rng, rows, length, clients) + images * (np.arange(length) * levels // length)


def drifting_classes(truth: NDArray[Any], rng: np.random.Generator, rows: Rows, length: int, clients: int) -> Rows:
    """The true classes come and go one after the other, in another order for every client."""
    sent = orders(rng, rows, length, clients)
    names = np.unique(truth)
    moments = np.stack([rng.permutation(len(names)) for _ in range(clients)]) / len(names)
    when = np.take_along_axis(moments, np.searchsorted(names, truth[sent]), axis=1)
    return np.take_along_axis(sent, (when + rng.normal(0, SPREAD, sent.shape)).argsort(axis=1), axis=1)


def bursts(frames: int, rng: np.random.Generator, rows: Rows, length: int, clients: int) -> Rows:
    """Every image comes as so many pictures, new ones to a ledger, which all have its score: the worst case."""
    return np.repeat(orders(rng, rows, -(-length // frames), clients), frames, axis=1)[:, :length]


def study(classes: int, calibration: Images, usual: Images, kind: Kind, thieves: Callable[[Accuser], Result]) -> Result:
    """How many clients of a kind are accused at every margin and after every remedy, and what each remedy costs."""
    rng = np.random.default_rng(0)
    before, sendable = np.arange(0, kind.count, 2), np.arange(1, kind.count, 2)
    length = min(len(sendable), SENT)
    clients, others = (kind.draw(rng, sendable, length, count) for count in (HONEST, TRUSTED))
    usual_clients = orders(rng, np.arange(1, len(usual), 2), min(len(usual) // 2, SENT), HONEST)
    traffic = kind.pictures.take(past_traffic(rng, kind, before, len(calibration)))

    def accuse(images: Images, margin: float = SETTINGS.margin, bar: float = FIRST_BAR) -> Accuser:
        return Accuser(make_betting(images, classes, margin), bar)

    def costs(accuser: Accuser) -> Result:
        usual_accused = alarms(accuser.betting, usual, usual_clients, accuser.bar) < usual_clients.shape[1]
        return {"usual_accused": int(usual_accused.sum()), "thieves": thieves(accuser)}

    def remedy(accuser: Accuser) -> Result:
        return {"bar": accuser.bar, **count_accused([accuser], kind.pictures, clients), **costs(accuser)}

    own = accuse(traffic)
    highest = highest_wealth(own.betting, kind.pictures, others)
    remedies = {"mixed": remedy(accuse(calibration + traffic)), "own": remedy(own)}
    if np.isfinite(highest):
        remedies["bar"] = remedy(accuse(traffic, bar=max(FIRST_BAR, float(np.nextafter(highest, np.inf)))))
    if kind.stages:
        latest = [kind.pictures.take(before + kind.count * stage) for stage in range(kind.stages - 1)]
        accusers = [
            accuse(images, bar=TEST.bar(number) / TEST.size) for number, images in enumerate([calibration, *latest], 1)
        ]
        remedies["again"] = count_accused(accusers, kind.pictures, clients) | costs(accusers[-1])
    return {
        "clients": HONEST,
        "queries": length,
        "traffic": len(traffic),
        "margins": {
            f"{margin:g}": count_accused([accuse(calibration, margin)], kind.pictures, clients) for margin in MARGINS
        },
        "remedies": remedies,
    }


def past_traffic(rng: np.random.Generator, kind: Kind, rows: Rows, most: int) -> Rows:
    """Rows of pictures that trusted clients sent: each has images of its own, at most so many all together."""
    shares = np.array_split(rng.permutation(rows)[:most], TRUSTED)
    return np.concatenate([kind.draw(rng, share, len(share), 1)[0] for share in shares])


def count_accused(accusers: Sequence[Accuser], images: Images, clients: Rows) -> Result:
    """How many clients are accused, and the median query at which those were.

    Several accusers follow each other, each for an equal part of a client's stay, and each with wealth of its own.
    """
    length = clients.shape[1]
    part = np.arange(length) * len(accusers) // length
    reached = np.full(len(clients), length)
    for number, accuser in reversed(list(enumerate(accusers))):
        columns = np.flatnonzero(part == number)
        at = alarms(accuser.betting, images, clients[:, columns], accuser.bar)
        reached = np.where(at < len(columns), columns[0] + at, reached)
    caught = reached[reached < length] + 1
    return {"accused": len(caught), "median": float(np.median(caught)) if len(caught) else None}


def retries(calibration: Images, images: Images, classes: int) -> Result:
    """Clients that send one image again and again, the oddest ones there are, judged by a real ledger."""
    betting, limits = make_betting(calibration, classes, 0.0), Limits(extra_answers=10**6)
    oddest = np.argsort(-images.all_scores[:, SCORES.index("confidence")], kind="stable")[:HONEST]
    ledger, accused = MemoryLedger(), 0
    for row in oddest.tolist():
        sent = np.full(SENT, row)
        bets = make_bets(betting, images, sent, distinct=True)
        rows = make_rows((f"client {row}",), None, images.labels[sent], np.full((SENT, 2), 2.0), limits, bets=bets)
        accused += int(ledger.judge_rows(rows).alarmed.any())
    return {"clients": HONEST, "queries": SENT, "margin": 0.0, "accused": accused}


def _thieves(cover: Images, pool: Images, accuser: Accuser) -> Result:
    """Attack queries until the alarm, of plain thieves and of those who hide among three times as many usual images."""
    rng = np.random.default_rng(0)
    both, foreign, sendable = cover + pool, len(cover) + np.arange(len(pool)), np.arange(1, len(cover), 2)
    return {
        name: hidden_thieves(rng, accuser.betting, both, foreign, sendable, ratio, accuser.bar)
        for name, ratio in (("plain", 0), ("3:1", 3))
    }


def _together(parts: Sequence[Images]) -> Images:
    return reduce(operator.add, parts)
