"""A file of schema 3 becomes one of this version when it is opened: whole or not at all, and nothing an operator knows
is lost. `schema_3.sql` is the dump of a file that the last version wrote."""

from __future__ import annotations

import signal
import sqlite3
import struct
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from queen.errors import LedgerError
from queen.ledger import SqliteLedger
from queen.ledger.base import Budget
from queen.ledger.sqlite_open import SCHEMA_VERSION, stored_version
from queen.ledger.sqlite_schema import load
from tests.reference.watch import Rules
from tests.support.ledgers import run_threads
from tests.support.queries import FOREIGN, PLENTY, flags, judge, picture, wealth_of
from tests.support.schema_3 import DUMP, old_file
from tests.support.sqlite_failures import FailingConnection

RULES = Rules(PLENTY, bar=1e9)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return old_file(tmp_path / "ledger.db")


def content(path: Path) -> tuple[int, list[str]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute("PRAGMA user_version").fetchone()[0], list(db.iterdump())


def write_version(path: Path, version: int) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {version}")


def test_what_operators_know_survives_and_old_wealth_does_not(path):
    with closing(SqliteLedger(path)) as ledger:
        found = {s.name: s for s in ledger.standings()}
        events = ledger.events()
        points = {name: {k: v.tolist() for k, v in ledger.records(name).items()} for name in found if name != "team:1"}
        assert ledger._db.execute("PRAGMA foreign_key_check").fetchall() == []
        assert ledger._db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    counted = {name: (s.queries, s.extra_answers, s.alarmed, s.allowed) for name, s in found.items()}
    assert counted == {
        "alice": (8, 4, False, False),
        "bob": (3, 1, True, False),
        "carol": (3, 1, False, False),
        "dave": (6, 6, False, True),
        "erin": (3, 2, False, False),
        "frank": (2, 0, False, False),
        "team:1": (7, 4, False, False),
    }
    assert found["team:1"].group
    assert {s.wealth for s in found.values()} == {0.0}
    assert [s.budget for s in found.values() if s.budget] == [Budget(threshold=0.5, extra_answers=2)]
    assert found["alice"].coverage == {0: 0.05305540956777357, 2: 0.03363274895740073} == found["team:1"].coverage
    assert points["alice"] == {0: [[0.0, 0.0]], 2: [[0.5, 0.25]]}
    assert points["carol"] == {1: [[0.3, 0.0]]}
    assert [(e.id, e.what, e.name, e.client, e.wealth, e.actor, e.acknowledged) for e in events] == [
        (1, "alarm", "bob", "bob", 3.958333333333333, "", "olga"),
        (2, "alarm", "carol", "carol", 3.75, "", None),
        (3, "pardon", "carol", "", 3.75, "olga", None),
        (4, "allow", "dave", "", 0.0, "olga", None),
        (5, "budget", "erin", "", 0.0, "olga", None),
    ]


def test_an_old_file_and_a_new_one_have_the_same_tables(path, tmp_path):
    SqliteLedger(path).close()
    SqliteLedger(tmp_path / "new.db").close()
    tables = []
    for one in (path, tmp_path / "new.db"):
        with closing(sqlite3.connect(one)) as db:
            names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")]
            columns = {name: db.execute(f"PRAGMA table_info({name})").fetchall() for name in names}
            references = {name: db.execute(f"PRAGMA foreign_key_list({name})").fetchall() for name in names}
            tables.append((columns, references, db.execute("PRAGMA user_version").fetchone()))
    assert tables[0] == tables[1]
    assert tables[0][2] == (SCHEMA_VERSION,)


def test_judging_goes_on_where_it_stopped(path):
    with closing(SqliteLedger(path)) as ledger:
        assert flags(judge(ledger, RULES, picture(9, client="bob"))) == [("A", False, True, False)]  # still accused
        before = ledger.standing("alice").extra_answers
        assert not judge(ledger, RULES, [picture(i, client="alice") for i in (1, 3, 4, 5)]).spent.any()
        assert ledger.standing("alice").extra_answers == before  # answered by the last version, so free
        judge(ledger, RULES, picture(6, client="alice", bet=FOREIGN))  # refused by the last version
        assert ledger.standing("alice").extra_answers == before + 1
        assert ledger.standing("alice").wealth == 0.0  # but it is known: nothing is bet on it
        judge(ledger, RULES, picture(50, client="alice", bet=FOREIGN))
        assert ledger.standing("alice").wealth == wealth_of(FOREIGN)
        assert ledger.number_of(RULES.the_test) == 1


@pytest.mark.parametrize("count", [1, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("scope", [1, 77])
def test_the_ring_of_repeats_becomes_two_in_the_same_order(tmp_path, scope, count):
    def sketch(i: int) -> bytes:
        return struct.pack("<8f", i, *[0.0] * 7)

    def digest(i: int) -> int:
        return 0 if i % 3 == 1 else -i if i % 3 else i + 1  # 0: not answered

    tables = ";".join(part for part in DUMP.removeprefix("BEGIN TRANSACTION;").split(";") if "CREATE TABLE" in part)
    path = old_file(tmp_path / "ledger.db", tables)
    last = range(max(0, count - 1024), count)
    with closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO scope VALUES (?, ?, 0, x'', 0, 0, 0, 0, ?, NULL)", (scope, count, count))
        db.execute("INSERT INTO scope VALUES (?, 1, 0, x'', 0, 0, 0, 0, 1, NULL)", (scope + 1,))
        db.execute("INSERT INTO name VALUES ('a', 0, ?), ('neighbour', 0, ?)", (scope, scope + 1))
        db.executemany("INSERT INTO seen VALUES (?, ?, ?)", [
            *((scope * 1024 + i % 1024, digest(i), sketch(i)) for i in last), ((scope + 1) * 1024, 5, sketch(5))
        ])  # fmt: skip
        db.commit()
    with closing(SqliteLedger(path)) as ledger:
        memory = load(ledger._db, "a", group=False).memory
        neighbour = load(ledger._db, "neighbour", group=False).memory
    answered = [digest(i) for i in last if digest(i)]
    assert (memory.pictures, memory.answered, memory.digests.tolist()) == (count, len(answered), answered)
    assert [memory.picture(i % 1024)[0] for i in last] == list(last)
    assert (neighbour.pictures, neighbour.answered, neighbour.digests.tolist()) == (1, 1, [5])


STATEMENTS = (
    "CREATE TABLE new_scope",
    "INSERT INTO answered",
    "DROP TABLE seen",
    "DROP TABLE scope",
    "ALTER",
    "COMMIT",
)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_migration_that_fails_leaves_the_file_as_it_was(path, statement, monkeypatch):
    before, plain = content(path), sqlite3.connect

    class Failing(FailingConnection):
        def execute(self, sql: str, *values: object) -> sqlite3.Cursor:
            return super().execute(sql.strip(), *values)

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", lambda *args, **options: Failing(plain(*args, **options), statement))
        with pytest.raises(LedgerError, match="disk I/O error"):
            SqliteLedger(path)
    assert content(path) == before
    with closing(SqliteLedger(path)) as ledger:
        assert len(ledger.standings()) == 7


KILLED = """
import os, signal, sqlite3, sys
from queen.ledger import SqliteLedger, sqlite_open
def run(db, statements):
    for statement in statements.split(";"):
        if sys.argv[2] in statement:
            os.kill(os.getpid(), signal.SIGKILL)
        db.execute(statement)
sqlite_open._run = run
SqliteLedger(sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("statement", ["INSERT INTO new_scope", "RENAME TO scope"])
def test_kill_minus_nine_in_the_middle_loses_nothing(path, statement):
    before = content(path)
    child = subprocess.run([sys.executable, "-c", KILLED, str(path), statement], check=False)
    assert child.returncode == -signal.SIGKILL
    assert content(path) == before
    with closing(SqliteLedger(path)) as ledger:
        assert len(ledger.standings()) == 7


def test_many_may_open_an_old_file_at_the_same_moment(path):
    queries, start = [], threading.Barrier(8)

    def work(_: int) -> None:
        start.wait()
        with closing(SqliteLedger(path)) as ledger:
            queries.append(ledger.standing("alice").queries)

    run_threads(work, 8)
    assert queries == [8] * 8
    assert content(path)[0] == SCHEMA_VERSION


def test_a_migration_by_another_process_is_waited_for(path):
    queries = []

    def work() -> None:
        with closing(SqliteLedger(path, timeout=0.01)) as ledger:
            queries.append(ledger.standing("alice").queries)

    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(0.3)  # much longer than the timeout
        assert thread.is_alive()
        other.execute("ROLLBACK")
    thread.join(60)
    assert queries == [8]


def test_opening_a_migrated_file_again_changes_nothing(path):
    SqliteLedger(path).close()
    before = path.read_bytes()
    SqliteLedger(path).close()
    assert path.read_bytes() == before


@pytest.mark.parametrize("migrated", [True, False], ids=["migrated", "made anew"])
def test_a_version_that_a_server_of_the_last_one_wrote_back_is_mended(path, tmp_path, migrated):
    """Such a server may still run when the file is migrated, and writes its version when it is asked for its health."""
    file = path if migrated else tmp_path / "new.db"
    with closing(SqliteLedger(file)) as ledger:
        judge(ledger, RULES, picture(70, client="alice", bet=FOREIGN))
        before = ledger.standing("alice")
        write_version(file, 3)
        assert ledger.standing("alice") == before
        judge(ledger, RULES, picture(71, client="alice", bet=FOREIGN))  # one that is open goes on
        before = ledger.standing("alice")
    tables = content(file)[1]
    assert stored_version(file) == SCHEMA_VERSION  # whatever the pragma says
    with closing(SqliteLedger(file)) as ledger:
        assert ledger.standing("alice") == before
    assert content(file) == (SCHEMA_VERSION, tables)


def test_an_old_file_with_the_number_of_this_version_is_migrated(path):
    write_version(path, SCHEMA_VERSION)
    assert stored_version(path) == 3
    with closing(SqliteLedger(path)) as ledger:
        assert len(ledger.standings()) == 7
    assert content(path)[0] == SCHEMA_VERSION


@pytest.mark.parametrize("version", [3, SCHEMA_VERSION])
def test_a_file_without_the_tables_of_either_version_is_called_damaged_and_left_alone(path, version):
    write_version(path, version)
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE seen")
    before = content(path)
    with pytest.raises(LedgerError, match=r"damaged.*backup") as caught:
        SqliteLedger(path)
    assert "locked" not in str(caught.value)
    assert content(path) == before


def test_tables_that_are_not_ours_are_not_blamed_on_a_full_disk(tmp_path):
    file = tmp_path / "ledger.db"
    with closing(SqliteLedger(file)) as ledger:
        with closing(sqlite3.connect(file)) as other:
            other.execute("DROP TABLE winnings")
        with pytest.raises(LedgerError, match="no such table: winnings") as caught:
            judge(ledger, RULES, picture(0, bet=FOREIGN))
        assert "Nothing was recorded" in str(caught.value)
        assert "full" not in str(caught.value)
        assert "another version of queen" in str(caught.value)


def test_a_file_that_another_holds_is_called_locked(tmp_path):
    file = tmp_path / "ledger.db"
    with closing(SqliteLedger(file, timeout=0.01)) as ledger, closing(sqlite3.connect(file)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match="Nothing was recorded; is the file locked, read-only or full"):
            judge(ledger, RULES, picture(0, bet=FOREIGN))
