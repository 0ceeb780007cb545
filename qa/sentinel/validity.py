"""Goal 28: how often benign clients become rich, over many calibrations, with the sentinel's own ranks and bets.

The statement: over calibration and client together, wealth ever reaches c with probability at most 1/c. Clients of one
calibration share its luck, so calibrations are counted, not clients: the share of rich clients of each is one number
between 0 and 1, and their mean may exceed 1/c by at most four of its standard errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qa.serving.scenario import Check, failed
from queen.core.sensitivity import Floats
from queen.sentinel import wealth
from queen.sentinel.bets import ARRAYS, Bets, Betting, Ints, Test
from queen.sentinel.ranks import Ranking, robust_spreads
from queen.sentinel.wealth import Winnings, place_bets

LEVELS = (20.0, 100.0, 1000.0)
ERRORS = 4.0  # standard errors: by chance alone one check in 30,000 would be further off
SCORES = 3
LAWS = ("normal", "heavy-tailed", "tied")
HABITS = ("one class", "mixed", "Zipf")
FUSSY = ("fussy",)  # asks about a class until an image looks foreign, one in ten, and goes on to the next class
ROUND = 100  # queries of every client that are judged at once


@dataclass(frozen=True)
class Plan:
    """How much to simulate: calibrations, clients of each (as many of every habit), queries of each client."""

    draws: int
    clients: int
    queries: int
    classes: int = 10
    most: int = 500  # images a class
    habits: Sequence[str] = HABITS
    least: int = 20


LONG, QUICK, SECONDS = Plan(210, 21, 10_000), Plan(60, 21, 1000), Plan(30, 12, 300, most=60)
FUSSY_LONG, FUSSY_QUICK = (Plan(draws, 10, 2000, 100, 50, FUSSY) for draws in (60, 12))


@dataclass
class Client:
    """A benign client: its habit, the classes it knows in its own order, and where it is in that order."""

    habit: str
    order: Ints
    place: int = 0
    winnings: Winnings = field(default_factory=lambda: Winnings.empty(SCORES))

    def classes(self, foreign: NDArray[np.bool_], rng: np.random.Generator) -> Ints:
        """The classes of its next queries, of which some look foreign whatever their class."""
        count, known = len(foreign), len(self.order)
        if self.habit == "fussy":
            places = self.place + np.cumsum(foreign) - foreign
            self.place += int(foreign.sum())
            return self.order[places % known]
        weights = {"one class": np.arange(known) == 0, "mixed": np.ones(known), "Zipf": 1 / np.arange(1, known + 1)}
        chances = weights[self.habit] / weights[self.habit].sum()
        return self.order[rng.choice(known, count, p=chances)]


@dataclass
class Draw:
    """A calibration with its clients, and how rich each has been so far (0 to 3 levels)."""

    law: str
    betting: Betting
    centres: Floats  # (classes, SCORES) of the law
    clients: list[Client]
    levels: NDArray[np.int64]


def noise(law: str, count: int, rng: np.random.Generator) -> Floats:
    """(n, SCORES) what scores are around the centre of their class: dependent on each other."""
    plain = 0.7 * rng.normal(size=(count, 1)) + 0.7 * rng.normal(size=(count, SCORES))
    if law == "heavy-tailed":
        return plain / np.abs(rng.normal(size=(count, 1)))  # Cauchy's law, all scores at once
    return np.round(2 * plain) / 2 if law == "tied" else plain


def make_draw(number: int, plan: Plan, margin: float, rng: np.random.Generator) -> Draw:
    """One calibration, its classes of very different sizes, and its clients."""
    law = LAWS[number % len(LAWS)]
    sizes = np.exp(rng.uniform(np.log(plan.least), np.log(plan.most + 1), plan.classes)).astype(int)
    labels, centres = np.repeat(np.arange(plan.classes), sizes), rng.normal(size=(plan.classes, SCORES))
    scores = centres[labels] + noise(law, len(labels), rng)
    ranking = Ranking(labels, scores, robust_spreads(labels, scores, plan.classes), plan.classes, margin)
    habits = [plan.habits[i % len(plan.habits)] for i in range(plan.clients)]
    clients = [Client(habit, rng.permutation(plan.classes)) for habit in habits]
    return Draw(law, Betting(ranking), centres, clients, np.zeros(plan.clients, np.int64))


def simulate(plan: Plan, margin: float, seed: int = 0) -> list[Draw]:
    """All calibrations with their clients, played to the end."""
    rng = np.random.default_rng(seed)
    draws = [make_draw(number, plan, margin, rng) for number in range(plan.draws)]
    for first in range(0, plan.draws, 30):
        together = draws[first : first + 30]
        for start in range(0, plan.queries, ROUND):
            play(together, min(ROUND, plan.queries - start), rng)
    return draws


def play(draws: list[Draw], count: int, rng: np.random.Generator) -> None:
    """The next queries of every client; whoever reaches a level plays on for the next one."""
    labels, parts = [], []
    for draw in draws:
        around = noise(draw.law, count * len(draw.clients), rng)
        foreign = (around[:, 0] > np.quantile(around[:, 0], 0.9)).reshape(-1, count)
        of_draw = np.concatenate([client.classes(row, rng) for client, row in zip(draw.clients, foreign, strict=True)])
        labels.append(of_draw)
        parts.append(draw.betting.lanes(of_draw, draw.centres[of_draw] + around))
    players = [client.winnings for draw in draws for client in draw.clients]
    levels = np.concatenate([draw.levels for draw in draws])
    everything = dict(zip(ARRAYS, (np.concatenate(arrays) for arrays in zip(*parts, strict=True)), strict=True))
    asked, owner = np.concatenate(labels), np.repeat(np.arange(len(players)), count)
    test = Test(id=1, scores=SCORES, alpha=0.5, delta=0.5)
    after = np.full(len(players), -1)  # the row at which each client reached its last level: it plays on after it
    waiting = np.ones(len(players), np.bool_)
    for level in range(len(LEVELS) + 1):
        rows = np.flatnonzero(waiting[owner] & (levels[owner] == level) & (np.arange(len(owner)) > after[owner]))
        if len(rows) == 0:
            continue
        arrays = {name: array[rows] for name, array in everything.items()}
        bets = Bets(**arrays, digests=[], sketches=[], test=test, enforce=True)
        bar = test.size * LEVELS[level] if level < len(LEVELS) else inf
        numbers, local = np.unique(owner[rows], return_inverse=True)
        for i, row in zip(
            numbers, place_bets([players[i] for i in numbers], local, asked[rows], bets, bar), strict=True
        ):
            waiting[i] = row is not None
            if row is not None:
                after[i], levels[i] = rows[row], level + 1
    for i, draw in enumerate(draws):
        each = len(draw.clients)
        draw.levels = levels[i * each : (i + 1) * each]


def checks_of(draws: list[Draw], name: str) -> list[Check]:
    """The shares of clients that were ever so rich, against what the statement allows."""
    checks = []
    habits = dict.fromkeys(client.habit for client in draws[0].clients)
    for level, wanted in enumerate(LEVELS, start=1):
        shares = np.array([np.mean(draw.levels >= level) for draw in draws])
        error = shares.std(ddof=1) / sqrt(len(shares))
        holds = bool(shares.mean() <= 1 / wanted + ERRORS * error)
        of_habits = {
            habit: np.mean(
                [draw.levels[i] >= level for draw in draws for i, c in enumerate(draw.clients) if c.habit == habit]
            )
            for habit in habits
        }
        details = ", ".join(f"{habit} {share:.5f}" for habit, share in of_habits.items())
        measured = f"{shares.mean():.5f}, standard error {error:.5f} ({details})"
        checks.append(Check(f"{name}: ever above {wanted:g}, at most {1 / wanted:g}", holds, measured))
    return checks


def run(folder: Path, quick: bool) -> list[Check]:
    """Benign clients without margin and with the default one; and fussy ones, for whom only a margin helps."""
    plan, fussy = (QUICK, FUSSY_QUICK) if quick else (LONG, FUSSY_LONG)
    checks = [check for margin in (0.0, 0.2) for check in checks_of(simulate(plan, margin), f"margin {margin:g}")]
    checks += checks_of(simulate(fussy, 0.2), "fussy clients, margin 0.2")
    not_promised = checks_of(simulate(fussy, 0.0), "fussy clients, margin 0, no promise")
    return checks + [replace(check, holds=True) for check in not_promised]


Alteration = Callable[[Bets, Ints], Ints]


def nothing(bets: Bets, counts: Ints) -> Ints:
    """`den` is 1, as if calibration scores were the truth."""
    return np.zeros_like(counts)


def only_numbers(bets: Bets, counts: Ints) -> Ints:
    """`den` knows how many bets came before, but not which."""
    return np.where(np.arange(counts.shape[1]) < 1 + bets.test.scores, counts, 0)


DEFECTS: dict[str, Alteration] = {"den = 1": nothing, "den without the sum of q": only_numbers}


@contextmanager
def broken(counts_known: Alteration) -> Iterator[None]:
    """The sentinel's bets, priced with other counts than the true ones."""
    sound = wealth._factors
    wealth._factors = lambda bets, counts, steps: sound(bets, counts_known(bets, counts), steps)
    try:
        yield
    finally:
        wealth._factors = sound


def control(folder: Path, quick: bool) -> list[Check]:
    """The same clients where the price of a bet is wrong. A defect counts as noticed if it is at every level."""
    noticed = []
    for name, counts_known in DEFECTS.items():
        with broken(counts_known):
            checks = failed(checks_of(simulate(SECONDS, 0.0), name))
        if len(checks) < len(LEVELS):
            return []
        noticed += checks
    return noticed
