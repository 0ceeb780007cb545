from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing

import pytest

from queen.ledger import Ledger
from tests.support.ledgers import ALL_LEDGERS


@pytest.fixture(params=ALL_LEDGERS.values(), ids=ALL_LEDGERS)
def ledger(request):
    """An empty ledger of every kind."""
    with closing(request.param()) as made:
        yield made


@pytest.fixture(params=ALL_LEDGERS.values(), ids=ALL_LEDGERS)
def make_ledger(request) -> Callable[[], AbstractContextManager[Ledger]]:
    """Opens as many empty ledgers of every kind as a test needs."""
    return lambda: closing(request.param())
