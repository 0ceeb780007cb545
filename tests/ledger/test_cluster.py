"""A Redis cluster of which a part fails: its own clients wait, all others are served."""

from __future__ import annotations

import os
import signal
from contextlib import closing, suppress
from dataclasses import replace

import numpy as np
import pytest

from queen.errors import LedgerError
from queen.ledger import MemoryLedger, RedisLedger
from queen.options import Group
from tests.reference.watch import Rules
from tests.support.queries import PLENTY, RULES, events, judge, outcomes, picture, standings, traffic
from tests.support.redis_server import redis_cluster
from tests.support.waiting import wait_for

pytestmark = pytest.mark.real

CLIENTS = [f"client {i}" for i in range(24)]


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    started = redis_cluster(tmp_path_factory.mktemp("cluster"), 3)
    yield started
    for server in started:
        server.kill()


@pytest.fixture
def ledger(servers):
    for server in servers:
        with server.client() as client:
            client.flushall()
    with closing(RedisLedger(servers[0].url, timeout=0.5)) as made:
        yield made


def home(ledger: RedisLedger, name: str, *, group: bool = False) -> int:
    """The port of the server that keeps a client or group."""
    node = ledger._servers._cluster.get_node_from_key(ledger._keys(name, group=group)[0])
    return int(node.port)


def wait_until_served(ledger: RedisLedger, client: str) -> None:
    def is_served() -> bool:
        with suppress(LedgerError):
            return ledger.standing(client) is not None
        return False

    wait_for(is_served)


def test_clients_are_spread_and_all_is_decided_as_in_memory(ledger):
    memory, queries = MemoryLedger(), traffic(1, 600)
    for i in range(0, 600, 20):
        part = queries[i : i + 20]
        assert outcomes(judge(ledger, RULES, part)) == outcomes(judge(memory, RULES, part))
    for each in (ledger, memory):
        each.pardon("c", "op")
        each.allow("b", "op")
        judge(each, RULES, [picture(i, client=name) for i, name in enumerate(CLIENTS)])
    assert standings(ledger) == standings(memory)
    assert events(ledger) == events(memory)
    assert list(ledger.clients()) == list(memory.clients())
    assert len({home(ledger, name) for name in CLIENTS}) == 3


def test_a_dead_shard_fails_its_own_rows_only_and_comes_back(ledger, servers):
    rules, memory = Rules(PLENTY, bar=1e9), MemoryLedger()
    first, second, third = ([picture(10 * t + i, client=n) for i, n in enumerate(CLIENTS)] for t in range(3))
    for each in (ledger, memory):
        judge(each, rules, first)
    dead = servers[1]
    lost = np.array([home(ledger, name) == dead.port for name in CLIENTS])
    assert 0 < lost.sum() < len(CLIENTS)
    dead.kill()
    try:
        found = judge(ledger, rules, second)
        assert (found.failed == lost).all()
        assert found.spent[lost].all()
        assert {found.letters[i] for i in np.flatnonzero(lost)} == {"B"}
        alive = [query for query, gone in zip(second, lost, strict=True) if not gone]
        expected = outcomes(judge(memory, rules, alive))
        assert [flag for flag, gone in zip(outcomes(found), lost, strict=True) if not gone] == expected
        ledger.check()  # part of it is of use
        with pytest.raises(LedgerError):
            judge(ledger, rules, [query for query, gone in zip(second, lost, strict=True) if gone])
        with pytest.raises(LedgerError):
            ledger.standing(CLIENTS[int(np.flatnonzero(lost)[0])])
    finally:
        dead.start()
    wait_until_served(ledger, CLIENTS[int(np.flatnonzero(lost)[0])])
    again = judge(ledger, rules, third)
    assert not again.failed.any()
    assert outcomes(again) == outcomes(judge(memory, rules, third))
    assert standings(ledger) == standings(memory)


def test_a_shard_that_hangs_holds_up_a_batch_once(ledger, servers, monkeypatch):
    rules = Rules(PLENTY, bar=1e9)
    judge(ledger, rules, [picture(0, client=name) for name in CLIENTS])
    hung = servers[2]
    lost = np.array([home(ledger, name) == hung.port for name in CLIENTS])
    client = ledger._servers.client_of(ledger._keys(CLIENTS[int(np.flatnonzero(lost)[0])], group=False)[0])
    attempts, pipeline = [], client.pipeline
    monkeypatch.setattr(client, "pipeline", lambda **options: (attempts.append(options), pipeline(**options))[1])
    os.kill(hung.process.pid, signal.SIGSTOP)
    try:
        found = judge(ledger, rules, [picture(1, client=name) for name in CLIENTS])
        assert len(attempts) == 1
        assert (found.failed == lost).all()
    finally:
        os.kill(hung.process.pid, signal.SIGCONT)
    wait_until_served(ledger, CLIENTS[int(np.flatnonzero(lost)[0])])


