"""What the guard knows of benign clients, of thieves and of trusted clients, and the sentinel's test made of it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from queen.bundle.report import Benign
from queen.core.sensitivity import Floats
from queen.errors import CalibrationError
from queen.options import SCORES, Sentinel
from queen.sentinel.bets import Betting, Test
from queen.sentinel.conditions import CLEAN
from queen.sentinel.power import COVERS, PLAIN, AlarmAfter, Samples, alarm_after
from queen.sentinel.ranks import Ranking

EVIDENCE_VERSION = 2  # of the test's arithmetic, part of its identity
# Foreign images where there are no others: the first half is of one kind, the second of the other.
KINDS = ("noise", "shuffled patches")
MADE = " and ".join(KINDS)


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """Foreign images as the guard sees them, which tell how soon thieves are accused: labels (n,), scores (n, 4).

    `pictures` (n,) is equal for images that the guard takes for the same picture; None if it takes none so.
    """

    name: str
    labels: Tensor
    scores: Tensor
    pictures: Tensor | None = None

    @property
    def kinds(self) -> int:
        """Of how many kinds they are, one after the other and equally many of each; a thief sends one kind."""
        return len(KINDS) if self.name == MADE else 1

    def split(self) -> list[Foreign]:
        """Those of each kind by themselves."""
        names, size = KINDS if self.name == MADE else (self.name,), len(self.labels) // self.kinds
        parts = (slice(start, start + size) for start in range(0, self.kinds * size, size))
        return [
            Foreign(
                name=name,
                labels=self.labels[part],
                scores=self.scores[part],
                pictures=None if self.pictures is None else self.pictures[part],
            )
            for name, part in zip(names, parts, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class Trusted:
    """What trusted clients reached when their recorded traffic was replayed, with these scores and this margin.

    `highest` is the highest wealth that any of the `clients` ever had.
    """

    clients: int
    highest: float
    scores: tuple[str, ...]
    margin: float

    def __post_init__(self) -> None:
        if not self.clients >= 1 or not 0 <= self.highest < math.inf:
            raise CalibrationError(
                f"expected wealth of at least one trusted client, got {self.highest} of {self.clients}"
            )


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Benign images as the guard sees them, which tell the sentinel what is usual.

    Predicted `labels` (n,), relative `points` (n, 2), `scores` (n, 4) in the order of `SCORES` and their `spreads`
    (classes, 4), and `condition` (n,), an index into `conditions`: every image is here once, under a random condition.
    `answers` (m, classes) are the honest ones to some of the images, whose numbers decoys show.
    Not `certified`: these images trained the model. `account` names the account that alpha is spent from.
    """

    labels: Tensor
    points: Tensor
    scores: Tensor
    spreads: Tensor
    condition: Tensor
    answers: Tensor
    tolerance: float  # see `sentinel.sketch.measure_tolerance`
    conditions: tuple[str, ...] = (CLEAN,)
    certified: bool = True
    repeated: int = 0  # images left out because they repeat others
    account: str = ""
    foreign: Foreign | None = None
    trusted: Trusted | None = None

    def __post_init__(self) -> None:
        if not self.conditions or not isinstance(self.certified, bool):
            raise CalibrationError("a calibration needs conditions, and must say whether it is certified")
        if not isinstance(self.tolerance, float) or not 0 < self.tolerance < math.inf:
            raise CalibrationError(f"the tolerance must be a positive length, got {self.tolerance!r}")
        if not len(self.labels) or not len(self.answers) or (self.foreign is not None and not len(self.foreign.labels)):
            raise CalibrationError("a calibration needs images, answers to some of them, and images as foreign ones")
        if not isinstance(self.account, str):
            raise CalibrationError(f"the name of an account must be text, got {self.account!r}")

    @property
    def benign(self) -> Benign:
        """The images, for counting."""
        return Benign(self.labels.cpu().numpy(), self.points.cpu().numpy())

    def betting(self, settings: Sentinel) -> Betting:
        """What turns scores of queries into bets, by comparing them with these images."""
        images, spreads = _samples(self, settings), _columns(self.spreads, settings)
        return Betting(Ranking(images.labels, images.scores, spreads, len(spreads), settings.margin))

    def alarm_after(self, settings: Sentinel, covers: Iterable[str] = tuple(COVERS), *, number: int = 1) -> AlarmAfter:
        """After how many queries the foreign images would be caught; nothing where there are none.

        `number` is this calibration's in its ledger.
        """
        if self.foreign is None:
            return {}
        images, foreign = _samples(self, settings), replace(_samples(self.foreign, settings), kinds=self.foreign.kinds)
        if self.foreign.pictures is not None:
            foreign = replace(foreign, pictures=self.foreign.pictures.cpu().numpy())
        return alarm_after(self.betting(settings), self.test(settings), images, foreign, covers=covers, number=number)

    def caught_by_kind(self, settings: Sentinel) -> dict[str, float]:
        """The share of thieves who would be caught, by the kind of foreign images that they send, without cover.

        Nothing where there are not several kinds.
        """
        kinds = self.foreign.split() if self.foreign and self.foreign.kinds > 1 else []
        times = {one.name: replace(self, foreign=one).alarm_after(settings, [PLAIN]) for one in kinds}
        return {name: time[PLAIN]["caught"] or 0.0 for name, time in times.items()}

    def test(self, settings: Sentinel) -> Test:
        """The test that these images and settings make."""
        digest = hashlib.sha256(repr((EVIDENCE_VERSION, settings.scores, settings.margin, self.account)).encode())
        for tensor in (self.labels, self.scores):
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype}\0".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        number = int.from_bytes(digest.digest()[:8], "little", signed=True)
        trusted = self.trusted_under(settings)
        return Test(
            id=number,
            scores=len(settings.scores),
            alpha=settings.share,
            delta=settings.delta,
            account=self.account,
            least=math.nextafter(trusted.highest, math.inf) if trusted else 0.0,
        )

    def trusted_under(self, settings: Sentinel) -> Trusted | None:
        """What trusted clients reached, if it was measured with these scores and this margin."""
        trusted = self.trusted
        same = trusted is not None and (trusted.scores, trusted.margin) == (settings.scores, settings.margin)
        return trusted if same else None


def _samples(images: Calibration | Foreign, settings: Sentinel) -> Samples:
    return Samples(images.labels.cpu().numpy(), _columns(images.scores, settings))


def _columns(numbers: Tensor, settings: Sentinel) -> Floats:
    """The columns of the scores that are used."""
    chosen: Floats = numbers[:, [SCORES.index(name) for name in settings.scores]].double().cpu().numpy()
    return chosen
