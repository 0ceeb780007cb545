"""The Redis ledger and its server: durable or refused, gone and back, hung, forgetful, forbidden, full."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager

import numpy as np
import pytest

from queen.errors import LedgerError, OptionError
from queen.ledger import MemoryLedger, RedisLedger
from queen.ledger.redis_client import DURABLE
from queen.options import Limits
from tests.reference.watch import Rules
from tests.support.queries import NAMES, PLENTY, RULES, events, flags, judge, picture, pictures, standings
from tests.support.queries import traffic as traffic_of
from tests.support.redis_server import redis_server
from tests.support.waiting import wait_for

pytestmark = pytest.mark.real


@pytest.fixture
def server(tmp_path):
    started = redis_server(tmp_path / "redis")
    yield started
    started.kill()


@contextmanager
def stopped(process):
    """A server that takes connections and says nothing."""
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


@pytest.mark.parametrize(
    "wrong", [{"appendonly": "no"}, {"appendfsync": "everysec"}, {"maxmemory-policy": "allkeys-lru"},
              {"appendonly": "no", "appendfsync": "no", "maxmemory-policy": "volatile-ttl"}], ids=str
)  # fmt: skip
def test_a_server_that_forgets_is_refused_by_the_name_of_each_setting(redis_url, wrong):
    with closing(RedisLedger(redis_url)) as ledger, ledger._servers.client_of("") as client:
        usual = {name: client.config_get(name)[name] for name in wrong}
        try:
            for name, value in wrong.items():
                client.config_set(name, value)
            with pytest.raises(LedgerError) as caught:
                RedisLedger(redis_url)
            for name, (value, _) in DURABLE.items():
                assert (f"CONFIG SET {name} {value}" in str(caught.value)) == (name in wrong)
            with pytest.raises(LedgerError, match="not durable"):
                ledger.check()  # also one that was durable when it was opened
            with closing(RedisLedger(redis_url, allow_volatile=True)) as volatile:
                assert volatile.judge("a", [0], np.zeros((1, 2)), Limits()).letters == "C"
                volatile.check()
        finally:
            for name, value in usual.items():
                client.config_set(name, value)
        ledger.check()


def test_settings_that_may_not_be_read_are_named(server):
    with server.client() as client:
        client.acl_setuser("careful", enabled=True, passwords=["+word"], keys="*", categories=["+@all"],
                           commands=["-config"])  # fmt: skip
    url = server.url.replace("redis://", "redis://careful:word@")
    with pytest.raises(LedgerError, match="cannot be read") as caught:
        RedisLedger(url)
    assert all(name in str(caught.value) for name in (*DURABLE, "allow_volatile"))
    assert "word" not in str(caught.value).replace("password", "")
    with closing(RedisLedger(url, allow_volatile=True)) as ledger:
        assert ledger.judge("a", [0], np.zeros((1, 2)), Limits()).letters == "C"


def test_a_wrong_password_is_an_error_that_does_not_tell_it(server):
    with server.client() as client:
        client.config_set("requirepass", "right")
    with pytest.raises(LedgerError) as caught:
        RedisLedger(server.url.replace("redis://", "redis://:hunter2@"))
    assert "hunter2" not in str(caught.value)
    assert f"127.0.0.1:{server.port}" in str(caught.value)
    RedisLedger(server.url.replace("redis://", "redis://:right@")).close()


def test_nothing_that_was_acknowledged_is_lost_when_the_server_is_killed(server):
    queries, memory = traffic_of(3, 900), MemoryLedger()
    with closing(RedisLedger(server.url, timeout=5)) as ledger:
        for i in range(0, 900, 9):
            part = queries[i : i + 9]
            if i in (270, 630):
                server.kill()
                with pytest.raises(LedgerError, match="failed"):
                    judge(ledger, RULES, part)
                with pytest.raises(LedgerError):
                    ledger.check()
                with pytest.raises(LedgerError):
                    ledger.standings()
                server.start()  # and the same ledger goes on
                ledger.check()
            assert flags(judge(ledger, RULES, part)) == flags(judge(memory, RULES, part))
        assert standings(ledger) == standings(memory)
        assert events(ledger) == events(memory)
        for name in NAMES:
            found, expected = ledger.records(name), memory.records(name)
            assert {k: v.tolist() for k, v in found.items()} == {k: v.tolist() for k, v in expected.items()}


def test_killed_under_load_it_has_all_that_was_acknowledged(server):
    limits, acknowledged = Limits(radius=0.01, threshold=1e9), []
    points = np.random.default_rng(0).uniform(-0.7, 0.7, (5000, 2))
    with closing(RedisLedger(server.url, timeout=5)) as ledger:

        def work() -> None:
            for i in range(5000):
                try:
                    letters = ledger.judge("a", [0], points[i : i + 1], limits).letters
                except LedgerError:
                    return
                acknowledged.append((i, letters))

        worker = threading.Thread(target=work)
        worker.start()
        while len(acknowledged) < 100:
            time.sleep(0.001)
        server.kill()
        worker.join()
        assert 100 <= len(acknowledged) < 5000
        server.start()
        found = {tuple(point) for point in ledger.records("a")[0].tolist()}
        fresh = [i for i, letter in acknowledged if letter == "C"]
        assert {tuple(points[i].tolist()) for i in fresh} <= found
        assert len(found) <= len(fresh) + 1  # one may have been recorded and not yet answered
        assert ledger.standing("a").queries >= len(acknowledged)


def test_a_server_that_hangs_is_an_error_in_time_and_nothing_is_sent_twice(server):
    rules = Rules(PLENTY, bar=1e9)
    with closing(RedisLedger(server.url, timeout=0.3)) as ledger:
        judge(ledger, rules, pictures(2))
        with stopped(server.process):
            for _ in range(2):
                with pytest.raises(LedgerError):  # it does not wait for ever
                    judge(ledger, rules, pictures(3, start=2))
    with closing(RedisLedger(server.url)) as ledger:
        wait_for(lambda: ledger.standing("a").queries >= 5)  # what had arrived is judged now, without an answer
        counted = ledger.standing("a")
        assert counted.queries in (5, 8)  # each attempt at most once
        assert counted.extra_answers == 5  # the second attempt repeats the first
        assert not judge(ledger, rules, pictures(3, start=2)).spent.any()
        assert ledger.standing("a").extra_answers == 5


def test_nobody_at_the_door_is_an_error(server):
    server.kill()
    with pytest.raises(LedgerError, match="failed"):
        RedisLedger(server.url, timeout=0.5)


def test_a_server_that_forgot_the_scripts_is_told_again(redis_url):
    memory, rules = MemoryLedger(), RULES
    with closing(RedisLedger(redis_url)) as ledger, ledger._servers.client_of("") as client:
        for i in range(3):
            client.script_flush()
            part = traffic_of(i, 60)
            assert flags(judge(ledger, rules, part)) == flags(judge(memory, rules, part))
            client.script_flush()
            for each in (ledger, memory):
                each.pardon("a", "op")
        assert standings(ledger) == standings(memory)


def test_a_full_server_refuses_and_recovers(redis_url):
    with closing(RedisLedger(redis_url)) as ledger, ledger._servers.client_of("") as client:
        ledger.judge("a", [0], np.zeros((1, 2)), Limits())
        try:
            client.config_set("maxmemory", 1)
            with pytest.raises(LedgerError, match="maxmemory"):
                ledger.judge("a", [0], np.ones((1, 2)) / 2, Limits())
            with pytest.raises(LedgerError, match="maxmemory"):
                ledger.check()
        finally:
            client.config_set("maxmemory", 0)
        ledger.check()
        assert ledger.standing("a").queries == 1
        assert ledger.judge("a", [0], np.ones((1, 2)) / 2, Limits()).letters == "C"


def test_an_alarm_that_cannot_be_logged_stands_and_is_logged_later(redis_url):
    rules = Rules(PLENTY, bar=1.0)
    with closing(RedisLedger(redis_url)) as ledger, ledger._servers.client_of("") as client:
        client.set("queen:events", "in the way")
        assert judge(ledger, rules, picture(0, bet=(2.0,))).alarmed.all()
        with pytest.raises(LedgerError, match="'allow' of 'b' was done"):
            ledger.allow("b", "op")
        assert (ledger.standing("a").alarmed, ledger.standing("b").allowed) == (True, True)
        client.delete("queen:events")
        ledger.check()
        assert [(e.id, e.what, e.name) for e in ledger.events()] == [(1, "alarm", "a"), (2, "allow", "b")]


def test_a_client_has_three_keys_at_most_and_they_share_a_slot(redis_url):
    with closing(RedisLedger(redis_url, prefix="guard")) as ledger, ledger._servers.client_of("") as client:
        judge(ledger, Rules(PLENTY, bar=1e9), [picture(0, (0.0, 0.0), bet=(2.0,)), *pictures(2000, start=1)])
        keys = sorted(key.decode() for key in client.keys("guard:{*"))
        assert len(keys) == 3
        assert {key.partition("}")[2] for key in keys} == {"", "r", "m"}
        assert len({key.partition("}")[0] for key in keys}) == 1
        assert client.strlen(keys[1] if keys[1].endswith("m") else keys[2]) == 44 * 1024  # bounded


def test_another_test_with_fewer_scores_leaves_nothing_of_the_old_wealth(redis_url):
    with closing(RedisLedger(redis_url)) as ledger, ledger._servers.client_of("") as client:
        for size, pieces in ((20, {b"w1", b"w2", b"w3"}), (9, {b"w1", b"w2"}), (8, {b"w1"})):
            judge(ledger, Rules(PLENTY, size, bar=1e9), picture(size, bet=(2.0,) * size))
            (key,) = client.keys("queen:{*}")
            assert {field for field in client.hkeys(key) if field.startswith(b"w")} == pieces
            assert ledger.standing("a").wealth == 1.5
        ledger.pardon("a", "op")
        assert not any(field.startswith(b"w") for field in client.hkeys(key))


BYTES = {1: 700, 100: 14_000, 1000: 140_000}


@pytest.mark.parametrize(("queries", "most"), BYTES.items())
def test_a_client_takes_little_memory(redis_url, queries, most):
    rng = np.random.default_rng(0)
    with closing(RedisLedger(redis_url)) as ledger, ledger._servers.client_of("") as client:
        judge(ledger, Rules(PLENTY, 10, bar=1e9), picture(0, client="first", bet=(1.0,) * 10))
        before, clients = client.info("memory")["used_memory"], max(3, 300 // queries)
        for number in range(clients):
            points = rng.normal(0, 0.6, (queries, 2)).tolist()
            name = f"client-{number:016d}"
            stream = [picture(i, tuple(p), client=name, label=i % 10, bet=(1.0,) * 10) for i, p in enumerate(points)]
            for i in range(0, queries, 32):
                judge(ledger, Rules(Limits(extra_answers=10**6), 10, bar=1e9), stream[i : i + 32])
        assert (client.info("memory")["used_memory"] - before) / clients < most


def test_a_query_writes_as_much_for_the_thousandth_record_as_for_the_first(redis_url):
    limits, rng = Limits(radius=0.005, threshold=1e9), np.random.default_rng(0)
    points = rng.uniform(-0.7, 0.7, (4000, 2))
    with closing(RedisLedger(redis_url)) as ledger, ledger._servers.client_of("") as client:

        def queries_of(part: slice) -> int:
            before = client.info("persistence")["aof_current_size"]
            for i in range(part.start, part.stop, 10):
                ledger.judge("a", [0] * 10, points[i : i + 10], limits)
            return client.info("persistence")["aof_current_size"] - before

        first = queries_of(slice(0, 200))
        queries_of(slice(200, 3800))
        assert queries_of(slice(3800, 4000)) < 1.3 * first


BLOCKED = """
import importlib.machinery
find = importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = lambda name, *rest: (
    None if name.split(".")[0] in ("redis", "hiredis") else find(name, *rest)
)
from queen.ledger import RedisLedger
from queen.errors import OptionError
try:
    RedisLedger("redis://127.0.0.1")