def test_a_group_on_a_dead_shard_fails_the_rows_that_reach_it(ledger, servers):
    dead = servers[1]
    group = next(f"team:{i}" for i in range(100) if home(ledger, f"team:{i}", group=True) == dead.port)
    safe = [name for name in CLIENTS if home(ledger, name) != dead.port]
    member, refused, stranger = safe[:3]
    shared = {group: Group(limits=PLENTY)}
    rules = Rules(PLENTY, bar=1e9, groups={member: shared, refused: shared})
    judge(ledger, rules, [picture(0, client=member), picture(0, client=refused)])
    dead.kill()
    try:
        with pytest.raises(LedgerError):  # its own account knows the picture, so the group is asked
            judge(ledger, rules, picture(0, client=refused))
        stream = [picture(1, client=name) for name in (member, stranger)]
        assert judge(ledger, rules, stream).failed.tolist() == [True, False]
        poor = replace(rules, limits=replace(PLENTY, extra_answers=0))
        found = judge(ledger, poor, [picture(2, client=refused), picture(3, client=stranger)])
        assert found.failed.tolist() == [False, False]  # denied before the group was asked
        assert found.spent.tolist() == [True, True]
        assert ledger.standing(member).extra_answers == 2  # counted, though nobody was answered
    finally:
        dead.start()
    wait_until_served(ledger, group)


@pytest.mark.parametrize("key", ["layout", "tests"])
def test_a_server_that_starts_while_a_shard_is_down_serves_what_it_can(ledger, servers, key):
    """Without the layout it relies on its scripts; without the numbers of tests it knows no bar, and refuses."""
    rules = Rules(PLENTY, bar=1e9)
    judge(ledger, rules, picture(0, client=CLIENTS[0]))
    port = ledger._servers._cluster.get_node_from_key(f"queen:{key}").port
    (dead,) = (server for server in servers if server.port == port)
    alive = next(server for server in servers if server is not dead)
    name = next(name for name in CLIENTS if home(ledger, name) == alive.port)
    dead.kill()
    try:
        with closing(RedisLedger(alive.url, timeout=0.5)) as late:
            assert late.judge(name, [0], np.zeros((1, 2)), PLENTY).letters == "C"
            if ledger._servers._cluster.get_node_from_key("queen:tests").port == port:
                with pytest.raises(LedgerError):
                    judge(late, rules, picture(1, client=name))
                assert not judge(ledger, rules, picture(1, client=name)).failed.any()  # it learned the number before
            else:
                assert not judge(late, rules, picture(1, client=name)).failed.any()
    finally:
        dead.start()
    wait_until_served(ledger, next(name for name in CLIENTS if home(ledger, name) == port))


def owner(server, slot: int) -> int:
    """The port of who holds a slot, as this server knows it."""
    with server.client() as client:
        ranges = client.execute_command("CLUSTER", "SLOTS")
    return next(int(holder[1]) for first, last, holder, *_ in ranges if first <= slot <= last)


def test_slots_that_move_are_followed(ledger, servers):
    rules = Rules(PLENTY, bar=1e9)
    client = next(name for name in CLIENTS if home(ledger, name) == servers[0].port)
    slot = ledger._servers._cluster.keyslot(ledger._keys(client)[0])
    with servers[0].client() as one, servers[2].client() as two:
        ids = [c.execute_command("CLUSTER", "MYID").decode() for c in (one, two)]
        for target, port in ((ids[1], servers[2].port), (ids[0], servers[0].port)):
            for server in sorted(servers, key=lambda server: server.port != port):
                with server.client() as each:
                    each.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target)
                    if server.port == port:  # or what the others remember might overrule it
                        each.execute_command("CLUSTER", "BUMPEPOCH")
            wait_for(lambda port=port: {owner(server, slot) for server in servers} == {port})
            found = judge(ledger, rules, picture(port, client=client))
            assert not found.failed.any()
            assert home(ledger, client) == port
            with one if port == servers[0].port else two as holder:
                assert ledger.standing(client).queries == 1
                holder.delete(*ledger._keys(client))
