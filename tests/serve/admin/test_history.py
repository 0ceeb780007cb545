"""What operators see of the past is what is in the ledger, though only what is new is read."""

from __future__ import annotations

from contextlib import closing
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queen.ledger import Ledger, MemoryLedger, SqliteLedger
from queen.ledger.words import NOTICES
from queen.serve.admin.history import History
from tests.reference.watch import Rules
from tests.support.ledgers import ALL_LEDGERS
from tests.support.queries import FOREIGN, PLENTY, judge, picture

NAMES = ("a", "b", "c")
STEPS = st.lists(st.tuples(st.sampled_from(("alarm", "pardon", "acknowledge", "look")), st.integers(0, 9)), max_size=30)


def step(ledger: Ledger, what: str, number: int) -> None:
    name = NAMES[number % 3]
    if what == "alarm":
        judge(ledger, Rules(PLENTY, bar=1.0), picture(0, client=name, bet=FOREIGN))
    elif what == "pardon":
        ledger.pardon(name, "boss")
    elif what == "acknowledge" and number < len(ledger.events()):
        ledger.acknowledge(number + 1, f"olga {number}")


def assert_same(history: History, ledger: Ledger) -> None:
    everything = ledger.events()
    assert history.events == everything
    assert history.unacknowledged == sum(e.what in NOTICES and e.acknowledged is None for e in everything)
    for name in NAMES:
        assert history.about(name, group=False) == [e for e in everything if e.name == name]


@settings(max_examples=30, deadline=None)
@given(STEPS)
def test_it_shows_what_is_in_the_ledger(steps):
    ledger = MemoryLedger()
    history = History(ledger)
    for what, number in steps:
        step(ledger, what, number)
        if what == "look":
            assert_same(history.refresh(), ledger)
    assert_same(history.refresh(), ledger)


@pytest.mark.parametrize("make", ALL_LEDGERS.values(), ids=ALL_LEDGERS)
def test_what_is_known_is_not_read_again(make):
    with closing(make()) as ledger:
        history = History(ledger)
        for name in NAMES:
            ledger.pardon(name, "boss")
        history.refresh()
        ledger.pardon("a", "boss")
        ledger.acknowledge(1, "olga")
        with patch.object(ledger, "events", wraps=ledger.events) as events:
            history.refresh()
        events.assert_called_once_with(after=2)
        assert_same(history, ledger)


@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_another_ledger_in_its_place_is_read_from_the_start(count):
    old, new = SqliteLedger(":memory:"), SqliteLedger(":memory:")
    history = History(old)
    for _ in range(3):
        old.pardon("a", "boss")
    history.refresh()
    for _ in range(count):
        new.pardon("b", "boss")
    history._ledger = new
    assert_same(history.refresh(), new)
