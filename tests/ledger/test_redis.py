"""The Redis ledger and its server: durable or refused, gone and back, hung, forgetful, forbidden, full."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager

import numpy as np
import pytest
from redis import exceptions as redis_errors

from queen.errors import LedgerError, OptionError
from queen.ledger import MemoryLedger, RedisLedger
from queen.ledger.redis import admin
from queen.ledger.redis import client as redis_client
from queen.ledger.redis.durability import DURABLE
from queen.options import Limits
from queen.sentinel.bets import Test, shape_table
from queen.sentinel.wealth import MOST, Winnings
from tests.reference.watch import Rules
from tests.support.evidence import evidence_of
from tests.support.queries import FOREIGN, NAMES, PLENTY, RULES, events, judge, outcomes, picture, pictures, standings
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
            assert outcomes(judge(ledger, RULES, part)) == outcomes(judge(memory, RULES, part))
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
            assert outcomes(judge(ledger, rules, part)) == outcomes(judge(memory, rules, part))
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
        assert judge(ledger, rules, picture(0, bet=FOREIGN)).alarmed.all()
        with pytest.raises(LedgerError, match="'allow' of 'b' was done"):
            ledger.allow("b", "op")
        assert (ledger.standing("a").alarmed, ledger.standing("b").allowed) == (True, True)
        client.delete("queen:events")
        ledger.check()
        assert [(e.id, e.what, e.name) for e in ledger.events()] == [(1, "alarm", "a"), (2, "allow", "b")]


def test_a_client_has_five_keys_at_most_and_they_share_a_slot(redis_url):
    with closing(RedisLedger(redis_url, prefix="guard")) as ledger, ledger._servers.client_of("") as client:
        for test in (1, 2, 3, 1):
            rules = Rules(PLENTY, bar=1e9, test=test)
            judge(ledger, rules, [picture(test, (0.0, 0.0), bet=FOREIGN), *pictures(2000, start=10_000 * test)])
        keys = [key.decode() for key in client.keys("guard:{*")]
        assert sorted(key.partition("}")[2] for key in keys) == ["", "e", "f", "m", "r"]
        assert len({key.partition("}")[0] for key in keys}) == 1
        assert client.strlen(next(key for key in keys if key.endswith("m"))) == 44 * 1024  # bounded
        ledger.pardon("a", "op")
        assert not {key.partition(b"}")[2] for key in client.keys("guard:{*")} & {b"e", b"f"}


def test_a_test_with_other_scores_leaves_nothing_of_the_old_evidence(redis_url):
    with closing(RedisLedger(redis_url)) as ledger, ledger._servers.client_of("") as client:
        for test, scores in enumerate((4, 3, 1, 2), 1):
            rules = Rules(PLENTY, scores, bar=1e9, test=test)
            judge(ledger, rules, picture(test, bet=FOREIGN * scores))
            used_last = list(evidence_of(ledger, "a"))
            assert used_last == [test - 1, test][-min(test, 2) :]
            assert len(client.keys("queen:{*}[ef]")) == len(used_last)
            assert len(evidence_of(ledger, "a")[test][1]) == 10 * scores


def test_what_evidence_takes(redis_url):
    """64 bytes for every class used and 256 beside them; Redis adds the key."""
    rng = np.random.default_rng(0)
    with closing(RedisLedger(redis_url)) as ledger, ledger._servers.client_of("") as client:
        for queries, classes in ((1, 1), (300, 10), (3000, 100), (3000, 1)):
            client.delete(*ledger._keys("a"))
            bets = [
                tuple((int(rank), int(rank), bool(rank < 5)) for rank in ranks)
                for ranks in rng.integers(0, 19, (queries, 3))
            ]
            stream = [picture(i, label=3 * (i % classes), bet=bet) for i, bet in enumerate(bets)]
            for i in range(0, queries, 100):
                judge(ledger, Rules(PLENTY, 3, bar=1e9), stream[i : i + 100])
            (key,) = client.keys("queen:{*}[ef]")
            assert client.strlen(key) <= 64 * classes + 256
            assert sum(counts[0] for counts in evidence_of(ledger, "a")[1][2].values()) == queries


LARGEST = int(shape_table(2, 65_000)[0].max())  # what a bet may add to the power sum of a class with 65,000 images


@pytest.mark.parametrize(
    "power_of_one", [3, LARGEST, 16 * LARGEST], ids=["usual", "65,000 images", "16 million images"]
)
@pytest.mark.parametrize("number", [255, 256, 2**16 - 1, 2**16, 2**24 - 1, 2**24, MOST - 1, MOST])
def test_counts_of_every_width_are_exact_and_end_at_the_most(redis_url, number, power_of_one):
    """A class that has placed so many bets, as in memory; the last two cases are the last bet and one too many.

    Power sums are stored a byte wider than counts; where that is too little, all get wider.
    """
    memory, rules = MemoryLedger(), Rules(PLENTY, 2)
    first = [picture(i, label=label, bet=FOREIGN * 2) for i, label in enumerate((0, 1, 2, 3, 4))]
    with closing(RedisLedger(redis_url)) as ledger, ledger._servers.client_of("") as client:
        for each in (ledger, memory):
            judge(each, rules, first)
        winnings = memory._states[False, "a"].winnings[1]
        power = 3 + np.array([2, 7])
        for label in (1, 3):
            winnings.counts[label][:] = number
            winnings.counts[label][power] = power_of_one * number
        clocks, _, _ = evidence_of(ledger, "a")[1]
        (key,) = client.keys("queen:{*}[ef]")
        client.set(key, packed_evidence(clocks, winnings, label_room=8))
        assert evidence_of(ledger, "a") == evidence_of(memory, "a")
        for i in range(3):
            for each in (ledger, memory):
                judge(each, rules, [picture(10 * i + j, label=j % 7, bet=FOREIGN * 2) for j in range(5, 15)])
            assert evidence_of(ledger, "a") == evidence_of(memory, "a")
        assert winnings.counts[1][0] == min(number + 3, MOST)


def test_power_sums_of_a_class_with_65000_images_fit_the_byte_that_they_have_more(redis_url):
    assert MOST * LARGEST < 256**5
    assert MOST < 256**4
    memory, rules = MemoryLedger(), Rules(PLENTY, 2)
    with closing(RedisLedger(redis_url)) as ledger, ledger._servers.client_of("") as client:
        for each in (ledger, memory):
            judge(each, rules, picture(0, bet=FOREIGN * 2))
        winnings = memory._states[False, "a"].winnings[1]
        winnings.counts[0][:], winnings.counts[0][[5, 10]] = MOST - 1, (MOST - 1) * LARGEST
        (key,) = client.keys("queen:{*}[ef]")
        client.set(key, packed_evidence(evidence_of(ledger, "a")[1][0], winnings, label_room=1))
        for each in (ledger, memory):
            judge(each, rules, picture(1, bet=FOREIGN * 2))
        assert evidence_of(ledger, "a") == evidence_of(memory, "a")
        assert client.get(key)[0] == 4  # bytes of a count


def packed_evidence(clocks: list[int], winnings: Winnings, label_room: int) -> bytes:
    """Evidence as judge.lua stores it, with counts as wide as the largest needs."""
    rows = list(winnings.counts.values())
    widths = [[w + (i > 2 and (i - 3) % 5 == 2) for i in range(13)] for w in range(1, 7)]
    (width, *_) = (w for w in widths if all(n < 256**b for row in rows for n, b in zip(row.tolist(), w, strict=True)))
    free = label_room - len(rows)
    numbers = b"".join(n.to_bytes(b, "little") for row in rows for n, b in zip(row.tolist(), width, strict=True))
    head = struct.pack("<BI", width[0], len(rows)) + b"".join(c.to_bytes(6, "little") for c in clocks)
    labels = struct.pack(f"<{len(rows)}I", *winnings.counts) + bytes(4 * free)
    return head + winnings.purses.tobytes() + labels + numbers + bytes(sum(width) * free)


def test_tests_are_numbered_once_for_all_servers(redis_url):
    with closing(RedisLedger(redis_url)) as one, closing(RedisLedger(redis_url)) as other:
        tests = [
            Test(number, 1, 1e-3, 0.05, account) for number in (-(2**63), 0, 2**63 - 1) for account in ("", "t", "n")
        ]
        numbers = [(one if i % 2 else other).number_of(test) for i, test in enumerate(tests)]
        assert numbers == [1, 1, 1, 2, 2, 2, 3, 3, 3]
        assert [one.number_of(test) for test in tests] == numbers == [other.number_of(test) for test in tests]


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
    assert "pip install 'queen-guard[redis]'" in done.stdout, done.stderr


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


def test_a_take_over_that_breaks_off_in_the_middle_goes_on_when_it_is_done_again(redis_url, monkeypatch):
    monkeypatch.setattr(admin, "STOP_SECONDS", 0.0)
    monkeypatch.setattr(redis_client, "PAGE", 1)
    names = [f"client {i}" for i in range(40)]
    with closing(RedisLedger(redis_url)) as ledger:
        for name in names:
            ledger.judge(name, [0, 1], np.zeros((2, 2)), Limits())
        run, left = ledger._servers.run, iter(range(5))

        def run_a_few(script, calls):
            if calls and next(left, None) is None:  # a page of a scan may be empty
                raise redis_errors.ConnectionError("gone")
            return run(script, calls)

        with monkeypatch.context() as patch:
            patch.setattr(ledger._servers, "run", run_a_few)
            with pytest.raises(LedgerError, match="gone"):
                ledger.rebind("new", "olga", name="new bundle", forget_coverage=True)
        assert ledger.fact("binding") == "unfinished new"
        assert 0 < sum(bool(ledger.coverage(name)) for name in names) < len(names)
        assert ledger.events() == []
        ledger.rebind("new", "olga", name="new bundle", forget_coverage=True)
        assert ledger.fact("binding") == "new"
        assert not any(ledger.coverage(name) or ledger.records(name) for name in names)
        assert [ledger.standing(name).queries for name in names] == [2] * len(names)
        assert [event.what for event in ledger.events()] == ["rebind"]
