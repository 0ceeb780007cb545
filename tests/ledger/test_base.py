"""What the stores share."""

from __future__ import annotations

import pytest

from queen.ledger.base import LedgerBase


@pytest.mark.parametrize(
    "order",
    [
        lambda ledger: ledger.pardon("alice", "op"),
        lambda ledger: ledger.allow("alice", "op"),
        lambda ledger: ledger.set_budget("alice", None, "op"),
    ],
    ids=["pardon", "allow", "budget"],
)
def test_a_store_that_does_not_say_how_orders_are_carried_out_refuses_them(order):
    class Silent(LedgerBase):
        pass

    with pytest.raises(NotImplementedError, match="Silent takes no orders"):
        order(Silent())
