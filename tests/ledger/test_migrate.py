"""From the first layout of a Redis ledger to the second: refused, then migrated; nothing is lost but wealth."""

from __future__ import annotations

import struct
from contextlib import closing
from dataclasses import replace

import pytest

from queen.errors import LedgerError
from queen.ledger import Budget, RedisLedger, open_ledger
from queen.ledger.redis.codec import STATE
from queen.ledger.redis.layout import LAYOUT, Migrated, migrate
from queen.sentinel.sketch import Memory
from tests.reference.watch import Rules
from tests.support.commands import as_json, mistake, run
from tests.support.first_layout import NO_DIGEST, FirstScope, write_event
from tests.support.old_files import old_file
from tests.support.queries import FOREIGN, PLENTY, flags, judge, picture, sketch
from tests.support.redis_server import shared_server

pytestmark = pytest.mark.real

RULES = Rules(PLENTY, bar=1e9)
SCOPES = [
    FirstScope("asked", queries=5, extra=3, wealth=(1.5,) * 20,
               coverage={1: [(0.1, 0.1), (0.5, -0.3)], 70_000: [(0.0, 0.0)]},
               remembered=[(i + 1, sketch(10.0 * i)) for i in range(3)] + [(NO_DIGEST, sketch(30.0))]),
    FirstScope("accused", queries=9, alarmed=True, wealth=(3.0,) * 9),
    FirstScope("trusted", allowed=True),
    FirstScope("given", queries=1, budget=(0.25, 7)),
    FirstScope("team:1", group=True, queries=30, extra=2, alarmed=True, wealth=(9.0,)),
]  # fmt: skip


@pytest.fixture(params=[False, True], ids=["one server", "cluster"])
def server(request):
    started = shared_server(cluster=request.param)
    with started.client() as client:
        client.flushall()
        for scope in SCOPES:
            scope.write(client, "queen")
        write_event(client, "queen")
        client.hset("queen:acknowledged", "1", "op")
        if not request.param:
            client.set("queen:check", 1)
    yield started
    with started.client() as client:
        client.flushall()


def dump(server) -> dict[bytes, object]:
    """All keys and what they hold."""
    with server.client() as client:
        of_type = {b"string": client.get, b"hash": client.hgetall, b"list": lambda key: client.lrange(key, 0, -1)}
        return {key: of_type[client.type(key)](key) for key in client.keys("*")}


def test_data_of_the_first_layout_is_refused_with_the_way_out_and_left_alone(server):
    before = dump(server)
    with pytest.raises(LedgerError, match=r"older version of queen.*queen migrate redis://.* --prefix queen"):
        RedisLedger(server.url)
    assert dump(server) == before
    with closing(RedisLedger(server.url, prefix="elsewhere")) as other:
        assert other.standings() == []


def test_all_but_wealth_is_there_afterwards(server):
    assert migrate(server.url) == Migrated(len(SCOPES), len(SCOPES))
    with closing(RedisLedger(server.url)) as ledger:
        by_name = {standing.name: standing for standing in ledger.standings()}
        assert by_name.keys() == {scope.name for scope in SCOPES}
        for scope in SCOPES:
            standing = by_name[scope.name]
            assert (standing.group, standing.queries, standing.extra_answers) == (
                scope.group,
                scope.queries,
                scope.extra,
            )
            assert (standing.alarmed, standing.allowed, standing.wealth) == (scope.alarmed, scope.allowed, 0.0)
            assert standing.coverage == {label: 0.01 * len(points) for label, points in scope.coverage.items()}
            records = {} if scope.group else {k: list(map(tuple, v)) for k, v in ledger.records(scope.name).items()}
            assert records == ({} if scope.group else scope.coverage)
        assert by_name["given"].budget == Budget(threshold=0.25, extra_answers=7)
        (event,) = ledger.events()
        assert (event.what, event.name, event.wealth, event.acknowledged) == ("alarm", "a", 20.5, "op")
        ledger.pardon("team:1", "op", group=True)
        assert not ledger.standing("team:1", group=True).alarmed


