"""The guard of one process: opened once whoever comes first, closed at the end, and never taken across a fork."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from queen.errors import BindingError, BundleError, LedgerError, OptionError, ProtectionWarning, ShapeError
from queen.ledger import MemoryLedger, SqliteLedger, open_ledger
from queen.web.clients import Client
from queen.web.process import ProcessGuard
from tests.support.paths import ROOT
from tests.support.serving import digits, retrained_bundle, small_bundle, small_guard

ALICE = Client("alice")


def ask(guard: ProcessGuard, rows: int = 1):
    return asyncio.run(guard.answer(digits()[:rows], ALICE))


def test_many_threads_open_one_guard(tmp_path):
    opened = []

    def ledger():
        opened.append(1)
        return SqliteLedger(tmp_path / "clients.sqlite")

    guard = ProcessGuard(small_bundle(), ledger=ledger)
    found, start = [], threading.Barrier(8)

    def open_it():
        start.wait()
        found.append(guard.open())

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened == [1]
    assert len(set(map(id, found))) == 1
    guard.close()


def test_it_is_closed_once_and_may_be_opened_again(tmp_path):
    guard = ProcessGuard(small_bundle(), ledger=tmp_path / "clients.sqlite")
    guard.close()
    ask(guard)
    ledger = guard.open().ledger
    guard.close()
    guard.close()
    with pytest.raises(LedgerError):
        ledger.standing("alice")
    ask(guard)
    assert guard.open().ledger.standing("alice").queries == 2
    guard.close()


def test_a_guard_that_somebody_else_has_made_stays_open():
    made = small_guard()
    guard = ProcessGuard(made)
    ask(guard)
    guard.close()
    assert made.ledger.standing("alice").queries == 1


def test_one_that_could_not_be_opened_is_tried_again(tmp_path):
    path = tmp_path / "clients.sqlite"
    path.write_text("no ledger, but text that is long enough to be looked at as a database file" * 20)
    guard = ProcessGuard(small_bundle(), ledger=path)
    with pytest.raises(LedgerError):
        ask(guard)
    path.unlink()
    assert len(ask(guard).verdicts) == 1
    guard.close()


def test_what_cannot_be_opened_says_why(tmp_path):
    with pytest.raises(BundleError, match="no bundle at"):
        ProcessGuard(tmp_path / "nothing", ledger=tmp_path / "clients.sqlite").open()
    with pytest.raises(OptionError, match="no ledger at 'ftp://"):
        ProcessGuard(small_bundle(), ledger="ftp://x").open()
    first = ProcessGuard(small_bundle(), ledger=tmp_path / "clients.sqlite")
    first.open()
    with pytest.raises(BindingError):
        ProcessGuard(retrained_bundle(), ledger=tmp_path / "clients.sqlite").open()
    first.close()


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((7,), {}, "expected a guard or the folder of a bundle, got int"),
        (("digits",), {}, r"expected ledger=\.\.\., where clients are remembered"),
        (("digits",), {"ledger": "memory://", "threads": 0}, "threads must be a whole number"),
        (("digits",), {"ledger": "memory://", "threads": "4"}, "threads must be a whole number"),
        (("digits",), {"ledger": "memory://", "max_rows": 0}, "max_rows must be a whole number"),
    ],
)
def test_mistakes_are_told_when_the_application_is_loaded(arguments, options, message):
    with pytest.raises(OptionError, match=message):
        ProcessGuard(*arguments, **options)


@pytest.mark.parametrize("options", [{"ledger": "memory://"}, {"policy": "strict"}])
def test_a_guard_that_is_made_already_has_its_ledger_and_options(options):
    with pytest.raises(OptionError, match="has its ledger and options"):
        ProcessGuard(small_guard(), **options)


@pytest.mark.parametrize(
    "guard", [lambda: ProcessGuard(small_guard()), lambda: ProcessGuard(small_bundle(), ledger="memory://")]
)
def test_a_ledger_in_memory_is_warned_of(guard):
    with pytest.warns(ProtectionWarning, match="every process counts for itself"):
        assert isinstance(guard().open().ledger, MemoryLedger)


def test_a_deleted_ledger_answers_nobody(tmp_path):
    path = tmp_path / "clients.sqlite"
    guard = ProcessGuard(small_bundle(), ledger=path)
    ask(guard)
    path.unlink()
    with pytest.raises(LedgerError, match="moved or deleted"):
        ask(guard)
    guard.close()


FORK = """
import asyncio, os, sys
from queen.errors import OptionError
from queen.web.clients import Client
from queen.web.process import ProcessGuard
from tests.support.serving import digits, small_bundle, small_guard

def ask(guard):
    return asyncio.run(guard.answer(digits()[:1], Client("alice")))

shared, made = ProcessGuard(small_bundle(), ledger=sys.argv[1]), ProcessGuard(small_guard())
ask(shared), ask(made)
before = id(shared.open())
child = os.fork()
if not child:
    ask(shared)
    assert id(shared.open()) != before
    try:
        ask(made)
    except OptionError as error:
        assert "before the process forked" in str(error)
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
ask(shared)
print(shared.open().ledger.standing("alice").queries)
shared.close()
"""


@pytest.mark.slow
def test_after_a_fork_every_process_opens_its_own(tmp_path):
    command = [sys.executable, "-c", FORK, str(tmp_path / "clients.sqlite")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "3"
    ledger = open_ledger(tmp_path / "clients.sqlite")
    assert ledger.standing("alice").queries == 3
    ledger.close()


def test_a_question_of_too_many_rows_is_not_asked():
    made = small_guard()
    guard = ProcessGuard(made, max_rows=3)
    assert len(asyncio.run(guard.answer(digits()[:3], Client("alice"))).verdicts) == 3
    with pytest.raises(ShapeError, match="expected at most 3 rows in a question, got 4"):
        asyncio.run(guard.answer(digits()[:4], Client("alice")))
    assert made.ledger.standing("alice").queries == 3
    guard.close()


def test_what_waits_is_answered_before_the_ledger_is_closed_and_nothing_is_opened_again(tmp_path):
    opened, closed = [], []

    def ledger():
        made = open_ledger(tmp_path / "clients.sqlite")
        close, judge_rows = made.close, made.judge_rows
        made.close = lambda: (closed.append(1), close())
        made.judge_rows = lambda *given: (time.sleep(0.05), judge_rows(*given))[1]
        opened.append(1)
        return made

    guard = ProcessGuard(small_bundle(), ledger=ledger, threads=1)

    async def ask_and_close() -> int:
        waiting = [asyncio.ensure_future(guard.answer(digits()[:1], Client("alice"))) for _ in range(4)]
        await asyncio.sleep(0.01)
        await asyncio.to_thread(guard.close)
        return sum([len((await one).verdicts) for one in waiting])

    assert asyncio.run(ask_and_close()) == 4
    assert (len(opened), len(closed)) == (1, 1)
