"""The sentinel as the guard uses it: the bets on a batch for the ledger, the limits of groups, and decoys."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from queen.bundle.bundle import Bundle
from queen.core.inputs import is_finite
from queen.core.sensitivity import Floats
from queen.errors import CalibrationError, NotFiniteError, OptionError
from queen.ledger.rows import check_client
from queen.options import Group
from queen.secret import derive, query_numbers
from queen.sentinel.bets import Bets
from queen.sentinel.decoy import Answers, draw_decoys
from queen.sentinel.rounding import round_answers
from queen.sentinel.scores import measure_scores
from queen.sentinel.sketch import Sketch, directions
from queen.types import Inputs


class SentinelRuntime:
    """A bundle's evidence with a secret: bets, sketches and decoys for batches of queries."""

    def __init__(self, bundle: Bundle, secret: bytes) -> None:
        self._settings = bundle.sentinel
        self._reference = bundle.reference
        self._enforce = bundle.sentinel.on_alarm != "observe" and not bundle.observe
        watching = bundle.policy == "sentinel"
        self._betting, self._test = bundle.betting if watching else None, bundle.test if watching else None
        self._key = derive(secret, f"sentinel {bundle.identity}")
        self._decoy_key = derive(secret, f"decoys {bundle.identity}")
        self._bank = _bank(bundle) if watching else None
        centres = bundle.geometry.feature_centres
        tolerance = bundle.calibration.tolerance if bundle.calibration else 1.0
        self._directions = directions(self._key, centres.shape[1], tolerance).to(centres.device)

    def group_limits(self, names: Sequence[str]) -> dict[str, Group]:
        """The limits of every named group; an error unless the operator has set some for its kind."""
        if isinstance(names, str):
            raise OptionError(f"groups must be a list of names, got '{names}'")
        known = self._settings.groups
        kinds = [check_client(name).partition(":")[0] for name in names]
        for name, kind in zip(names, kinds, strict=True):
            if kind not in known:
                listed = ", ".join(known) or "none"
                raise OptionError(f"no limits for group '{name}'; kinds with limits: {listed} (option groups=...)")
        if len(set(kinds)) != len(kinds):
            raise OptionError(f"expected at most one group of each kind, got {list(names)}")
        return {name: known[kind] for name, kind in zip(names, kinds, strict=True)}

    def bets(
        self, x: Inputs, labels: NDArray[np.int64], features: Tensor, logits: Tensor, honest: Tensor, points: Floats
    ) -> Bets | None:
        """The bets on every row, which the ledger turns into wealth; None unless the policy is the sentinel's."""
        if self._betting is None or self._test is None:
            return None
        names = self._settings.scores
        on_cpu = logits.cpu().numpy(), honest.cpu().numpy()
        scores = measure_scores(names, features, *on_cpu, points, self._reference)
        size, total, bet, count = self._betting.lanes(labels, scores)
        return Bets(
            size=size,
            total=total,
            bet=bet,
            count=count,
            digests=query_numbers(self._key, x),
            sketches=self._sketch(features),
            test=self._test,
            enforce=self._enforce,
            after_alarm=inf if self._settings.after_alarm is None else self._settings.after_alarm,
        )

    def decoys(self, bets: Bets) -> Tensor:
        """An answer (n, K) for every row of a batch that says nothing about it; already rounded, and on the CPU."""
        if self._bank is None:
            raise CalibrationError("only the policy 'sentinel' has decoys")
        return torch.from_numpy(draw_decoys(bets.digests, self._decoy_key, self._bank))

    def _sketch(self, features: Tensor) -> list[Sketch]:
        sketches = features @ self._directions
        if not is_finite(sketches):  # said now, it is this batch's error; in the ledger it would be everybody's
            raise NotFiniteError("the model's features are too large for this input")
        return [tuple(row) for row in sketches.tolist()]


def _bank(bundle: Bundle) -> Answers | None:
    """The numbers of decoys (m, K), rounded like honest answers."""
    if bundle.calibration is None:
        return None
    answers, digits = bundle.calibration.answers.cpu(), bundle.digits
    rounded: Answers = (answers if digits is None else round_answers(answers, digits)).numpy()
    return rounded
