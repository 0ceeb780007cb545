"""Power: after how many attack queries a thief with foreign images would be accused, simulated from stored scores.

A simulated thief sends a cover of benign images, then one foreign image, and so on. Foreign images are drawn from those
stored. Benign ones follow a law that the calibration images might have come from: these images with random weights (the
Bayesian bootstrap), a hair above or below each score. So cover alone is never accused more often than the certificate
allows. Redrawing a few held-out images instead would be: soon they look like nothing but themselves. Different foreign
images that are the same picture to the guard, as where a model answers all noise alike, are evidence once. Where there
are several kinds of foreign images, every thief has one of them: a guard that sees the one may be blind to the other,
which thieves who send both would hide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from queen.core.sensitivity import Floats
from queen.sentinel.bets import Bets, Betting, Ints, Test
from queen.sentinel.wealth import Winnings, place_bets

PLAIN = "0:1"
COVERS: Mapping[str, int] = {PLAIN: 0, "1:1": 1, "3:1": 3, "10:1": 10}  # benign images for every foreign one
LONGEST = 5000  # attack queries that a thief is followed for
RUNS = 20
PATIENCE = 200  # attack queries after which only a few of the thieves who are not accused yet are followed
FOLLOWED = 3  # so many, who then stand for the others
ROWS = 16384  # of a batch of bets

AlarmAfter = dict[str, dict[str, float | None]]
"""For every cover ("3:1"): `median` and `p95` of attack queries until the alarm, and the share `caught`."""


@dataclass(frozen=True)
class Samples:
    """Predicted classes (n,) and scores (n, S) of images; `pictures` (n,), if some are one picture to the guard.

    They are of so many `kinds`, one after the other and equally many of each.
    """

    labels: Ints
    scores: Floats
    pictures: Ints | None = None
    kinds: int = 1


def alarm_after(
    betting: Betting,
    test: Test,
    calibration: Samples,
    foreign: Samples,
    *,
    covers: Iterable[str] = tuple(COVERS),
    number: int = 1,
    seed: int = 0,
) -> AlarmAfter:
    """For every cover, after how many attack queries the alarm comes; `number` is the calibration's in its ledger.

    Quantiles are None where fewer thieves than that are accused within 5,000 attack queries. Of 20 thieves per cover
    those who are not accused within 200 are a hopeless case mostly, so only 3 of each kind are followed further, who
    then count as several.
    """
    unique = _is_unique(calibration)
    labels = [calibration.labels, calibration.labels, foreign.labels]
    nudged = [np.where(unique, np.nextafter(calibration.scores, to), calibration.scores) for to in (-np.inf, np.inf)]
    queries = _Queries(
        betting, test, np.concatenate(labels), np.concatenate([*nudged, foreign.scores]), foreign.pictures
    )
    bar = test.bar(number)
    summaries = {}
    for name in covers:
        rng = np.random.default_rng([seed, COVERS[name]])
        summaries[name] = _summarise(*_follow(queries, len(unique), foreign.kinds, COVERS[name], bar, rng))
    return summaries


def _is_unique(images: Samples) -> NDArray[np.bool_]:
    """(n, S) whether no other image of the class has exactly this score; ties are as likely for a client's images."""
    unique = np.empty(images.scores.shape, np.bool_)
    for k in np.unique(images.labels):
        rows = np.flatnonzero(images.labels == k)
        for j in range(images.scores.shape[1]):
            _, inverse, counts = np.unique(images.scores[rows, j], return_inverse=True, return_counts=True)
            unique[rows, j] = counts[inverse] == 1
    return unique


class _Queries:
    """All that thieves may send, with the numbers of its bets; foreign images, which may share pictures, come last."""

    def __init__(self, betting: Betting, test: Test, labels: Ints, scores: Floats, pictures: Ints | None) -> None:
        self.labels, self.test = labels, test
        self._lanes = betting.lanes(labels, scores)
        self._picture = np.full(len(labels), -1)  # of images that share one with others
        if pictures is not None:
            shared = np.bincount(pictures)[pictures] > 1
            self._picture[-len(pictures) :] = np.where(shared, pictures, -1)
        self.forget()

    def forget(self) -> None:
        """Nobody has sent anything yet."""
        self._sent = np.zeros((RUNS, len(self.labels)), np.bool_)

    def bets(self, rows: NDArray[np.intp], again: NDArray[np.bool_]) -> Bets:
        """The bets on the chosen queries (n,), but for those (n,) that come again."""
        size, total, bet, count = (numbers[rows] for numbers in self._lanes)
        size[again] = 0
        return Bets(size, total, bet, count, digests=[], sketches=[], test=self.test, enforce=True)

    def come_again(self, rows: NDArray[np.intp], thieves: NDArray[np.intp]) -> NDArray[np.bool_]:
        """(thieves, n) which of their next queries these thieves have sent before, as another image of a picture."""
        again = np.zeros(rows.shape, np.bool_)
        if (self._picture < 0).all():
            return again
        for line, thief in enumerate(thieves.tolist()):
            places = np.flatnonzero(self._picture[rows[line]] >= 0)
            pictures = self._picture[rows[line, places]]
            known, sent = self._sent[thief], np.ones(len(pictures), np.bool_)
            sent[np.unique(pictures, return_index=True)[1]] = False
            again[line, places] = sent | known[pictures]
            known[pictures] = True
        return again


