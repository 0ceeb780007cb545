"""A file of an older schema becomes one of this version when it is opened: whole or not at all, and nothing an operator
knows is lost. `schema_*.sql` are dumps of files that those versions wrote."""

from __future__ import annotations

import signal
import sqlite3
import struct
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from queen.errors import LedgerError
from queen.ledger import MemoryLedger, SqliteLedger
from queen.ledger.sqlite.open import SCHEMA_VERSION, stored_version
from queen.ledger.sqlite.schema import load
from queen.ledger.words import NOTICES, Budget
from tests.reference.watch import Rules
from tests.support.evidence import evidence_of
from tests.support.ledgers import records_and_coverage, run_threads
from tests.support.old_files import DUMPS, HISTORY_RULES, history, old_file
from tests.support.queries import (
    FOREIGN,
    PLENTY,
    events,
    flags,
    judge,
    outcomes,
    picture,
    standings,
    wealth_of,
)
from tests.support.sqlite_failures import FailingConnection

RULES = Rules(PLENTY, bar=1e9)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of schema 3."""
    return old_file(tmp_path / "ledger.db")


@pytest.fixture(params=DUMPS)
def any_path(tmp_path: Path, request) -> Path:
    """A file of every older schema."""
    return old_file(tmp_path / "ledger.db", request.param)


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


@pytest.mark.parametrize("version", [4, 5])
def test_nothing_is_lost_of_a_file_of_a_schema_since_4(tmp_path, version):
    memory = MemoryLedger()
    history(memory)
    memory._events = [event for event in memory._events if event.what not in NOTICES[1:]]  # were not noted then
    path = old_file(tmp_path / "ledger.db", version)
    with closing(SqliteLedger(path)) as ledger:
        accused = [s.name for s in ledger.standings() if s.alarmed]
        assert accused == ["bob", "carol"]
        for name in accused if version == 4 else ():
            assert ledger.standing(name).after_alarm == 0  # counting begins now
            memory._states[False, name].after_alarm = 0
        names = [s.name for s in memory.standings() if not s.group]
        assert [evidence_of(ledger, name) for name in names] == [evidence_of(memory, name) for name in names]
        assert [records_and_coverage(ledger, name) for name in names] == [
            records_and_coverage(memory, name) for name in names
        ]
        rules = replace(HISTORY_RULES, after_alarm=20)
        later = [picture(i, client=name, bet=FOREIGN) for i in (0, 1, 2, 6, 30, 31) for name in names]
        for _ in range(2):
            assert (standings(ledger), events(ledger)) == (standings(memory), events(memory))
            assert outcomes(judge(ledger, rules, later)) == outcomes(judge(memory, rules, later))
        assert [e.acknowledged for e in ledger.events()][:2] == ["olga", None]
        assert ledger._db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_an_old_file_and_a_new_one_have_the_same_tables(any_path, tmp_path):
    path = any_path
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

    tables = ";".join(part for part in DUMPS[3].removeprefix("BEGIN TRANSACTION;").split(";") if "CREATE TABLE" in part)
    path = old_file(tmp_path / "ledger.db", dump=tables)
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


STATEMENTS = [
    *((3, one) for one in ("CREATE TABLE new_scope", "INSERT INTO answered", "DROP TABLE seen", "DROP TABLE scope")),
    *((version, one) for version in DUMPS for one in ("CREATE", "PRAGMA user_version = ", "COMMIT")),
]


@pytest.mark.parametrize(("version", "statement"), STATEMENTS)
def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path, version, statement, monkeypatch):
    path = old_file(tmp_path / "ledger.db", version)
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
from queen.ledger import SqliteLedger
from queen.ledger.sqlite import open as sqlite_open
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


def test_many_may_open_an_old_file_at_the_same_moment(any_path):
    clients, start = [], threading.Barrier(8)

    def work(_: int) -> None:
        start.wait()
        with closing(SqliteLedger(any_path)) as ledger:
            clients.append(list(ledger.clients()))

    run_threads(work, 8)
    assert clients == [["alice", "bob", "carol", "dave", "erin", "frank"]] * 8
    assert content(any_path)[0] == SCHEMA_VERSION


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


def test_opening_a_migrated_file_again_changes_nothing(any_path):
    SqliteLedger(any_path).close()
    before = any_path.read_bytes()
    SqliteLedger(any_path).close()
    assert any_path.read_bytes() == before


@pytest.mark.parametrize("migrated", [True, False], ids=["migrated", "made anew"])
@pytest.mark.parametrize("version", DUMPS)
def test_a_version_that_a_server_of_an_older_one_wrote_back_is_mended(tmp_path, version, migrated):
    """Such a server may still run when the file is migrated, and writes its version when it is asked for its health."""
    file = old_file(tmp_path / "ledger.db", version) if migrated else tmp_path / "new.db"
    with closing(SqliteLedger(file)) as ledger:
        judge(ledger, RULES, picture(70, client="alice", bet=FOREIGN))
        before = ledger.standing("alice")
        write_version(file, version)
        assert ledger.standing("alice") == before
        judge(ledger, RULES, picture(71, client="alice", bet=FOREIGN))  # one that is open goes on
        before = ledger.standing("alice")
    tables = content(file)[1]
    assert stored_version(file) == SCHEMA_VERSION  # whatever the pragma says
    with closing(SqliteLedger(file)) as ledger:
        assert ledger.standing("alice") == before
    assert content(file) == (SCHEMA_VERSION, tables)


@pytest.mark.parametrize("version", DUMPS)
def test_an_old_file_with_the_number_of_this_version_is_migrated(tmp_path, version):
    path = old_file(tmp_path / "ledger.db", version)
    write_version(path, SCHEMA_VERSION)
    assert stored_version(path) == version
    with closing(SqliteLedger(path)) as ledger:
        assert len(ledger.standings()) == 7
    assert content(path)[0] == SCHEMA_VERSION


@pytest.mark.parametrize("version", [*DUMPS, SCHEMA_VERSION])
def test_a_file_without_the_tables_of_any_version_is_called_damaged_and_left_alone(any_path, version):
    path = any_path
    write_version(path, version)
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE IF EXISTS seen")
        db.execute("DROP TABLE IF EXISTS winnings")
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
