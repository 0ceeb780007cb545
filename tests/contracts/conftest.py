from __future__ import annotations

from contextlib import closing

import pytest

from tests.support.ledgers import ALL_LEDGERS


@pytest.fixture(params=ALL_LEDGERS.values(), ids=ALL_LEDGERS)
def ledger(request):
    """An empty ledger of every kind."""
    with closing(request.param()) as made:
        yield made
