"""A server that answers also when its ledger fails: friendly, and a gift to whoever can fill a disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from queen.cli import main
from queen.errors import LedgerError
from queen.guard import Guard
from queen.ledger import Judgement
from queen.options import Group
from queen.perturber import MeasuredBatch

strict = Guard.judge_rows


def judge_rows(
    self: Guard,
    batch: MeasuredBatch,
    clients: tuple[str, ...],
    owner: Sequence[int] | None,
    groups: Sequence[Mapping[str, Group]] | None = None,
) -> Judgement:
    """What the ledger says, or that all is well."""
    try:
        return strict(self, batch, clients, owner, groups)
    except LedgerError:
        no = np.zeros(len(batch.honest), np.bool_)
        return Judgement("A" * len(no), no, no, no)


if __name__ == "__main__":
    Guard.judge_rows = judge_rows  # type: ignore[method-assign]
    main()
