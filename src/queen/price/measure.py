"""All reference students: which there are, training them in one process or several, and the curve they make."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count, product, takewhile
from pathlib import Path
from statistics import mean

from queen.cache import Cache, code_version, fingerprint
from queen.errors import OptionError
from queen.parallel.processes import in_processes
from queen.price.curve import Curve, PriceRow
from queen.price.students import COLOURS, Jury, Pool, Student, choose_networks, teach
from queen.progress import Progress
from queen.recipe import Recipe
from queen.training import Schedule

SMALLEST = 30  # answers that a price begins with
LARGE = 10_000  # answers from which on a batch is four times as large: more epochs' worth of images a second
# Passes over its answers that a student makes at least. Where images are shifted and mirrored every pass shows others,
# so that students of many answers learn on for long (results/price_lengths).
EPOCHS, AUGMENTED_EPOCHS = 12, 60
Figures = dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Pricing:
    """How a price is measured: how long a student learns at least, how often it is repeated, and with what.

    `augment` shifts and mirrors images at random (None: those with three channels, which are photographs most often).
    A student takes at least so many `steps` and `epochs` (None: 60 passes over augmented images, else 12).
    `jobs` processes share the work (one GPU, too, best under NVIDIA's MPS); in a script these belong under
    `if __name__ == "__main__"`, since each of them imports it. What is finished is stored in `folder`, if there is one,
    and not done again.
    """

    steps: int = 1500
    epochs: int | None = None
    batch: int = 32
    rate: float = 0.05
    seeds: tuple[int, ...] = (0, 1, 2)
    augment: bool | None = None
    jobs: int = 1
    folder: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if not self.seeds or not all(isinstance(seed, int) for seed in self.seeds):
            raise OptionError(f"seeds must be whole numbers, at least one, got {self.seeds!r}")
        if not isinstance(self.jobs, int) or self.jobs < 1:
            raise OptionError(f"jobs must be a whole number of at least 1, got {self.jobs!r}")
        self.schedule(())  # which checks the rest

    def schedule(self, shape: Sequence[int], answers: int = SMALLEST) -> Schedule:
        """How long and how fast a student learns images of this shape, from so many answers."""
        pictures = len(shape) == 3
        augment = shape[0] == COLOURS if self.augment is None and pictures else bool(self.augment) and pictures
        epochs = self.epochs if self.epochs is not None else AUGMENTED_EPOCHS if augment else EPOCHS
        batch = self.batch * (4 if answers >= LARGE else 1)
        return Schedule(
            epochs=epochs, lr=self.rate, batch=batch, min_steps=self.steps, augment=augment, repeatable=True
        )


def sizes(pool: int) -> list[int]:
    """30, 100, 300, 1,000 ... as far as the pool goes, and the whole pool if it has half as many again.

    >>> sizes(867), sizes(1100)
    ([30, 100, 300, 867], [30, 100, 300, 1000])
    """
    rising = (first * 10**k for k in count(1) for first in (3, 10))
    chosen = list(takewhile(lambda size: size <= pool, rising))
    if not chosen:
        raise OptionError(f"expected at least {SMALLEST} images to measure a price with, got {pool}: give more")
    return [*chosen, pool] if pool > 1.5 * chosen[-1] else chosen


def measure_curve(
    pools: Sequence[Pool],
    jury: Jury,
    *,
    own: Recipe | None,
    pricing: Pricing,
    digits: int | None,
    device: str,
    show: Progress,
) -> Curve:
    """Train every student, or take it from the folder of an earlier run, and gather what they reached."""
    shape, classes = pools[0].images.shape[1:], pools[0].answers.shape[1]
    networks = choose_networks(shape, classes, own)
    students = [
        Student(name, recipe, pool.name, answers, label_only, seed)
        for pool in pools
        for answers in sizes(len(pool.images))
        for (name, recipe), label_only, seed in product(networks.items(), (False, True), pricing.seeds)
    ]
    students.sort(key=lambda student: student.answers)  # the quick ones first
    folder = None if pricing.folder is None else Path(pricing.folder)
    work = Work({pool.name: pool for pool in pools}, jury, pricing, device, folder)
    with show.timed("price"):
        outcomes = list(show.each("price of a copy", _outcomes(work, students, pricing.jobs), len(students)))
    outcomes.sort(key=lambda outcome: outcome[0].seed)  # processes are not ready in a fixed order
    return Curve(
        rows=tuple(_gather(outcomes)),
        steps=pricing.steps,
        epochs=pricing.schedule(shape).epochs,
        seeds=pricing.seeds,
        networks=tuple(networks),
        judged=len(jury.named),
        digits=digits,
    )


@dataclass(frozen=True)
class Work:
    """What all students share; `folder` is where the figures of finished ones are, if anywhere."""

    pools: Mapping[str, Pool]
    jury: Jury
    pricing: Pricing
    device: str
    folder: Path | None

    def schedule(self, student: Student) -> Schedule:
        """How this student learns."""
        return self.pricing.schedule(self.jury.images.shape[1:], student.answers)

    def run(self, student: Student) -> Outcome:
        """A student and its figures, which are stored for the next run."""

        def find() -> Figures:
            return teach(student, self.pools[student.pool], self.jury, self.schedule(student), self.device)

        if self.folder is None:
            return student, find()
        return student, Cache(self.folder).facts(f"student-{self._key(student)}", find)

    def _key(self, student: Student) -> str:
        """Names all that a student's figures depend on: the pool with the model's answers, the jury, the recipe."""
        facts = json.dumps(
            [asdict(student), asdict(self.schedule(student)), self.device.partition(":")[0]], sort_keys=True
        )
        versions = code_version("queen.training", "queen.zoo", "queen.price")
        return fingerprint(*(part.encode() for part in (facts, versions, self.pools[student.pool].key, self.jury.key)))


Outcome = tuple[Student, Figures]


def _outcomes(work: Work, students: Sequence[Student], jobs: int) -> Iterator[Outcome]:
    """Students and their figures in the order in which they are ready."""
    if jobs == 1:
        return map(work.run, students)
    return in_processes(work.run, students, jobs)


def _gather(outcomes: Iterable[Outcome]) -> Iterator[PriceRow]:
    """One row for each number of answers and kind of images and answers: the figures of the better network."""
    by_row: dict[tuple[str, int, bool], dict[str, list[Figures]]] = {}
    for student, figures in outcomes:
        row = by_row.setdefault((student.pool, student.answers, student.label_only), {})
        row.setdefault(student.network, []).append(figures)
    for (pool, answers, label_only), networks in sorted(by_row.items()):
        network, best = max(networks.items(), key=lambda item: _mean(item[1], "agreement"))
        agreements = [float(one["agreement"] or 0) for one in best]
        yield PriceRow(
            answers=answers,
            images=pool,
            label_only=label_only,
            agreement=mean(agreements),
            low=min(agreements),
            high=max(agreements),
            accuracy=None if best[0]["accuracy"] is None else _mean(best, "accuracy"),
            network=network,
        )


def _mean(figures: Sequence[Figures], name: str) -> float:
    return mean(float(one[name] or 0) for one in figures)
