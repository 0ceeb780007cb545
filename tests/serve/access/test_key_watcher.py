"""Keys that change while the server runs: read once for all who ask, and budgets are waited for."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

from queen.ledger import Budget, MemoryLedger
from queen.serve.access import key_watcher as refresh
from queen.serve.access.auth import Authenticator
from queen.serve.access.budgets import KeysWithBudgets
from queen.serve.access.key_store import FileKeys
from queen.serve.access.key_watcher import KeyWatcher
from queen.serve.types import ServeError
from tests.support.failing_ledger import FailingFor


class CountingKeys(FileKeys):
    """Notes how often the keys were read, and for every reading which keys there were."""

    readings = 0

    def version(self):
        self.readings += 1
        return super().version()


@asynccontextmanager
async def watching(home, ledger=None):
    """A watcher, the store that it reads, and what it has reported."""
    store, changes = CountingKeys(home), []
    keys = KeysWithBudgets(store, ledger or MemoryLedger())
    with ThreadPoolExecutor(1) as pool:
        yield KeyWatcher(Authenticator(keys), keys, pool, lambda: changes.append(1)), store, changes


def run(check):
    asyncio.run(asyncio.wait_for(check(), 30))


def test_a_key_made_a_moment_ago_is_found_and_a_bogus_one_is_not(tmp_path):
    async def check():
        async with watching(tmp_path) as (watcher, store, _):
            key, _ = store.add("alice")
            assert (await watcher.caller(f"Bearer {key}", None, None)).client == "alice"
            with pytest.raises(ServeError) as error:
                await watcher.caller(f"Bearer {key[:-1]}x", None, None)
            assert error.value.status == 401

    run(check)


def test_those_who_refresh_at_once_share_one_reading(tmp_path):
    async def check():
        async with watching(tmp_path) as (watcher, store, _):
            before = store.readings
            await asyncio.gather(*(watcher.refresh() for _ in range(20)))
            assert store.readings == before + 1

    run(check)


def test_a_client_whose_budget_is_not_in_force_waits(tmp_path):
    async def check():
        ledger = FailingFor({"adam"})
        async with watching(tmp_path, ledger) as (watcher, store, _):
            key, _ = store.add("adam", budget=Budget(extra_answers=3))
            with pytest.raises(ServeError) as error:
                await watcher.caller(f"Bearer {key}", None, None)
            assert (error.value.status, error.value.retry_after) == (503, 1)
            ledger.broken.clear()
            await watcher.refresh()
            assert (await watcher.caller(f"Bearer {key}", None, None)).client == "adam"
            assert ledger.standing("adam").budget == Budget(extra_answers=3)

    run(check)


def test_only_an_admin_key_operates(tmp_path):
    async def check():
        async with watching(tmp_path) as (watcher, store, _):
            plain, admin = store.add("alice")[0], store.add("boss", admin=True)[0]
            assert (await watcher.admin(f"Bearer {admin}", None, None)).client == "boss"
            with pytest.raises(ServeError) as error:
                await watcher.admin(f"Bearer {plain}", None, None)
            assert error.value.status == 403

    run(check)


def test_unreadable_keys_are_reported_once_and_so_is_their_return(tmp_path, monkeypatch):
    monkeypatch.setattr(refresh, "REFRESH_EVERY", 0.01)

    async def check():
        async with watching(tmp_path) as (watcher, store, changes):
            store.add("alice")
            good = (tmp_path / "keys.json").read_text()
            task = asyncio.create_task(watcher.watch())
            for text, works in (("{", False), (good, True)):
                (tmp_path / "keys.json").write_text(text)
                while watcher.works != works:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.05)
            task.cancel()
            assert len(changes) == 2

    run(check)
