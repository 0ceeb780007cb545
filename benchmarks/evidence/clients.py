"""Many clients at once against the sentinel's real bets: who is accused, and at which query.

A client is a row of indices into a victim's images; its bets are placed by `queen.sentinel.wealth.place_bets`, as every
ledger does it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queen.options import SCORES, Sentinel
from queen.sentinel.bets import ARRAYS, Bets, Betting, Test
from queen.sentinel.ranks import Ranking, robust_spreads
from queen.sentinel.sketch import SIZE
from queen.sentinel.wealth import Winnings, largest_sum, place_bets

Rows = NDArray[np.int64]
SETTINGS = Sentinel()
STEP, ROUND = 100, 20_000  # queries a client sends before the accused leave, and queries of all clients in one call
MARGINS = (0.0, 0.1, 0.2, 0.3, 0.5)
ORDERS, QUERIES = 100, 4400  # thieves of each kind, and queries that each of them sends, cover included
HONEST, SENT = 100, 2000  # honest clients of each kind, and queries of each


class Images:
    """Predicted labels (n,) and scores (n, S) of images, of the scores that the sentinel uses by default."""

    def __init__(self, labels: NDArray[Any], scores: NDArray[Any]) -> None:
        self.labels, self.all_scores = labels.astype(np.int64), scores.astype(np.float64)
        self.scores = self.all_scores[:, [SCORES.index(name) for name in SETTINGS.scores]]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray[Any]) -> Images:
        """Some of the images."""
        return Images(self.labels[rows], self.all_scores[rows])

    def __add__(self, other: Images) -> Images:
        both = (self, other)
        return Images(np.concatenate([one.labels for one in both]), np.concatenate([one.all_scores for one in both]))


class Measured:
    """One victim as `measure` left it: facts in `about`, and images by name."""

    def __init__(self, path: Path) -> None:
        self._arrays = dict(np.load(path))
        self.about: dict[str, Any] = json.loads(str(self._arrays["about"]))
        self.classes: int = self.about["classes"]
        self.truth = self._arrays["held out/truth"]

    def images(self, name: str) -> Images:
        """The images of that name."""
        return Images(self._arrays[f"{name}/labels"], self._arrays[f"{name}/scores"])

    @property
    def pools(self) -> list[str]:
        """The names of the foreign images, without "pool"."""
        ends = "pool ", "/labels"
        return [
            key[len(ends[0]) : -len(ends[1])]
            for key in self._arrays
            if key.startswith(ends[0]) and key.endswith(ends[1])
        ]


def make_betting(calibration: Images, classes: int, margin: float) -> Betting:
    """Bets against these calibration images."""
    spreads = robust_spreads(calibration.labels, calibration.scores, classes)
    return Betting(Ranking(calibration.labels, calibration.scores, spreads, classes, margin))


TEST = Test(1, len(SETTINGS.scores), SETTINGS.alpha, SETTINGS.delta)


def make_bets(betting: Betting, images: Images, rows: Rows, *, distinct: bool = False) -> Bets:
    """The bets on the chosen images; `distinct`: with sketches far apart, which a ledger takes for new pictures."""
    arrays = betting.lanes(images.labels[rows], images.scores[rows])
    digests = rows.tolist() if distinct else []
    sketches = [(100.0 * row,) * SIZE for row in digests]
    return Bets(*arrays, digests=digests, sketches=sketches, test=TEST, enforce=True)


def alarms(betting: Betting, images: Images, clients: Rows, bar: float = 1 / (SETTINGS.alpha * SETTINGS.delta)) -> Rows:
    """For clients (m, t), rows of images in the order they are sent, the index of the query that accuses; t: none does.

    `bar` is the wealth that accuses: a ledger's first calibration has `FIRST_BAR`.
    """
    everything = make_bets(betting, images, np.arange(len(images)))
    count, length = clients.shape
    reached = np.full(count, length)
    playing = np.arange(count)
    winnings = [Winnings.empty(TEST.scores) for _ in range(count)]
    for start in range(0, length, STEP):
        part = clients[:, start : start + STEP]
        for group in np.array_split(playing, max(1, part.shape[1] * len(playing) // ROUND)):
            rows = part[group].ravel()
            bets = replace(everything, **{name: getattr(everything, name)[rows] for name in ARRAYS})
            owner = np.repeat(np.arange(len(group)), part.shape[1])
            outcome = place_bets([winnings[i] for i in group], owner, images.labels[rows], bets, bar * TEST.size)
            for i, row in zip(group.tolist(), outcome, strict=True):
                if row is not None:
                    reached[i] = start + row % part.shape[1]
        playing = playing[reached[playing] == length]
        if not len(playing):
            break
    return reached


FIRST_BAR = TEST.bar(1) / TEST.size


def highest_wealth(betting: Betting, images: Images, clients: Rows) -> float:
    """The highest wealth that any of the clients (m, t) ever reaches; infinite if it is beyond all that purses hold."""
    everything = make_bets(betting, images, np.arange(len(images)))
    winnings, owner, highest = [Winnings.empty(TEST.scores) for _ in clients], np.arange(len(clients)), 0.0
    for rows in clients.T:
        bets = replace(everything, **{name: getattr(everything, name)[rows] for name in ARRAYS})
        place_bets(winnings, owner, images.labels[rows], bets, np.inf)
        highest = max(highest, largest_sum(np.stack([one.purses for one in winnings])).max())
    return float(highest) / TEST.size


def orders(rng: np.random.Generator, rows: NDArray[Any] | int, length: int, count: int) -> Rows:
    """`count` clients, each of whom sends `length` of the rows in random order; all again once there are no more."""
    pool = np.arange(rows) if isinstance(rows, int) else np.asarray(rows)
    rounds = max(1, -(-length // len(pool)))
    return np.stack([np.concatenate([rng.permutation(pool) for _ in range(rounds)])[:length] for _ in range(count)])


def with_cover(rng: np.random.Generator, attack: Rows, cover: Rows, ratio: int) -> tuple[Rows, NDArray[np.bool_]]:
    """Attack queries (m, t) and cover (m, t * ratio) in one order (m, t * (1 + ratio)), and which of them attack.

    Every attack query is sent with `ratio` of the others, in random order.
    """
    count, length = attack.shape
    rounds = np.concatenate([attack[:, :, None], cover.reshape(count, length, ratio)], axis=2)
    attacks = np.zeros(rounds.shape, np.bool_)
    attacks[:, :, 0] = True
    places = rng.random(rounds.shape).argsort(axis=2)
    flat = count, length * (1 + ratio)
    return (
        np.take_along_axis(rounds, places, axis=2).reshape(flat),
        np.take_along_axis(attacks, places, axis=2).reshape(flat),
    )


def attacks_until(reached: Rows, attacks: NDArray[np.bool_]) -> list[float]:
    """Attack queries sent until and with the one that accused; infinite if none did."""
    length = attacks.shape[1]
    return [
        float(row[: at + 1].sum()) if at < length else np.inf for at, row in zip(reached.tolist(), attacks, strict=True)
    ]


def hidden_thieves(
    rng: np.random.Generator, betting: Betting, images: Images, foreign: Rows, cover: Rows, ratio: int, bar: float
) -> dict[str, Any]:
    """Attack queries until the alarm, of thieves who send `ratio` of the cover rows with every foreign one."""
    length = min(QUERIES // (1 + ratio), len(foreign))
    attack, others = orders(rng, foreign, length, ORDERS), orders(rng, cover, length * ratio, ORDERS)
    sent, attacks = with_cover(rng, attack, others, ratio)
    return summary(attacks_until(alarms(betting, images, sent, bar), attacks))


def summary(sent: Sequence[float] | NDArray[Any]) -> dict[str, Any]:
    """Median and 95 % of attack queries until the alarm, infinite where there is none; null says infinite."""
    numbers = np.asarray(sent, dtype=float)
    middle, late = (float(np.quantile(numbers, q, method="higher")) for q in (0.5, 0.95))
    return {
        "orders": len(numbers),
        "caught": float(np.isfinite(numbers).mean()),
        "median": middle if np.isfinite(middle) else None,
        "p95": late if np.isfinite(late) else None,
    }
