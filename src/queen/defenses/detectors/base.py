"""A detector as a defense: it scores what a client sends, and refuses everything once the score passes a threshold.

All detectors get their threshold in the same way, so that they can be compared: simulated benign clients send images
held out from training, and at most a share `alpha` of them may ever be accused within a `life` of so many queries.
Clients draw from the same images, so the rate is approximate, and it says nothing of clients that send more.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from queen.cache import code_version, fingerprint
from queen.core.split import find_split
from queen.defenses.base import Endpoint, Victim
from queen.defenses.checks import check_number
from queen.errors import CalibrationError, OptionError, RefusedError
from queen.types import Oracle, Reply, Verdict

BATCH = 512
Scores = NDArray[np.float64]


@dataclass(frozen=True)
class QueryBatch:
    """Queries x (n, ...) in the order they came, with the victim's features (n, D) and labels (n,) of them."""

    x: Tensor
    features: Tensor
    labels: Tensor

    def take(self, rows: Tensor) -> QueryBatch:
        """The given rows only."""
        rows = rows.to(self.labels.device)
        return QueryBatch(self.x[rows], self.features[rows], self.labels[rows])


class Watch(Protocol):
    """What a detector remembers of one client."""

    def follow(self, batch: QueryBatch) -> Scores:
        """Remember a batch; the client's score (n,) after each of its queries, -inf where there is no judgement.

        The higher, the more it looks like extraction. Scores do not depend on how queries are dealt to batches.
        """
        ...


class FeatureReader:
    """The victim, read once per query: features, labels and probabilities in one pass."""

    def __init__(self, victim: Victim) -> None:
        self._split = find_split(victim.model, victim.train[0][:2])

    @torch.no_grad()  # not inference mode, whose tensors may not enter autograd: thieves are trained on answers
    def read(self, x: Tensor) -> tuple[QueryBatch, Tensor]:
        """A batch as detectors see it, and the victim's own probabilities (n, K)."""
        outputs = [self._split(part) for part in x.split(BATCH)]  # type: ignore[no-untyped-call]
        features, logits = (torch.cat(parts).float() for parts in zip(*outputs, strict=True))
        return QueryBatch(x, features.double(), logits.argmax(1)), logits.softmax(1)