except OptionError as error:
    print(error)
"""


def test_without_the_client_library_the_rest_works_and_the_error_says_what_to_install():
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, check=False, timeout=120)
    assert "pip install 'queen[redis]'" in done.stdout, done.stderr


def test_importing_the_ledgers_does_not_import_the_client_library():
    code = "import sys, queen.ledger; print('redis' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize("prefix", ["", "a b", "{x}", "quéen", "a*", 7], ids=str)
def test_a_prefix_that_would_confuse_the_server_is_refused(redis_url, prefix):
    with pytest.raises(OptionError, match="prefix"):
        RedisLedger(redis_url, prefix=prefix)


@pytest.mark.parametrize("url", ["http://127.0.0.1", "redis://127.0.0.1:port", "127.0.0.1:6379"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(OptionError, match="redis://HOST:PORT"):
        RedisLedger(url)


def test_after_close_nothing_is_judged(redis_url):
    ledger = RedisLedger(redis_url)
    ledger.close()
    calls = [
        lambda: ledger.judge("a", [0], np.zeros((1, 2)), Limits()),
        lambda: ledger.coverage("a"),
        ledger.clients,
        ledger.events,
        ledger.check,
        lambda: ledger.allow("a", "op"),
    ]
    for call in calls:
        with pytest.raises(LedgerError, match="closed"):
            call()