def test_what_was_remembered_is_still_known(server):
    migrate(server.url)
    with closing(RedisLedger(server.url)) as ledger:
        known = [picture(i, client="asked", bet=FOREIGN) for i in range(4)]
        assert flags(judge(ledger, RULES, known)) == [("A", False, False, False)] * 4
        standing = ledger.standing("asked")
        assert standing.extra_answers == 3 + 1  # three answers come again, the fourth picture was never answered
        assert standing.wealth == 0.0  # none of them is new
        judge(ledger, RULES, picture(4, client="asked", bet=FOREIGN))
        assert ledger.standing("asked").wealth > 0.0
        assert judge(ledger, RULES, picture(0, client="accused")).alarmed.all()


def test_a_full_memory_goes_on_forgetting_the_oldest_first(server, monkeypatch):
    monkeypatch.setattr(Memory, "CAPACITY", 4)
    remembered = [(NO_DIGEST if i == 5 else i + 1, sketch(10.0 * i)) for i in range(7)]  # 3, 4, 5 and 6 are left
    with server.client() as client:
        FirstScope("full", queries=7, remembered=remembered, capacity=4).write(client, "queen")
    migrate(server.url)
    with closing(RedisLedger(server.url)) as ledger:
        charged = []
        for number in (3, 4, 5, 6, 7, 3, 5):  # the eighth picture takes the place of number 3
            before = ledger.standing("full").extra_answers
            judge(ledger, RULES, picture(number, client="full"))
            charged.append(ledger.standing("full").extra_answers - before)
        assert charged == [0, 0, 1, 0, 1, 1, 0]


def test_once_is_as_good_as_twice(server):
    migrate(server.url)
    with closing(RedisLedger(server.url)) as ledger:
        judge(ledger, RULES, [picture(9, client="asked", bet=FOREIGN), picture(9, client="new", bet=FOREIGN)])
    before = dump(server)
    assert migrate(server.url) == Migrated(len(SCOPES) + 1, 0)
    assert dump(server) == before


def test_entries_from_before_the_accused_were_counted_need_no_migration(server):
    """The layout is the same but for one field, which only accused scopes have: without it, counting begins now."""
    migrate(server.url)
    rules = replace(RULES, bar=1.0, after_alarm=2)
    with closing(RedisLedger(server.url)) as ledger:
        judge(ledger, rules, [picture(0, client="new"), picture(1, client="new", bet=FOREIGN)])
        fields = [ledger._keys(name)[0] for name in ("new", "accused", "asked")]
        with server.client() as client:
            assert [client.hexists(scope, "a") for scope in fields] == [True, False, False]
            client.hdel(fields[0], "a")
        assert ledger.standing("new").after_alarm == ledger.standing("accused").after_alarm == 0
        assert judge(ledger, rules, [picture(0, client="new")] * 3).repeated.tolist() == [True, True, False]
        assert judge(ledger, rules, [picture(9, client="accused")] * 3).cut_off.tolist() == [False, False, True]
        assert ledger.standing("new").after_alarm == ledger.standing("accused").after_alarm == 3
        ledger.pardon("new", "op")
        with server.client() as client:
            assert [client.hexists(scope, "a") for scope in fields] == [False, True, False]


class Killed(Exception):
    """The process ended here."""


@pytest.mark.parametrize("steps", range(1, len(SCOPES) + 1))
def test_interrupted_it_is_still_refused_and_goes_on_when_run_again(server, steps):
    done = []

    def advance() -> None:
        done.append(1)
        if len(done) == steps:
            raise Killed

    with pytest.raises(Killed):
        migrate(server.url, advance=advance)
    with pytest.raises(LedgerError, match="queen migrate"):
        RedisLedger(server.url)
    migrate(server.url)
    parts = dump(server)
    with server.client() as client:
        client.flushall()
        for scope in SCOPES:
            scope.write(client, "queen")
        write_event(client, "queen")
        client.hset("queen:acknowledged", "1", "op")
    migrate(server.url)
    assert dump(server) == parts


