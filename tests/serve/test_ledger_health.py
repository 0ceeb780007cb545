"""A ledger that fails is reported once, and tried until it works again."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from queen.errors import BindingError, LedgerError, LostStateError
from queen.ledger import MemoryLedger
from queen.serve import ledger_health
from queen.serve.ledger_health import LedgerHealth
from queen.serve.telemetry.metrics import Metrics
from tests.support.metrics import values


class Broken(MemoryLedger):
    """Fails its first checks."""

    failures = 2

    def check(self):
        self.failures -= 1
        if self.failures >= 0:
            raise LedgerError("disk full")


def test_every_failed_batch_is_counted_and_every_change_is_reported_once():
    metrics, changes = Metrics(), []
    health = LedgerHealth(MemoryLedger(), metrics, ThreadPoolExecutor(1), lambda: changes.append(health.works))
    error = LedgerError("disk full")
    for outcome in (None, error, error, None, None, error):
        health.report(outcome)
        assert health.works == (outcome is None)
    assert changes == [False, True, False]
    assert values(metrics)["queen_ledger_errors_total"] == 3


def test_a_failed_ledger_is_checked_until_it_works(monkeypatch):
    monkeypatch.setattr(ledger_health, "CHECK_EVERY", 0.01)

    async def check():
        ledger = Broken()
        with ThreadPoolExecutor(1) as pool:
            health = LedgerHealth(ledger, Metrics(), pool)
            task = asyncio.create_task(health.watch())
            await asyncio.sleep(0.05)
            assert ledger.failures == 2  # nothing is written to one that works
            health.report(LedgerError("disk full"))
            while not health.works:
                await asyncio.sleep(0.01)
            task.cancel()
        assert ledger.failures == -1

    asyncio.run(asyncio.wait_for(check(), 30))


class Forgetful(MemoryLedger):
    """Has lost state until somebody says that it has not."""

    lost = False

    def verify(self):
        if self.lost:
            raise LedgerError("went back in time")

    check = verify


def test_a_ledger_that_lost_state_is_noticed_without_a_request(monkeypatch):
    monkeypatch.setattr(ledger_health, "CHECK_EVERY", 0.01)

    async def check():
        ledger, changes = Forgetful(), []
        with ThreadPoolExecutor(1) as pool:
            health = LedgerHealth(ledger, Metrics(), pool, lambda: changes.append(health.works))
            task = asyncio.create_task(health.watch())
            for lost in (True, False):
                ledger.lost = lost
                while health.works == lost:
                    await asyncio.sleep(0.01)
            task.cancel()
        assert changes == [False, True]

    asyncio.run(asyncio.wait_for(check(), 30))


def test_a_ledger_that_fails_during_a_check_has_not_recovered_by_it(monkeypatch):
    monkeypatch.setattr(ledger_health, "CHECK_EVERY", 0.01)

    async def check():
        ledger, looks = Broken(), []

        def bind():
            looks.append(health.works)
            if len(looks) == 1:
                health.report(LedgerError("disk full"))

        with ThreadPoolExecutor(1) as pool:
            health = LedgerHealth(ledger, Metrics(), pool, bind=bind)
            task = asyncio.create_task(health.watch())
            while not (health.works and looks):
                await asyncio.sleep(0.001)
            task.cancel()
        assert ledger.failures == -1  # it was asked before it was believed
        assert looks[0]

    asyncio.run(asyncio.wait_for(check(), 30))


def test_a_ledger_that_was_taken_over_is_reported_once_and_again_when_it_is_back(monkeypatch):
    monkeypatch.setattr(ledger_health, "CHECK_EVERY", 0.01)

    async def check():
        taken, changes, looks = True, [], []

        def bind():
            looks.append(taken)
            if taken:
                raise BindingError("another bundle's")

        with ThreadPoolExecutor(1) as pool:
            metrics = Metrics()
            health = LedgerHealth(MemoryLedger(), metrics, pool, lambda: changes.append(health.works), bind)
            task = asyncio.create_task(health.watch())
            while len(looks) < 5:
                await asyncio.sleep(0.01)
            assert (health.works, changes, values(metrics)["queen_ledger_errors_total"]) == (False, [False], 1)
            taken = False
            while not health.works:
                await asyncio.sleep(0.01)
            task.cancel()
        assert changes == [False, True]

    asyncio.run(asyncio.wait_for(check(), 30))


@pytest.mark.parametrize("kind", [LostStateError, BindingError])
def test_what_only_an_operator_can_help_with_is_logged_also_after_another_error_and_once(caplog, kind):
    health = LedgerHealth(MemoryLedger(), Metrics(), ThreadPoolExecutor(1))
    gone, lost = LedgerError("connection refused"), kind("went back in time")
    for outcome in (gone, gone, lost, lost, gone, None, lost):
        health.report(outcome)
    errors = [record.fields["error"] for record in caplog.records if record.message == "ledger failed"]
    assert errors == ["connection refused", "went back in time", "went back in time"]
