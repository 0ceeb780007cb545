"""A ledger that has lost what it acknowledged is refused by name, at once and after a restart, until it is accepted."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from queen.errors import LedgerError, LostStateError, OptionError
from queen.ledger import Budget, Ledger, RedisLedger, SqliteLedger, open_ledger, witness
from queen.ledger.open import witness_in
from queen.ledger.redis.epochs import COUNTERS, SLOTS, counters
from queen.ledger.sqlite import watch
from queen.ledger.witness import Witness, new_id
from queen.options import Limits
from tests.support.paths import ROOT
from tests.support.redis_server import RedisServer, redis_cluster, redis_server
from tests.support.waiting import wait_for

LIMITS = Limits(radius=0.1, threshold=0.5)


def judge(ledger: Ledger, client: str = "alice") -> str:
    return ledger.judge(client, np.array([0]), np.array([[0.1, 0.2]]), LIMITS).letters


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data" / "ledger.sqlite"


@pytest.fixture
def reopen(file: Path, tmp_path: Path) -> Callable[[], SqliteLedger]:
    file.parent.mkdir()
    return lambda: SqliteLedger(file, witness=tmp_path / "witness")


@pytest.fixture
def every_write_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "EVERY", 0.0)


def abandon(ledger: SqliteLedger) -> None:
    """Forget a ledger as a killed process would: its log stays as it is, and nothing is written."""
    parts = [path for path in Path(ledger.path).parent.iterdir() if path.suffix != ".copy"]
    copies = [Path(shutil.copy(path, path.with_name(f"{path.name}.copy"))) for path in parts]
    notes = ledger._watch._witness.path
    seen = notes and notes.read_bytes()
    ledger.close()
    for path in Path(ledger.path).parent.iterdir():
        if path.suffix != ".copy":
            path.unlink()
    for path in copies:
        path.rename(path.with_name(path.name.removesuffix(".copy")))
    if notes and seen:
        notes.write_bytes(seen)


# What a witness is


def test_a_witness_remembers_over_restarts_and_never_goes_back(tmp_path: Path) -> None:
    path, own = tmp_path / "new" / "witness", new_id()
    one, two = Witness("name", path), Witness("name", path)
    for each, epochs in ((one, {"a": 3, "b": 1}), (two, {"a": 2, "c": 5}), (one, {"a": 1})):
        each.note(own, epochs)
        each.save()
    assert Witness("name", path).epochs() == {"a": 3, "b": 1, "c": 5}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("content", ["", "{", "[]", '{"id": "x", "epochs": {}, "at": ""}', '{"id": 7}'])
def test_a_damaged_witness_is_refused_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "witness").write_text(content)
    with pytest.raises(LedgerError, match=r"witness '.*witness' cannot be read.*delete the file"):
        SqliteLedger(tmp_path / "ledger.sqlite", witness=tmp_path / "witness")


def test_a_witness_that_cannot_be_written_is_written_later_and_the_log_says_both_once(tmp_path: Path, caplog) -> None:
    (tmp_path / "folder").write_text("not a folder")
    one = Witness("name")
    one.path = tmp_path / "folder" / "witness"
    for epoch in (1, 2):
        one.note(new_id(), {"a": epoch})
        one.save()
    (line,) = caplog.messages
    assert str(one.path) in line
    assert "cannot be written" in line
    (tmp_path / "folder").unlink()
    for epoch in (3, 4):
        one.note(None, {"a": epoch})
        one.save()
    assert Witness("name", one.path).epochs() == {"a": 4}
    (_, line) = caplog.messages
    assert "is written again" in line
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_no_password_is_in_the_name_or_the_content(tmp_path: Path) -> None:
    secret, plain = "redis://me:hunter2@10.0.0.5:6379/0", "redis://10.0.0.5:6379/0"
    path = witness_in(tmp_path, secret)
    assert path == witness_in(tmp_path, plain) != witness_in(tmp_path, "redis://10.0.0.5:6379/1")
    assert path.parent == tmp_path
    assert witness_in(tmp_path, "sqlite:///a.db") == witness_in(tmp_path, "a.db") != witness_in(tmp_path, "b.db")


def test_the_counters_of_a_cluster_are_spread_over_its_slots() -> None:
    from redis.crc import key_slot

    names = counters(key_slot)
    assert [key_slot(f"queen:epoch:{{{name}}}".encode()) * COUNTERS // SLOTS for name in names] == list(range(COUNTERS))


# SQLite


def test_an_honest_file_is_opened_again_and_again(reopen) -> None:
    for _ in range(3):
        with closing(reopen()) as ledger:
            judge(ledger)
            ledger.verify()
    with closing(reopen()) as ledger:
        assert ledger.standing("alice").queries == 3


def test_without_a_witness_nothing_is_compared_between_two_openings(file: Path) -> None:
    file.parent.mkdir()
    with closing(SqliteLedger(file)) as ledger:
        judge(ledger)
    file.unlink()
    with closing(SqliteLedger(file)) as ledger:
        ledger.verify()
        assert ledger.clients() == []


def test_whatever_is_logged_raises_the_epoch_at_once(reopen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "EVERY", 1e9)
    with closing(reopen()) as ledger:
        for order in (
            lambda: ledger.pardon("alice", "boss"),
            lambda: ledger.allow("alice", "boss"),
            lambda: ledger.set_budget("alice", Budget(threshold=0.1), "boss"),
            lambda: ledger.rebind("[]", "boss", name="bundle", forget_coverage=False),
            lambda: ledger.rebind("[]", "boss", name="bundle", forget_coverage=True),
        ):
            before = int(ledger.fact("epoch"))
            order()
            assert int(ledger.fact("epoch")) == before + 1


def test_a_copy_from_just_before_a_take_over_is_refused(reopen, file: Path) -> None:
    ledger = reopen()
    judge(ledger)
    for part in list(file.parent.iterdir()):
        shutil.copy(part, part.with_name(f"{part.name}.before"))
    ledger.rebind("[]", "boss", name="bundle", forget_coverage=True)
    ledger.verify()
    abandon(ledger)
    for part in file.parent.glob("*.before"):
        part.rename(part.with_suffix(""))
    with pytest.raises(LostStateError, match="went back in time"):
        reopen()


def test_an_older_copy_is_refused_until_it_is_accepted(reopen, file: Path) -> None:
    with closing(reopen()) as ledger:
        judge(ledger)
    shutil.copy(file, file.with_name("older"))
    with closing(reopen()) as ledger:
        judge(ledger)
    shutil.copy(file, file.with_name("newer"))
    shutil.copy(file.with_name("older"), file)
    with pytest.raises(
        LostStateError, match=r"went back in time: it is at epoch 2, but epoch 4 of 20.*queen ledger accept"
    ):
        reopen()
    shutil.copy(file.with_name("newer"), file)
    with closing(reopen()) as ledger:  # the newer copy is back
        assert ledger.standing("alice").queries == 2
    shutil.copy(file.with_name("older"), file)
    with pytest.raises(LostStateError) as caught:
        reopen()
    with closing(SqliteLedger(file)) as ledger:
        ledger.accept(str(caught.value).split("queen ledger accept ")[1].split()[0], "boss")
    with closing(reopen()) as ledger:
        assert ledger.standing("alice").queries == 1
        assert [(event.what, event.actor) for event in ledger.events()] == [("accept", "boss")]
    shutil.copy(file.with_name("newer"), file)
    with pytest.raises(LostStateError, match="is not the same ledger as before"):  # what was given up stays so
        reopen()


def test_a_file_that_is_gone_is_refused_and_not_made_anew(reopen, file: Path) -> None:
    with closing(reopen()) as ledger:
        judge(ledger)
    file.unlink()
    with pytest.raises(LostStateError, match="is empty, but epoch 2 of 20"):
        reopen()
    assert not file.exists()
    with closing(SqliteLedger(file)) as ledger:  # another one
        judge(ledger)
    with pytest.raises(LostStateError, match="is not the same ledger as before"):
        reopen()


def test_after_a_kill_all_is_there_and_without_the_log_it_is_refused(reopen, file: Path) -> None:
    ledger = reopen()
    for _ in range(42):
        judge(ledger)
    abandon(ledger)
    ledger = reopen()
    assert ledger.standing("alice").queries == 42
    abandon(ledger)
    file.with_name("ledger.sqlite-wal").unlink()
    with pytest.raises(LostStateError):
        reopen()


def test_an_older_copy_before_a_log_that_stays_is_refused(reopen, file: Path, every_write_rises) -> None:
    with closing(reopen()) as ledger:
        judge(ledger)
    shutil.copy(file, file.with_name("older"))
    with closing(reopen()) as ledger:
        judge(ledger)
    ledger = reopen()
    judge(ledger)
    abandon(ledger)
    assert file.with_name("ledger.sqlite-wal").stat().st_size
    shutil.copy(file.with_name("older"), file)
    with pytest.raises(LostStateError, match="went back in time"):
        reopen()


def test_a_log_deleted_while_in_use_is_noticed_and_nothing_is_lost(reopen, file: Path) -> None:
    ledger = reopen()
    for _ in range(42):
        judge(ledger)
    file.with_name("ledger.sqlite-wal").unlink()
    for act in (ledger.verify, lambda: judge(ledger), ledger.check, ledger.verify):
        with pytest.raises(LostStateError, match=r"-wal.* was deleted while in use, but nothing is lost: start anew"):
            act()
    abandon(ledger)  # killed afterwards
    with closing(reopen()) as again:
        assert again.standing("alice").queries == 42


def test_a_log_replaced_while_in_use_is_noticed_by_the_next_query(reopen, file: Path) -> None:
    ledger = reopen()
    judge(ledger)
    log = file.with_name("ledger.sqlite-wal")
    content = log.read_bytes()
    log.unlink()
    log.write_bytes(content)
    with pytest.raises(LostStateError, match="deleted while in use"):
        judge(ledger)
    ledger.close()
    with closing(reopen()) as again:
        assert again.standing("alice").queries == 1


def test_a_running_ledger_hears_that_its_loss_is_accepted(reopen, file: Path) -> None:
    with closing(reopen()) as ledger:
        judge(ledger)
        with closing(sqlite3.connect(file)) as other:
            other.execute("UPDATE fact SET value = '0' WHERE name = 'epoch'")
            other.commit()
        with pytest.raises(LostStateError, match="it is at epoch 0"):
            ledger.verify()
        with closing(SqliteLedger(file)) as other:
            other.accept(str(ledger._watch._witness.id), "boss")
        ledger.verify()
        judge(ledger)


def test_the_witness_is_never_ahead_of_what_is_on_disk(reopen, file: Path, tmp_path: Path, monkeypatch) -> None:
    """Whenever the witness is written, what a power cut would leave of the ledger at that moment is honest."""
    monkeypatch.setattr(witness, "EVERY", 0.0)
    monkeypatch.setattr(watch, "EVERY", 0.0)
    write, copies = witness.write_atomically, []

    def write_and_copy(path: Path, content: str, **options: bool) -> None:
        folder = tmp_path / f"cut-{len(copies)}"
        folder.mkdir()
        for part in file.parent.glob("ledger.sqlite*"):
            if part.suffix != ".sqlite-shm":
                shutil.copy(part, folder)
        (folder / "witness").write_text(content)
        copies.append(folder)
        write(path, content, **options)

    monkeypatch.setattr(witness, "write_atomically", write_and_copy)
    with closing(reopen()) as ledger:
        for number in range(60):
            judge(ledger, f"client {number % 7}")
    monkeypatch.setattr(witness, "write_atomically", write)
    assert len(copies) > 60
    for folder in copies:
        SqliteLedger(folder / "ledger.sqlite", witness=folder / "witness").close()


WRITER = """
import sys
import numpy as np
from queen.ledger import open_ledger
from queen.ledger import witness
from queen.ledger.sqlite import watch
from queen.options import Limits
if "fast" in sys.argv:
    watch.EVERY = 0.0