def _follow(
    queries: _Queries, images: int, kinds: int, cover: int, bar: float, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Attack queries until the alarm (inf: none) of every thief that was followed, and how many each stands for.

    `images` is the number of calibration images, which come first in `queries`, twice. Thieves have the `kinds` of
    foreign images in turn.
    """
    weights = rng.exponential(size=(RUNS, images))
    laws = np.cumsum(np.tile(weights, 2), axis=1)
    when, stands_for = np.full(RUNS, np.inf), np.ones(RUNS)
    queries.forget()
    wealth = [Winnings.empty(queries.test.scores) for _ in range(RUNS)]
    left, sent = np.arange(RUNS), 0
    while len(left) and sent < LONGEST:
        if sent >= PATIENCE:
            left = np.concatenate([_follow_few(left[left % kinds == kind], stands_for) for kind in range(kinds)])
        steps = min(max(16, sent), max(1, ROWS // (len(left) * (cover + 1))), LONGEST - sent)
        rows = _draw(laws[left], len(queries.labels), left % kinds, kinds, cover, steps, rng)
        thief = np.repeat(np.arange(len(left)), rows.shape[1])
        chosen, again = rows.reshape(-1), queries.come_again(rows, left).reshape(-1)
        bets = queries.bets(chosen, again)
        reached = place_bets([wealth[i] for i in left], thief, queries.labels[chosen], bets, bar)
        for i, row in zip(left.tolist(), reached, strict=True):
            if row is not None:
                when[i] = sent + 1 + row % rows.shape[1] // (cover + 1)
        left, sent = left[np.isinf(when[left])], sent + steps
    return when[stands_for > 0], stands_for[stands_for > 0]


def _follow_few(thieves: NDArray[np.intp], stands_for: Floats) -> NDArray[np.intp]:
    """The first few of these thieves, who then stand for all of them."""
    if len(thieves) <= FOLLOWED:
        return thieves
    stands_for[thieves[:FOLLOWED]] = len(thieves) / FOLLOWED
    stands_for[thieves[FOLLOWED:]] = 0
    return thieves[:FOLLOWED]


def _draw(
    laws: Floats, count: int, kind: NDArray[np.intp], kinds: int, cover: int, steps: int, rng: np.random.Generator
) -> NDArray[np.intp]:
    """(thieves, steps * (cover + 1)) the next queries of every thief: `cover` benign ones and then a foreign one of the
    thief's `kind` (thieves,)."""
    thieves, benign = laws.shape
    of_a_kind = (count - benign) // kinds
    rows = rng.integers(benign, benign + of_a_kind, size=(thieves, steps, cover + 1))
    rows += of_a_kind * kind[:, None, None]
    for thief, law in enumerate(laws):
        drawn = np.searchsorted(law, law[-1] * rng.random((steps, cover)), side="right")
        rows[thief, :, :cover] = np.minimum(drawn, benign - 1)
    return rows.reshape(thieves, -1)


def _summarise(when: Floats, stands_for: Floats) -> dict[str, float | None]:
    order = np.argsort(when)
    when, share = when[order], np.cumsum(stands_for[order]) / stands_for.sum()

    def quantile(wanted: float) -> int | None:
        time = when[min(int(np.searchsorted(share, wanted - 1e-9)), len(when) - 1)]
        return int(time) if np.isfinite(time) else None

    caught = stands_for[order][np.isfinite(when)].sum() / stands_for.sum()
    return {"median": quantile(0.5), "p95": quantile(0.95), "caught": round(float(caught), 3)}


def in_words(times: AlarmAfter) -> list[str]:
    """One sentence for every cover."""
    lines = []
    for cover, one in times.items():
        who = "plain foreign queries" if cover == PLAIN else f"foreign queries at {cover} cover"
        if one["median"] is None:
            caught = f"{one['caught']:.0%} of thieves are caught" if one["caught"] else "not caught"
            lines.append(f"{who}: {caught} within {LONGEST:,} of them")
        else:
            rest = f"95 % after {one['p95']}" if one["p95"] is not None else f"{one['caught']:.0%} within {LONGEST:,}"
            lines.append(f"{who}: caught after {one['median']} in the median, {rest}")
    return lines