def test_a_scope_that_an_older_server_still_writes_is_refused_until_it_is_migrated(server):
    migrate(server.url)
    late = FirstScope("late", queries=2, extra=1)
    with server.client() as client, closing(RedisLedger(server.url)) as ledger:
        late.write(client, "queen")
        calls = [
            lambda: judge(ledger, RULES, picture(0, client="late")),
            lambda: ledger.standing("late"),
            lambda: ledger.pardon("late", "op"),
            lambda: list(ledger.clients()),
            ledger.standings,
        ]
        for call in calls:
            with pytest.raises(LedgerError, match="queen migrate"):
                call()
        assert not judge(ledger, RULES, picture(0, client="other")).failed.any()
        assert migrate(server.url).migrated == 1
        assert ledger.standing("late").queries == 2


def test_an_older_server_cannot_read_a_scope_of_the_second_layout(server):
    migrate(server.url)
    with server.client() as client:
        (state,) = {len(client.hget(key, "s")) for key in client.keys("queen:{*}")}
    assert state == STATE.size < struct.calcsize("<BIdddd")  # which its scripts read, or fail


def test_a_newer_layout_is_refused(server):
    migrate(server.url)
    with server.client() as client:
        client.set("queen:layout", LAYOUT + 1)
    with pytest.raises(LedgerError, match=f"layout {LAYOUT + 1}, .* update queen"):
        RedisLedger(server.url)
    with pytest.raises(LedgerError, match="update queen"):
        migrate(server.url)


def test_a_server_that_forgets_is_not_migrated(server):
    before = dump(server)
    with server.client() as client:
        try:
            client.config_set("appendfsync", "everysec")
            with pytest.raises(LedgerError, match=r"not durable.*CONFIG SET appendfsync always"):
                migrate(server.url)
            assert {k: v for k, v in dump(server).items() if k != b"queen:check"} == {
                k: v for k, v in before.items() if k != b"queen:check"
            }
            assert migrate(server.url, allow_volatile=True).migrated == len(SCOPES)
        finally:
            client.config_set("appendfsync", "always")


def test_a_server_that_an_older_version_only_opened_is_new(redis_url):
    with shared_server().client() as client:
        client.set("queen:check", 1)
    with closing(RedisLedger(redis_url)) as ledger:
        assert ledger.standings() == []


def test_the_command(server):
    with server.client() as client:
        replace(SCOPES[0], name="shopper").write(client, "shop")
    assert as_json("migrate", server.url) == {"scopes": len(SCOPES), "migrated": len(SCOPES)}
    assert "0 of 5 clients and groups" in run("migrate", server.url).stdout
    assert as_json("migrate", server.url, "--prefix", "shop") == {"scopes": 1, "migrated": 1}
    assert "prefix must be" in mistake("migrate", server.url, "--prefix", "a*")


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}"])
def test_a_file_is_migrated_by_opening_it(tmp_path, form):
    address = form.format(old_file(tmp_path / "ledger.db"))
    assert as_json("migrate", address) == {"scopes": 7, "migrated": 7}
    assert as_json("migrate", address) == {"scopes": 7, "migrated": 0}
    with closing(open_ledger(address)) as ledger:
        assert ledger.standing("alice").queries == 8


@pytest.mark.parametrize("address", ["missing.sqlite", "sqlite:///missing.sqlite", "memory://", "http://127.0.0.1"])
def test_what_is_not_there_is_neither_migrated_nor_made(tmp_path, monkeypatch, address):
    monkeypatch.chdir(tmp_path)
    assert "no ledger" in mistake("migrate", address)
    assert list(tmp_path.iterdir()) == []