ledger = open_ledger(sys.argv[1], witness=sys.argv[2])
while True:
    ledger.judge("alice", np.array([0]), np.array([[0.1, 0.2]]), Limits(radius=0.1, threshold=0.5))
    sys.stdout.write("x")
    sys.stdout.flush()
"""


def kill_a_writer(url: str, notes: Path, answers: int) -> int:
    """Judge in another process and kill it; how many were acknowledged."""
    command = [sys.executable, "-c", WRITER, url, str(notes), "fast"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        acknowledged = len(process.stdout.read(answers))
        process.send_signal(signal.SIGKILL)
        return acknowledged + len(process.stdout.read())


def test_a_killed_process_never_leaves_a_witness_ahead(tmp_path: Path) -> None:
    url, acknowledged = f"sqlite:///{tmp_path / 'ledger.sqlite'}", 0
    for answers in (1, 20, 57):
        acknowledged += kill_a_writer(url, tmp_path / "witness", answers)
        with closing(open_ledger(url, witness=tmp_path / "witness")) as ledger:
            assert ledger.standing("alice").queries >= acknowledged


# Redis


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = redis_server(tmp_path / "redis")
    yield server
    server.kill()


def save_aof(server: RedisServer) -> Path:
    """A copy of the append-only file, as a backup would have it."""
    copy = server.folder / "older"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(server.folder / "aof", copy)
    return copy


def restart_with(server: RedisServer, aof: Path | None) -> None:
    server.kill()
    shutil.rmtree(server.folder / "aof")
    if aof is not None:
        shutil.copytree(aof, server.folder / "aof")
    server.start()


@pytest.mark.parametrize("emptied", [False, True], ids=["older", "empty"])
def test_a_redis_that_lost_records_is_refused_before_it_judges_anybody(redis, tmp_path, emptied: bool) -> None:
    notes = tmp_path / "witness"
    ledger = RedisLedger(redis.url, witness=notes)
    judge(ledger)
    older = save_aof(redis)
    judge(ledger)
    restart_with(redis, None if emptied else older)
    expected = "is empty" if emptied else "it is at epoch 2, but epoch 3"  # 1: the script was not known yet
    for act in (lambda: judge(ledger), lambda: judge(ledger), ledger.verify, ledger.check):
        with pytest.raises(LedgerError, match=expected):
            act()
    ledger.close()
    with redis.client() as client:
        assert client.get("queen:epoch:{10}") == (None if emptied else b"2")  # nothing was written meanwhile
    with pytest.raises(LostStateError, match=expected) as caught:
        RedisLedger(redis.url, witness=notes)
    with closing(RedisLedger(redis.url)) as other:
        other.accept(str(caught.value).split("queen ledger accept ")[1].split()[0], "boss")
    with closing(RedisLedger(redis.url, witness=notes)) as again:
        judge(again)
        assert again.standing("alice").queries == (1 if emptied else 2)
        assert again.events()[-1].what == "accept"


def test_a_redis_emptied_under_an_open_connection_is_noticed_by_the_first_query(redis) -> None:
    with closing(RedisLedger(redis.url)) as ledger:
        judge(ledger)
        with redis.client() as client:
            client.flushall()
        with pytest.raises(LostStateError, match="it is at epoch 0, but epoch 2"):
            judge(ledger)
        for _ in range(3):  # it does not catch up
            with pytest.raises(LostStateError):
                judge(ledger)


def test_a_redis_that_comes_back_whole_is_used_again(redis, tmp_path: Path) -> None:
    with closing(RedisLedger(redis.url, witness=tmp_path / "witness")) as ledger:
        judge(ledger)
        older = save_aof(redis)
        judge(ledger)
        newer = shutil.copytree(redis.folder / "aof", redis.folder / "newer")
        restart_with(redis, older)
        with pytest.raises(LedgerError):
            ledger.check()
        restart_with(redis, newer)
        ledger.check()
        judge(ledger)
        assert ledger.standing("alice").queries == 3


def test_a_running_server_hears_that_the_loss_is_accepted(redis) -> None:
    with closing(RedisLedger(redis.url)) as ledger, closing(RedisLedger(redis.url)) as second:
        judge(ledger)
        judge(second)
        restart_with(redis, None)
        for each in (ledger, second):
            with pytest.raises(LostStateError):
                each.verify()
        with closing(RedisLedger(redis.url)) as other:
            other.accept(str(ledger._servers.epochs.witness.id), "boss")
        for each in (ledger, second):
            each.check()
            judge(each)


def test_several_servers_and_threads_raise_one_epoch_without_false_alarms(redis) -> None:
    ledgers = [RedisLedger(redis.url, timeout=30) for _ in range(3)]
    problems: list[Exception] = []

    def work(number: int) -> None:
        try:
            for _ in range(40):
                judge(ledgers[number % 3], f"client {number}")
                ledgers[number % 3].verify()
        except LedgerError as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    with redis.client() as client:
        assert int(client.get("queen:epoch:{10}")) >= 240
    for ledger in ledgers:
        ledger.close()


def test_durability_switched_off_while_in_use_is_refused_until_it_is_on(redis) -> None:
    with closing(RedisLedger(redis.url)) as ledger, redis.client() as client:
        judge(ledger)
        for name, value, right in (("appendonly", "no", "yes"), ("appendfsync", "everysec", "always")):
            client.config_set(name, value)
            for act in (ledger.verify, lambda: judge(ledger)):
                with pytest.raises(LostStateError, match=f"not durable: {name} is '{value}'"):
                    act()
            client.config_set(name, right)
            ledger.check()
            judge(ledger)


def test_one_that_may_forget_is_not_compared(redis) -> None:
    with closing(RedisLedger(redis.url, allow_volatile=True)) as ledger:
        judge(ledger)
        restart_with(redis, None)
        ledger.check()
        judge(ledger)
        assert ledger.standing("alice").queries == 1


def test_one_whose_settings_are_hidden_is_not_expected_to_forget(redis, tmp_path: Path) -> None:
    hide_settings(redis)
    options = {"allow_volatile": True, "witness": tmp_path / "witness"}
    with closing(RedisLedger(redis.url, **options)) as ledger:
        judge(ledger)
        restart_with(redis, None)
        hide_settings(redis)
        with pytest.raises(LostStateError, match="is empty"):
            ledger.check()
        with pytest.raises(LostStateError, match="is empty"):
            judge(ledger)
    with pytest.raises(LostStateError, match="is empty") as caught:
        RedisLedger(redis.url, **options)
    with closing(RedisLedger(redis.url, allow_volatile=True)) as ledger:
        ledger.accept(str(caught.value).split("accept ")[-1].split()[0], "boss")
    with closing(RedisLedger(redis.url, **options)) as ledger:
        judge(ledger)


def hide_settings(server: RedisServer) -> None:
    """Forbid CONFIG, as managed services do."""
    with server.client() as client:
        client.acl_setuser("default", enabled=True, commands=["-config"])


def test_a_killed_writer_never_leaves_a_witness_ahead_of_redis(redis, tmp_path: Path) -> None:
    acknowledged = kill_a_writer(redis.url, tmp_path / "witness", 30)
    redis.kill()
    redis.start()
    with closing(RedisLedger(redis.url, witness=tmp_path / "witness")) as ledger:
        assert ledger.standing("alice").queries >= acknowledged


def test_a_server_of_a_cluster_that_lost_records_is_refused_until_that_is_accepted(tmp_path: Path) -> None:
    servers = redis_cluster(tmp_path / "cluster", 3)
    try:
        with closing(RedisLedger(servers[0].url, timeout=30)) as ledger:
            names = [f"client {number}" for number in range(12)]
            for name in names:
                judge(ledger, name)
            for server in servers:
                before = shutil.copytree(server.folder / "aof", server.folder / "older")
                for name in names:
                    judge(ledger, name)
                restart_with(server, before)
                wait_for(lambda: "went back in time" in complaint(ledger))  # once the cluster is up again
                with pytest.raises(LostStateError):
                    judge(ledger, names[0])
                with closing(RedisLedger(servers[0].url, timeout=30)) as other:
                    other.accept(str(ledger._servers.epochs.witness.id), "boss")
                wait_for(lambda: complaint(ledger) == "")
    finally:
        for server in servers:
            server.kill()


def complaint(ledger: Ledger) -> str:
    """What a check says; "" if all is well."""
    try:
        ledger.check()
    except LedgerError as error:
        return str(error)
    return ""


# Files


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_the_files_of_a_ledger_are_private(file: Path, umask: int) -> None:
    file.parent.mkdir()
    before = os.umask(umask)
    try:
        with closing(SqliteLedger(file)) as ledger:
            judge(ledger)
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in file.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"ledger.sqlite": 0o600, "ledger.sqlite-wal": 0o600, "ledger.sqlite-shm": 0o600}


def test_files_that_others_may_read_become_private(file: Path) -> None:
    file.parent.mkdir()
    with closing(SqliteLedger(file)) as ledger:
        judge(ledger)
        for path in file.parent.iterdir():
            path.chmod(0o644)
        with closing(SqliteLedger(file)) as other:
            judge(other)
            assert {stat.S_IMODE(path.stat().st_mode) for path in file.parent.iterdir()} == {0o600}


def test_only_an_id_can_be_accepted(file: Path) -> None:
    file.parent.mkdir()
    with closing(SqliteLedger(file)) as ledger:
        for wrong in ("", "x", "5F0C63F2A94B1D7E", "5f0c63f2a94b1d7e "):
            with pytest.raises(OptionError, match="expected the id"):
                ledger.accept(wrong, "boss")
        assert ledger.events() == []
