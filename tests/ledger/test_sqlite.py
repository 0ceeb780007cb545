from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from queen.errors import LedgerError
from queen.ledger import MemoryLedger, SqliteLedger
from queen.ledger.rows import make_rows
from queen.ledger.sqlite.open import APPLICATION_ID, SCHEMA_VERSION
from queen.ledger.state import ScopeState
from queen.options import Limits
from queen.sentinel.bets import Bets, Betting, Test
from queen.sentinel.ranks import Ranking, robust_spreads
from tests.reference.judge import BruteForce, judge_stream
from tests.support.ledgers import run_threads
from tests.support.sqlite_failures import FAILURES, FailingConnection, mend

LIMITS = Limits(radius=0.1, threshold=0.03)


def stream(seed: int, rows: int = 200) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 3, rows), rng.normal(0, 0.5, (rows, 2))


def state(ledger, client: str = "a") -> tuple:
    return list(ledger.clients()), ledger.coverage(client), {k: v.tolist() for k, v in ledger.records(client).items()}


def test_events_are_read_while_somebody_judges(tmp_path):
    with closing(SqliteLedger(tmp_path / "ledger.sqlite")) as ledger:
        ledger.pardon("a", "boss")
        ledger.acknowledge(1, "olga")
        results: list[object] = []

        def read() -> None:
            results.extend([*ledger.events(), ledger.acknowledgements()])

        with ledger._writing():  # as a batch does that is being judged
            reading = threading.Thread(target=read, daemon=True)
            reading.start()
            reading.join(10)
            assert [getattr(one, "id", one) for one in results] == [1, {1: "olga"}]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def test_the_file_survives_a_power_cut_and_says_whose_it_is(path):
    ledger = SqliteLedger(path)
    pragma = {name: ledger._db.execute(f"PRAGMA {name}").fetchone()[0] for name in (
        "journal_mode", "synchronous", "foreign_keys", "application_id", "user_version")}  # fmt: skip
    assert pragma == {
        "journal_mode": "wal",
        "synchronous": 2,  # FULL
        "foreign_keys": 1,
        "application_id": APPLICATION_ID,
        "user_version": SCHEMA_VERSION,
    }
    assert APPLICATION_ID.to_bytes(4, "big") == b"QEEN"


def test_a_reopened_ledger_continues_bit_for_bit(path):
    labels, points = stream(0, 400)
    memory, letters = MemoryLedger(), ""
    for i in range(0, 400, 40):
        part = slice(i, i + 40)
        with closing(SqliteLedger(path)) as ledger:
            letters += ledger.judge("a", labels[part], points[part], LIMITS).letters
        expected = memory.judge("a", labels[part], points[part], LIMITS).letters
        assert letters[part] == expected
    with closing(SqliteLedger(path)) as ledger:
        assert state(ledger) == state(memory)
    assert set(letters) == set("ABCD")


def test_other_limits_after_reopening_equal_the_brute_force(path):
    brute = BruteForce()
    for seed, radius in enumerate((0.1, 0.3, 0.04, (0.1, 0.2, 0.05))):
        labels, points = stream(seed, 60)
        limits = Limits(radius=radius, threshold=0.1)
        with closing(SqliteLedger(path)) as ledger:
            judgement = ledger.judge("a", labels, points, limits)
            assert (judgement.letters, judgement.spent.tolist()) == brute.judge(
                labels.tolist(), points.tolist(), limits.radius, limits.threshold
            )
            assert ledger.coverage("a") == brute.cqs


CHILD = """
import json, sys
import numpy as np
from queen.ledger import SqliteLedger
from queen.options import Limits
ledger = SqliteLedger(sys.argv[1], timeout=30)
for line in sys.stdin:
    call = json.loads(line)
    judgement = ledger.judge(call["client"], call["labels"], np.array(call["points"]), Limits(**call["limits"]))
    print(json.dumps([judgement.letters, judgement.spent.tolist()]), flush=True)
"""