@dataclass(frozen=True, kw_only=True)
class FalseAlarms:
    """How rare false accusations are to be: at most a share `alpha` of benign clients within `life` queries each.

    A life of None is a quarter of the calibration images. Scores may grow with every query, so the promise is for
    clients that send as many and no more. The threshold comes from this many simulated `clients`.
    """

    alpha: float = 0.01
    life: int | None = None
    clients: int = 200

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, 0, 0.5, above=True)
        if self.life is not None:
            check_count("life", self.life)
        check_count("clients", self.clients)
        if self.rank > self.clients:
            raise OptionError(
                f"an alpha of {self.alpha:g} takes at least {math.ceil(1 / self.alpha) - 1} simulated clients, "
                f"got clients={self.clients}"
            )

    @property
    def rank(self) -> int:
        """The threshold's place among the clients' highest scores, from below: another client drawn like these is above
        it with probability alpha at most."""
        return math.ceil((1 - self.alpha) * (self.clients + 1) - 1e-9)  # .99 * 200 is above 198 in floating point

    def choose_life(self, images: int) -> int:
        """The life that so many calibration images are enough for: half of them at most, so that clients differ."""
        if self.life is None:
            return max(1, images // 4)
        if self.life > images // 2:
            raise CalibrationError(
                f"expected a life of at most half of the calibration images, got {self.life} with {images} of them: "
                f"lower life to {images // 2}, or give at least {2 * self.life} images"
            )
        return self.life


def check_count(name: str, value: object, least: int = 1) -> None:
    """Refuse anything but a whole number from `least` on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise OptionError(f"{name} must be a whole number of at least {least}, got {value!r}")


def choose_threshold(
    open_watch: Callable[[], Watch], images: QueryBatch, wanted: FalseAlarms, generator: torch.Generator
) -> float:
    """The score that at most a share alpha of simulated benign clients ever passes.

    Each sends its own random images, none twice; two clients may share some.
    """
    count = len(images.labels)
    life = wanted.choose_life(count)
    orders = [torch.randperm(count, generator=generator)[:life] for _ in range(wanted.clients)]
    highest = [float(open_watch().follow(images.take(order)).max(initial=-math.inf)) for order in orders]
    threshold = sorted(highest)[wanted.rank - 1]
    if threshold == -math.inf:
        raise CalibrationError(
            f"no benign client is judged within a life of {life} queries: give a larger life (at most half of the "
            f"{count} calibration images), or more images"
        )
    return threshold


@dataclass
class ClientRecord:
    """One client: what the detector remembers of it, and whether it stands accused."""

    watch: Watch
    accused: bool = False


class DetectorEndpoint:
    """A victim that answers honestly until a client's score passes the threshold, and then refuses that client.

    The query that trips the alarm is refused too.
    """

    def __init__(self, reader: FeatureReader, open_watch: Callable[[], Watch], threshold: float) -> None:
        self.threshold = threshold
        self._reader, self._open_watch = reader, open_watch
        self._records: dict[str, ClientRecord] = {}
        self._verdicts: Counter[str] = Counter(alarmed=0, refused=0, honest=0)

    @property
    def verdicts(self) -> Mapping[str, int]:
        """How many queries so far were "alarmed", "refused" and "honest"."""
        return dict(self._verdicts)

    def client(self, name: str) -> Oracle:
        """Honest answers, until this client is accused."""

        def answer(x: Tensor) -> Tensor:
            batch, honest = self._reader.read(x)
            refused = self._judge(name, batch)
            self._verdicts.update(alarmed=int(refused.sum()), refused=int(refused.sum()), honest=int((~refused).sum()))
            if not refused.any():
                return honest
            answers = honest.masked_fill(torch.from_numpy(refused).to(honest.device)[:, None], 1 / honest.shape[1])
            verdicts = (Verdict.OUTSIDE,) * len(answers)  # there are no discs
            reply = Reply(answers, verdicts, alarmed=refused, refused=refused, honest=~refused)
            raise RefusedError(f"client '{name}' stands accused: {refused.sum()} of {len(x)} queries refused", reply)

        return answer

    def _judge(self, name: str, batch: QueryBatch) -> NDArray[np.bool_]:
        """Which queries (n,) come at or after the alarm."""
        record = self._records.setdefault(name, ClientRecord(self._open_watch()))
        if record.accused:
            return np.ones(len(batch.labels), np.bool_)
        refused: NDArray[np.bool_] = np.logical_or.accumulate(record.watch.follow(batch) > self.threshold)
        record.accused = bool(refused.any())
        return refused

    def replay(self, x: Tensor) -> Callable[[Tensor], int | None]:
        """Images x (n, ...) read once, for any number of new clients, who get no answers and are not remembered.

        The function returned takes the rows (m,) that a client sends, in order, and returns the query at which it is
        accused; None if it never is.
        """
        batch, _ = self._reader.read(x)

        def alarm_at(rows: Tensor) -> int | None:
            above = self._open_watch().follow(batch.take(rows)) > self.threshold
            return int(above.argmax()) + 1 if above.any() else None

        return alarm_at

    def simulate(self, clean: Tensor, x: Tensor, generator: torch.Generator) -> Tensor:
        """The clean answers: whoever is accused gets none."""
        return clean[None]


def start_detector(
    victim: Victim,
    generator: torch.Generator,
    make_watch: Callable[[FeatureReader, torch.Generator], Callable[[], Watch]],
    wanted: FalseAlarms,
    recipe: Mapping[str, Any],
) -> Endpoint:
    """The victim behind a detector, whose threshold is computed now or taken from the victim's cache.

    `make_watch` gives the function that opens the watch over a new client; `recipe` names the detector's options. All
    that is drawn comes from a generator of its own, so that `generator` is left in the same state by the cache.
    """
    if victim.calibration is None:
        raise CalibrationError("a detector takes its threshold from images held out from training: give calibration")
    images = victim.calibration[0]
    reader = FeatureReader(victim)
    seed = int(torch.randint(2**62, (1,), generator=generator))
    open_watch = make_watch(reader, torch.Generator().manual_seed(seed))

    def find() -> float:
        return choose_threshold(open_watch, reader.read(images)[0], wanted, torch.Generator().manual_seed(seed))

    if victim.cache is None:
        return DetectorEndpoint(reader, open_watch, find())
    content = [dict(recipe), asdict(wanted), seed, code_version("queen.defenses.detectors")]
    tensors = [*victim.model.state_dict().values(), images, *victim.train]
    name = f"detector-{fingerprint(json.dumps(content, sort_keys=True).encode(), *tensors)}"
    return DetectorEndpoint(reader, open_watch, victim.cache.facts(name, find))
