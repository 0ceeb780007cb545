"""A fixed threshold beside the certified test: how many benign clients each accuses, the longer they stay.

The fixed rule accuses once h of a client's last w queries (or of all) have a score above the one that a share p of the
calibration images of the same predicted class exceed. It is tuned to be as quick as the certified test on a thief who
sends three benign images with every foreign one: for every w, that score, p and h which accuse the fewest benign
clients, of those that catch the thief as soon in the median. So it knows its thief, which the certified test does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.evidence.clients import (
    FIRST_BAR,
    SETTINGS,
    Images,
    Measured,
    Rows,
    alarms,
    make_betting,
    orders,
    with_cover,
)

LENGTH, SPLITS, CLIENTS = 20_000, 20, 50
WINDOWS, SHARES = (20, 50, 100, LENGTH), (0.01, 0.02, 0.05, 0.1)
THIEVES, ATTACK, COVER = 200, 200, 3
MARGIN = 0.0  # where the certified test accuses soonest, and everybody
MOMENTS = (100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 20_000)


def compare_thresholds(victim: Measured) -> dict[str, Any]:
    """How many of 1,000 benign clients each rule has accused, over time; calibration is redrawn for every fifty."""
    rng = np.random.default_rng(0)
    calibration, held_out = victim.images("calibration"), victim.images("held out")
    name = victim.pools[0]
    pool = victim.images(f"pool {name}")
    both = held_out + pool
    attack = orders(rng, len(held_out) + np.arange(len(pool)), ATTACK, THIEVES)
    thieves, _ = with_cover(rng, attack, orders(rng, len(held_out), ATTACK * COVER, THIEVES), COVER)
    betting = make_betting(calibration, victim.classes, MARGIN)
    wanted = float(np.median(alarms(betting, both, thieves, FIRST_BAR) + 1))
    rules = [
        (window, share, score, hits, speed)
        for window in WINDOWS
        for share in SHARES
        for score in range(calibration.scores.shape[1])
        if (quickest := _as_quick(_exceeds(calibration, both, victim.classes, share, score)[thieves], window, wanted))
        for hits, speed in [quickest]
    ]
    together, count = calibration + held_out, len(calibration)
    reached: dict[Any, list[Rows]] = {rule: [] for rule in (*rules, "certified")}
    for _ in range(SPLITS):
        rows = rng.permutation(len(together))
        calibration = together.take(rows[:count])
        clients = orders(rng, rows[count:], LENGTH, CLIENTS)
        betting = make_betting(calibration, victim.classes, MARGIN)
        reached["certified"].append(alarms(betting, together, clients, FIRST_BAR))
        for rule in rules:
            window, share, score, hits, _ = rule
            over = _exceeds(calibration, together, victim.classes, share, score)[clients]
            reached[rule].append(_first_window(over, window, hits))
    accused = {rule: [int((np.concatenate(at) < moment).sum()) for moment in MOMENTS] for rule, at in reached.items()}
    worst_first = sorted(rules, key=lambda rule: sum(accused[rule]), reverse=True)
    best = {rule[0]: rule for rule in worst_first}  # the last one of every window
    return {
        "victim": victim.about["about"],
        "pool": name,
        "margin": MARGIN,
        "cover": f"{COVER}:1",
        "clients": SPLITS * CLIENTS,
        "queries": list(MOMENTS),
        "certified": {"thief_median": wanted, "accused": accused["certified"]},
        "fixed": [
            {
                "window": None if window == LENGTH else window,
                "share": rule[1],
                "score": SETTINGS.scores[rule[2]],
                "hits": rule[3],
                "thief_median": rule[4],
                "accused": accused[rule],
            }
            for window, rule in sorted(best.items())
        ],
    }


def _exceeds(calibration: Images, images: Images, classes: int, share: float, score: int) -> NDArray[np.bool_]:
    """(n,) whether an image's score is above that which a share of its class's calibration images exceed."""
    highest = np.array(
        [np.quantile(calibration.scores[calibration.labels == k, score], 1 - share) for k in range(classes)]
    )
    return np.asarray(images.scores[:, score] > highest[images.labels])


def _first_window(over: NDArray[np.bool_], window: int, hits: int) -> Rows:
    """(m,) the index of the query at which `hits` of the last `window` were over; the length if there is none."""
    sums = np.cumsum(over, axis=1, dtype=np.int32)
    sums[:, window:] -= sums[:, :-window].copy()
    alarm = sums >= hits
    return np.where(alarm.any(1), alarm.argmax(1), over.shape[1])


def _as_quick(over: NDArray[np.bool_], window: int, wanted: float) -> tuple[int, float] | None:
    """The most hits for which half of the thieves are caught within `wanted` queries, and their median; None: none."""
    for hits in range(min(window, int(over.sum(1).max())), 0, -1):
        speed = float(np.median(_first_window(over, window, hits) + 1))
        if speed <= wanted:
            return hits, speed
    return None