@pytest.fixture
def child(path):
    """Another process on the same file: ask(labels, points) -> letters; one call a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.wait()


def send(process, labels, points, client="a", limits=LIMITS) -> None:
    call = {"client": client, "labels": labels.tolist(), "points": points.tolist()}
    process.stdin.write(json.dumps({**call, "limits": asdict(limits)}) + "\n")
    process.stdin.flush()


@pytest.mark.slow
def test_kill_minus_nine_loses_no_acknowledged_record(path, child):
    labels, points = stream(1, 3000)
    limits = Limits(radius=0.01, threshold=1e9)  # nearly every row inside is a record
    sender = threading.Thread(target=lambda: [send(child, labels[i : i + 1], points[i : i + 1], limits=limits)
                                              for i in range(3000)])  # fmt: skip
    sender.daemon = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", lambda _: None)  # the sender's pipe breaks, as it must
        sender.start()
        acknowledged = [json.loads(child.stdout.readline())[0] for _ in range(60)]
        os.kill(child.pid, signal.SIGKILL)
        acknowledged += [json.loads(line)[0] for line in child.stdout if line.endswith("\n")]
        sender.join(120)
    assert 60 <= len(acknowledged) < 3000
    expected = MemoryLedger()
    letters = expected.judge("a", labels[: len(acknowledged)], points[: len(acknowledged)], limits).letters
    assert "".join(acknowledged) == letters
    with closing(SqliteLedger(path)) as ledger:
        found = state(ledger)
        if found != state(expected):  # the one call that was committed and not yet answered
            one_more = slice(len(acknowledged), len(acknowledged) + 1)
            expected.judge("a", labels[one_more], points[one_more], limits)
        assert found == state(expected)
        assert ledger._db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


@pytest.mark.slow
def test_two_processes_on_one_file_equal_one(path, child):
    labels, points = stream(2, 240)
    letters, spent = "", []
    with closing(SqliteLedger(path, timeout=30)) as ledger:
        for turn, i in enumerate(range(0, 240, 8)):
            part = slice(i, i + 8)
            if turn % 2:
                judgement = ledger.judge("a", labels[part], points[part], LIMITS)
                letters, spent = letters + judgement.letters, spent + judgement.spent.tolist()
            else:
                send(child, labels[part], points[part])
                more = json.loads(child.stdout.readline())
                letters, spent = letters + more[0], spent + more[1]
        assert (letters, spent) == judge_stream(labels.tolist(), points.tolist(), LIMITS.radius, LIMITS.threshold)


def test_two_connections_alternating_equal_the_brute_force(path):
    labels, points = stream(3, 240)
    with closing(SqliteLedger(path)) as one, closing(SqliteLedger(path)) as two:
        letters = ""
        for i in range(240):
            ledger = one if i % 3 else two
            letters += ledger.judge("a", labels[i : i + 1], points[i : i + 1], LIMITS).letters
            if i % 50 == 0:
                assert one.coverage("a") == two.coverage("a")
        assert letters == judge_stream(labels.tolist(), points.tolist(), LIMITS.radius, LIMITS.threshold)[0]
        assert state(one) == state(two)


def test_many_connections_at_once_lose_and_double_nothing(path):
    letters: list[str] = []
    SqliteLedger(path).close()

    def work(seed: int) -> None:
        labels, points = stream(seed, 100)
        with closing(SqliteLedger(path, timeout=60)) as ledger:
            for i in range(0, 100, 5):
                letters.append(ledger.judge("a", labels[i : i + 5], points[i : i + 5], LIMITS).letters)

    run_threads(work, 4)
    with closing(SqliteLedger(path)) as ledger:
        records = ledger.records("a")
    assert len("".join(letters)) == 400
    assert "".join(letters).count("C") == sum(map(len, records.values())) > 0


def test_many_may_open_a_new_file_at_the_same_moment(tmp_path):
    errors: list[LedgerError] = []

    start = threading.Barrier(8)

    def work(_: int) -> None:
        for i in range(40):
            start.wait()
            try:
                SqliteLedger(tmp_path / f"{i}.db").close()
            except LedgerError as error:
                errors.append(error)

    run_threads(work, 8)
    assert errors == []


def test_a_locked_file_refuses_then_works_again(path):
    labels, points = stream(4)
    expected = MemoryLedger()
    with closing(SqliteLedger(path, timeout=0.05)) as ledger:
        ledger.judge("a", labels[:50], points[:50], LIMITS)
        expected.judge("a", labels[:50], points[:50], LIMITS)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(LedgerError, match="locked"):
                ledger.judge("a", labels[50:], points[50:], LIMITS)
            other.execute("ROLLBACK")
        assert state(ledger) == state(expected)
        again = ledger.judge("a", labels[50:], points[50:], LIMITS)
        assert again.letters == expected.judge("a", labels[50:], points[50:], LIMITS).letters
        assert state(ledger) == state(expected)


@pytest.mark.parametrize("fail", FAILURES.values(), ids=FAILURES)
def test_a_failed_write_leaves_memory_and_file_as_they_were(path, fail):
    limits = Limits(radius=0.005, threshold=1e9)
    labels, points = stream(5, 2000)
    expected = MemoryLedger()
    with closing(SqliteLedger(path)) as ledger:
        ledger.judge("a", labels[:20], points[:20], limits)
        expected.judge("a", labels[:20], points[:20], limits)
        fail(ledger)
        rows = make_rows(("a", "new"), np.arange(1980) % 2, labels[20:], points[20:], limits)
        for _ in range(2):
            with pytest.raises(LedgerError, match="Nothing was recorded"):
                ledger.judge_rows(rows)
        assert state(ledger) == state(expected)
        with closing(SqliteLedger(path)) as fresh:
            assert state(fresh) == state(expected)
        mend(ledger)
        assert ledger.judge_rows(rows).letters == expected.judge_rows(rows).letters
        for client in ("a", "new"):
            assert state(ledger, client) == state(expected, client)


def test_after_close_nothing_is_judged(path):
    ledger = SqliteLedger(path)
    ledger.close()
    with pytest.raises(LedgerError):
        ledger.judge("a", [0], np.zeros((1, 2)), LIMITS)
    with pytest.raises(LedgerError):
        ledger.coverage("a")
    with pytest.raises(LedgerError):
        ledger.clients()


@pytest.mark.parametrize("where", ["no/such/folder/ledger.db", ".", "/proc/ledger.db"])
def test_a_place_where_no_file_can_be_is_named(tmp_path, where):
    with pytest.raises(LedgerError, match="ledger"):
        SqliteLedger(tmp_path / where)


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE songs (title TEXT)")
        db.execute("INSERT INTO songs VALUES ('a')")
        db.commit()


def from_the_future(path: Path) -> None:
    SqliteLedger(path).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")


def from_the_past(path: Path) -> None:
    SqliteLedger(path).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 2")


def garbage(path: Path) -> None:
    path.write_bytes(b"this is not a database, but it is long enough to be looked at" * 100)


def cut_short(path: Path) -> None:
    with closing(SqliteLedger(path)) as ledger:
        ledger.judge("a", *stream(6), LIMITS)
    path.write_bytes(path.read_bytes()[:1500])


@pytest.mark.parametrize("make", [foreign, from_the_future, from_the_past, garbage, cut_short])
def test_a_file_that_is_no_ledger_is_refused_and_left_alone(path, make):
    make(path)
    before = path.read_bytes()
    with pytest.raises(LedgerError):
        SqliteLedger(path)
    assert path.read_bytes() == before


def test_refusals_say_why(path):
    foreign(path)
    with pytest.raises(LedgerError, match="another program"):
        SqliteLedger(path)
    path.unlink()
    from_the_future(path)
    with pytest.raises(
        LedgerError, match=f"schema {SCHEMA_VERSION + 1}, this version reads {SCHEMA_VERSION}.*update queen"
    ):
        SqliteLedger(path)
    path.unlink()
    from_the_past(path)
    with pytest.raises(LedgerError, match=r"schema 2, .*migrates 3, 4, 5, 6: open it once with .*or begin a new file"):
        SqliteLedger(path)


@pytest.mark.parametrize("cache", [0, 4_000, 8_000])
def test_a_small_cache_changes_nothing(path, cache):
    labels, points = stream(7, 300)
    owner = np.arange(300) * 7 % 5
    names = tuple("abcde")
    memory = MemoryLedger()
    with closing(SqliteLedger(path, cache=cache)) as ledger:
        for i in range(0, 300, 12):
            rows = make_rows(names, owner[i : i + 12], labels[i : i + 12], points[i : i + 12], LIMITS)
            found, expected = ledger.judge_rows(rows), memory.judge_rows(rows)
            assert (found.letters, found.spent.tolist()) == (expected.letters, expected.spent.tolist())
            assert ledger._cache.bytes <= cache
        for name in names:
            assert state(ledger, name) == state(memory, name)


# Bytes of a client of one query: in all, and in the tables of the evidence alone.
SIZES = {"paper": (False, 0.123, 110, 0), "extra answer": (True, 2.0, 330, 200), "record": (True, 0.123, 360, 200)}


def three_scores(rng: np.random.Generator, labels: np.ndarray, classes: int) -> Bets:
    """Bets of the usual test: three scores, 500 calibration images a class."""
    known, scores = np.repeat(np.arange(classes), 500), rng.normal(size=(500 * classes, 3))
    betting = Betting(Ranking(known, scores, robust_spreads(known, scores, classes), classes, margin=0.2))
    rows = len(labels)
    return Bets(
        *betting.lanes(labels, rng.normal(size=(rows, 3))),
        digests=rng.integers(1, 2**62, rows).tolist(),
        sketches=[tuple(row) for row in rng.normal(0, 1e4, (rows, 8)).astype(np.float32).tolist()],
        test=Test(id=2**62, scores=3, alpha=1e-9, delta=0.05),
        enforce=True,
    )


def bytes_of(path: Path, *names: str) -> int:
    """What tables of a closed ledger take, in whole pages."""
    with closing(sqlite3.connect(path)) as db:
        try:
            pages = dict(db.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name"))
        except sqlite3.OperationalError:
            pytest.skip("this SQLite was built without dbstat")
        return sum(pages[name] for name in names)


@pytest.mark.parametrize(("watched", "at", "most", "most_evidence"), SIZES.values(), ids=SIZES)
def test_a_client_with_one_query_takes_little_room(path, watched, at, most, most_evidence):
    count, rng = 4000, np.random.default_rng(0)
    names = tuple(f"client-{i:016d}" for i in rng.permutation(count))
    with closing(SqliteLedger(path)) as ledger:
        for start in range(0, count, 500):
            labels = rng.integers(0, 10, 500)
            bets, points = three_scores(rng, labels, 10) if watched else None, np.full((500, 2), at)
            some = names[start : start + 500]
            rows = make_rows(some, np.arange(500), labels, points, Limits(), bets=bets)
            assert not ledger.judge_rows(rows).spent.any()
    assert [p.name for p in path.parent.iterdir()] == ["ledger.db"]  # the log was folded in
    assert path.stat().st_size <= most * count + 11 * 4096  # tables have a page each to begin with
    assert bytes_of(path, "winnings", "counts") <= most_evidence * count + 2 * 4096


@pytest.mark.parametrize(("classes", "queries"), [(10, 60), (100, 400)])
def test_evidence_takes_little_room_for_every_class_used(path, classes, queries):
    clients, rng = 100, np.random.default_rng(0)
    names = tuple(f"client-{i}" for i in range(clients))
    used = set()
    with closing(SqliteLedger(path)) as ledger:
        for _ in range(queries // 20):
            owner, labels = np.repeat(np.arange(clients), 20), rng.integers(0, classes, 20 * clients)
            used |= set(zip(owner.tolist(), labels.tolist(), strict=True))
            bets, points = three_scores(rng, labels, classes), np.full((len(labels), 2), 2.0)
            ledger.judge_rows(make_rows(names, owner, labels, points, Limits(), bets=bets))
    assert bytes_of(path, "winnings", "counts") <= 64 * len(used) + 512 * clients


class Listening(FailingConnection):
    """A connection that hears every statement, and how many rows it is for."""

    def __init__(self, db: sqlite3.Connection) -> None:
        super().__init__(db, "nothing")
        self.heard: list[tuple[str, int]] = []

    def execute(self, sql: str, *values: object) -> sqlite3.Cursor:
        self.heard.append((sql, 1))
        return super().execute(sql, *values)

    def executemany(self, sql: str, values: object) -> sqlite3.Cursor:
        self.heard.append((sql, len(values)))
        return super().executemany(sql, values)


@pytest.mark.parametrize("clients", [1, 5])
def test_every_batch_is_committed_whatever_the_verdicts(path, clients):
    names = tuple(f"client {i}" for i in range(clients))
    seen = {}
    with closing(SqliteLedger(path)) as ledger:
        ledger._db = Listening(ledger._db)
        for what, point in (("first", 0.1), ("outside", 3.0), ("repeat", 0.1), ("spent", 0.5)):
            ledger._db.heard.clear()
            before = ledger._db.total_changes
            rows = make_rows(names, np.arange(clients), [0] * clients, np.full((clients, 2), point),
                             Limits(radius=0.1, threshold=0.0))  # fmt: skip
            letters = ledger.judge_rows(rows).letters
            seen[what] = letters[0], ledger._db.total_changes - before, ledger._db.heard.copy()
        assert [letter for letter, _, _ in seen.values()] == list("CADB")
        assert seen["outside"][1:] == seen["repeat"][1:] == seen["spent"][1:]
        _, changes, heard = seen["outside"]
        assert changes == clients
        assert [sql for sql, _ in heard if sql == "COMMIT"] == ["COMMIT"]
        assert [count for sql, count in heard if sql.startswith("UPDATE scope")] == [clients]
        assert list(ledger.clients()) == sorted(names)


@pytest.mark.parametrize("fail", [FAILURES["read-only"], FAILURES["commit"]])
def test_a_ledger_that_cannot_write_says_so_before_anybody_asks(path, fail):
    with closing(SqliteLedger(path)) as ledger:
        ledger.check()
        fail(ledger)
        with pytest.raises(LedgerError, match="failed"):
            ledger.check()
        mend(ledger)
        ledger.check()


def test_a_locked_file_cannot_be_written(path):
    with closing(SqliteLedger(path, timeout=0.05)) as ledger:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(LedgerError, match="locked"):
                ledger.check()
        ledger.check()
    with pytest.raises(LedgerError):
        ledger.check()


def test_what_is_no_path_is_refused():
    with pytest.raises(LedgerError, match="path of a file"):
        SqliteLedger(5)


def test_reading_everybodys_standing_keeps_nobody_from_being_judged(tmp_path, monkeypatch):
    ledger = SqliteLedger(tmp_path / "ledger.sqlite")
    for i in range(20):
        ledger.judge(f"c{i}", [0], [[0.1, 0.1]], Limits())
    plain, letters = ScopeState.standing, []

    def judge():
        letters.append(ledger.judge("meanwhile", [1], [[0.1 * len(letters), 0.0]], Limits()).letters)

    def interrupted(state, name, *, group):
        thread = threading.Thread(target=judge)  # would wait for ever if reading held the lock
        thread.start()
        thread.join(120)
        assert not thread.is_alive()
        return plain(state, name, group=group)

    monkeypatch.setattr(ScopeState, "standing", interrupted)
    assert len(ledger.standings()) == 20  # as they stood when it began
    assert len(letters) == 20
    ledger.close()
