"""The operators' API through HTTP, around a real ledger and real keys."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from math import pi
from types import SimpleNamespace

import httpx
import numpy as np
import orjson
import pytest

from queen import Guard
from queen.errors import LedgerError
from queen.ledger import Budget, Standing
from queen.ledger.usage import Usage
from queen.options import SENTINEL_LIMITS, Limits
from queen.serve.admin import accounts as accounts_module
from queen.serve.admin import background
from queen.serve.admin.accounts import Accounts, account_facts, coverage_facts
from queen.serve.admin.background import BackgroundValue
from queen.serve.admin.routes import admin_routes
from queen.serve.unprotected import Unprotected
from tests.support.admin_stub import HOSTILE, LIMITS, AdminStub, ExchangeableApp, ask
from tests.support.serving import digits, small_guard
from tests.support.times import MIDNIGHT
from tests.support.waiting import wait_for

ACTOR = "olga <admin>"
BODIES = {
    "pardon": {"name": "thief-7"},
    "allow": {"name": "alice", "allowed": True},
    "budget": {"name": "alice", "extra_answers": 5, "threshold": 0.5},
    "revoke": {"name": "alice"},
    "acknowledge": {"event": 1},
}
READS = ("overview", "series", "clients", "client?name=alice", "clients/alice", "records?name=alice&label=3", "events")


@pytest.fixture
def http(listener, stub) -> Iterator[httpx.Client]:
    with client_of(listener, stub) as client:
        yield client


def client_of(listener: ExchangeableApp, stub: AdminStub) -> httpx.Client:
    """Serve the stub, and make a client of it with the admin key."""
    listener.app = stub.app()
    headers = {"Authorization": f"Bearer {stub.admin_key}"}
    return httpx.Client(base_url=f"{listener.url}/admin/", headers=headers, timeout=30)


def ledger_state(guard: Guard) -> list[object]:
    return [guard.ledger.standings(), guard.ledger.events()]


# Who may.


def test_every_route_wants_the_admin_key_and_nothing_happens_without(stub, http):
    before = ledger_state(stub.guard)
    wrong = [None, "Bearer", "Bearer x", f"Bearer {stub.admin_key[:-1]}", f"Basic {stub.admin_key}"]
    for header, status in [*((text, 401) for text in wrong), (f"Bearer {stub.plain_key}", 403)]:
        headers = {} if header is None else {"Authorization": header}
        anybody = httpx.Client(base_url=http.base_url, headers=headers)
        for path in READS:
            assert anybody.get(path).status_code == status, (path, header)
        for path, body in BODIES.items():
            reply = anybody.post(path, json=body)
            assert (reply.status_code, list(reply.json())) == (status, ["error"]), (path, header)
    assert ledger_state(stub.guard) == before
    assert all(key.active for key in stub.keys.keys().values())


def test_with_the_key_every_route_answers_and_nothing_is_cached(http):
    for path in READS:
        reply = http.get(path)
        assert reply.status_code == 200, path
        assert reply.headers["cache-control"] == "no-store"
        assert "set-cookie" not in reply.headers
    for path, body in BODIES.items():
        assert http.post(path, json=body).status_code == 200, path


def test_the_lists_above_name_every_route(stub):
    paths = {route.path.removeprefix("/admin/") for route in admin_routes(stub)}
    assert paths == {*(p.partition("?")[0] for p in READS if p != "clients/alice"), "clients/{name:path}", *BODIES}


# Reading.


BAR = pi**2 / 6 / (1e-3 * 0.05)  # of a ledger's first calibration


def test_overview_tells_model_policy_server_and_totals(stub, http):
    content = http.get("overview").json()
    bundle, sentinel = content["bundle"], content["bundle"]["sentinel"]
    assert (bundle["model"], bundle["version"], bundle["classes"], bundle["policy"]) == ("digits", "1", 10, "sentinel")
    assert bundle["limits"] == {"radius": 0.12, "threshold": 0.08, "extra_answers": 150}
    assert (sentinel["alpha"], sentinel["bar"], sentinel["on_alarm"]) == (1e-3, pytest.approx(BAR), "refuse")
    assert sentinel["calibration"] == 1
    assert (sentinel["on_spent"], sentinel["after_alarm"], sentinel["digits"]) == ("refuse", 2000, None)
    assert sentinel["groups"]["tenant"] == {**bundle["limits"], "extra_answers": 900, "enforce_alarm": False}
    assert bundle["answers"]["A"] == ["honest", "refuse"]
    assert bundle["certified"] is True
    assert "With confidence" in bundle["statement"]
    assert stub.guard.bundle.identity.startswith(bundle["identity"])
    assert len(bundle["identity"]) == 12
    server = content["server"]
    assert (server["ledger"], server["ready"]) == ("memory", True)
    assert server["uptime"] == pytest.approx(7_500, abs=60)
    assert content["totals"] == {"clients": 12, "groups": 1, "alarmed": 1, "spent": 1, "unacknowledged": 5}


def test_other_policies_have_no_bar_and_none_is_called_by_its_name(listener, tmp_path):
    for kind, policy in ((Guard, "paper"), (Unprotected, "none")):
        with client_of(listener, AdminStub(kind(small_guard(policy="paper").bundle), tmp_path)) as http:
            bundle = http.get("overview").json()["bundle"]
        assert (bundle["policy"], bundle["sentinel"]["bar"], bundle["sentinel"]["calibration"]) == (policy, None, None)
        honest_first = {letter: pair[0] == "honest" for letter, pair in bundle["answers"].items()}
        assert honest_first == {"A": policy == "none", "B": policy == "none", "C": True, "D": True}


def test_clients_are_ranked_by_wealth_coverage_or_queries(stub, http):
    every = stub.guard.ledger.standings()
    ranks = {
        "wealth": lambda s: -s.wealth,
        "queries": lambda s: -s.queries,
        "coverage": lambda s: -max(s.coverage.values(), default=0.0),  # all have one threshold here
    }
    for sort, rank in ranks.items():
        content = http.get("clients", params={"sort": sort}).json()
        names = [line["name"] for line in content["clients"]]
        assert names == [s.name for s in sorted(every, key=lambda s: (rank(s), s.group, s.name))], sort
        assert content["total"] == len(every) == 13
    first = http.get("clients").json()["clients"][0]
    assert (first["name"], first["alarmed"], first["bar"]) == ("thief-7", True, pytest.approx(BAR))


def test_search_and_limit(stub, http):
    def names(**parameters) -> list[str]:
        return [line["name"] for line in http.get("clients", params=parameters).json()["clients"]]

    assert names(search="ALICE") == [name for name in names() if "alice" in name]
    assert len(names(search="ALICE")) == 2
    assert names(search="nobody") == []
    assert names(search="<script") == [HOSTILE[0]]
    assert names(limit=2) == names()[:2]
    assert names(limit=0) == []
    for parameters in ({"limit": 1001}, {"limit": "x"}, {"limit": -1}, {"limit": "9" * 30}, {"sort": "name"}):
        assert http.get("clients", params=parameters).status_code == 400, parameters


def test_any_name_is_found_by_parameter_and_plain_ones_by_path(stub, http):
    for name in (*HOSTILE, "alice"):
        standing = stub.guard.ledger.standing(name)
        content = http.get("client", params={"name": name}).json()
        assert (content["name"], content["queries"], content["known"]) == (name, standing.queries, True)
        assert {one["label"]: one["cqs"] for one in content["coverage"]} == standing.coverage
    assert http.get("clients/alice").json() == http.get("client", params={"name": "alice"}).json()
    assert http.get("clients/%3Cscript%3Edocument.title='pwned'%3C/script%3E").json()["known"]
    assert not http.get("client?name=stranger").json()["known"]
    for path in ("client", "client?name=", "clients/", f"client?name={'x' * 257}", "client?name=a&group=2"):
        assert http.get(path).status_code == 400, path


def test_a_client_has_its_classes_events_and_keys(stub, http):
    key, made = stub.keys.add("thief-7", groups=("tenant:7",))
    content = http.get("client?name=thief-7").json()
    assert [one["what"] for one in content["events"]] == ["alarm"]
    assert content["keys"] == [
        {"id": made.id, "groups": ["tenant:7"], "admin": False, "created": made.created, "revoked": None}
    ]
    assert key not in json.dumps(content)
    assert made.digest.hex() not in json.dumps(content)
    content = http.get("client?name=alice").json()
    assert {event["what"] for event in content["events"]} == {"budget low", "class low"}
    shares = [one["share"] for one in content["coverage"]]
    assert shares == sorted(shares, reverse=True)
    assert content["most"] == content["coverage"][0]
    assert content["coverage"][0]["name"] in ("four", "five")


def test_a_group_is_measured_by_its_own_limits(stub, http):
    content = http.get("client?name=tenant:7&group=1").json()
    assert (content["group"], content["extra_limit"], content["keys"]) == (True, 900, [])
    assert content["queries"] == stub.guard.ledger.standing("tenant:7", group=True).queries > 0
    assert not http.get("client?name=tenant:7").json()["known"]  # there is no client of that name


def test_own_budgets_count(stub, http):
    stub.guard.ledger.set_budget("alice", Budget(threshold=0.0), "test")
    stub.guard.ledger.set_budget("bob@example.org", Budget(threshold=100.0), "test")
    lines = http.get("clients", params={"sort": "coverage"}).json()["clients"]
    assert (lines[0]["name"], lines[0]["most"]["share"], lines[0]["most"]["spent"]) == ("alice", None, True)
    bob = next(line for line in lines if line["name"] == "bob@example.org")
    assert (bob["most"]["spent"], bob["most"]["share"] < 0.001, bob["budget"]["threshold"]) == (False, True, 100.0)


def test_records_are_the_ledgers(stub, http):
    every = stub.guard.ledger.records("alice")
    assert len(every) > 5
    for label in range(10):
        content = http.get("records", params={"name": "alice", "label": label}).json()
        assert content["points"] == every.get(label, np.empty((0, 2))).tolist()
        assert (content["radius"], content["total"]) == (LIMITS.radius, len(content["points"]))
    assert http.get("records?name=tenant:7&group=1&label=0").json()["note"]
    for query in ("name=alice", "name=alice&label=10", "name=alice&label=-1", "label=1", "name=alice&label=1.5"):
        assert http.get(f"records?{query}").status_code == 400, query


def test_only_the_newest_records_leave(stub, http, monkeypatch):
    many = np.arange(12_002, dtype=np.float64).reshape(-1, 2)
    monkeypatch.setattr(stub.guard.ledger, "records", lambda name: {3: many})
    content = http.get("records?name=alice&label=3").json()
    assert (len(content["points"]), content["total"], content["points"][-1]) == (5000, 6001, [12_000.0, 12_001.0])


def test_events_come_newest_first(stub, http):
    for i in range(5):
        stub.guard.ledger.allow("alice", f"actor {i}", allowed=bool(i % 2))
    content = http.get("events").json()
    assert [one["id"] for one in content["events"]] == [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]
    assert content["events"][0]["actor"] == "actor 4"
    assert [one["id"] for one in http.get("events?limit=2").json()["events"]] == [10, 9]


def test_series_are_those_of_the_server(stub, http):
    stub.series._clock = lambda: 1000.0
    stub.series.request(0.01)
    stub.series.batch(4, {"A": 3, "C": 1}, alarmed=1)
    stub.series._clock = lambda: 1001.0
    facts = http.get("series?seconds=2").json()
    assert (facts["time"], facts["requests"]) == ([999, 1000], [None, 1])  # it began at 1000
    assert (facts["A"], facts["alarmed"]) == ([None, 3], [None, 1])
    assert len(http.get("series").json()["time"]) == 899
    assert http.get("series?seconds=901").status_code == 400


# Acting.


def test_pardon_clears_alarm_and_wealth_and_says_who_did_it(stub, http):
    before = stub.guard.ledger.standing("thief-7")
    assert before.alarmed
    content = http.post("pardon", json={"name": "thief-7"}).json()
    after = stub.guard.ledger.standing("thief-7")
    assert (after.alarmed, after.wealth, after.coverage) == (False, 0.0, before.coverage)
    assert (content["alarmed"], content["wealth"], content["events"][0]["what"]) == (False, 0.0, "pardon")
    assert (stub.guard.ledger.events()[-1].what, stub.guard.ledger.events()[-1].actor) == ("pardon", ACTOR)
    ranked = http.get("clients").json()["clients"]  # at once, although the list is kept for a second
    assert not next(line for line in ranked if line["name"] == "thief-7")["alarmed"]
    assert http.post("pardon", json={"name": "tenant:7", "group": True}).json()["wealth"] == 0
    assert http.post("pardon", json={"name": "stranger"}).status_code == 404
    assert not any(s.name == "stranger" for s in stub.guard.ledger.standings())


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_can_be_acted_on(stub, http, name):
    assert http.post("allow", json={"name": name, "allowed": True}).json()["allowed"]
    assert stub.guard.ledger.standing(name).allowed
    assert not http.post("allow", json={"name": name, "allowed": False}).json()["allowed"]
    assert [e.what for e in stub.guard.ledger.events()[-2:]] == ["allow", "disallow"]
    assert {e.name for e in stub.guard.ledger.events()[-2:]} == {name}


def test_budgets_are_given_and_taken_back(stub, http):
    content = http.post("budget", json={"name": "alice", "extra_answers": 7, "threshold": None}).json()
    assert stub.guard.ledger.standing("alice").budget == Budget(extra_answers=7)
    assert (content["extra_limit"], content["budget"]) == (7, {"extra_answers": 7, "threshold": None})
    assert (
        http.post("budget", json={"name": "alice", "extra_answers": None, "threshold": None}).json()["budget"] is None
    )
    assert stub.guard.ledger.standing("alice").budget is None


def test_keys_are_revoked_by_id_or_name(stub, http):
    _, first = stub.keys.add("bob@example.org")
    _, second = stub.keys.add("bob@example.org")
    assert http.post("revoke", json={"id": first.id}).json() == {"revoked": [first.id]}
    assert (stub.keys.keys()[first.id].active, stub.keys.keys()[second.id].active) == (False, True)
    assert http.post("revoke", json={"name": "bob@example.org"}).json() == {"revoked": [second.id]}
    assert all(key["revoked"] for key in http.get("client?name=bob@example.org").json()["keys"])
    assert http.post("revoke", json={"name": "stranger"}).status_code == 400


def test_events_are_acknowledged(stub, http):
    assert http.post("acknowledge", json={"event": 1}).json() == {"acknowledged": 1, "actor": ACTOR}
    assert stub.guard.ledger.events()[0].acknowledged == ACTOR
    assert http.get("overview").json()["totals"]["unacknowledged"] == 4  # what was noted of budgets
    assert http.post("acknowledge", json={"event": 99}).status_code == 400


BAD = [
    ("pardon", b""),
    ("pardon", b"{"),
    ("pardon", b"[]"),
    ("pardon", b"null"),
    ("pardon", b"\xff\xfe"),
    ("pardon", b"[" * 4000),
    ("pardon", b'{"name": "\\ud800"}'),
    ("pardon", b"{}"),
    ("pardon", b'{"name": 7}'),
    ("pardon", b'{"name": null}'),
    ("pardon", b'{"name": ""}'),
    ("pardon", b'{"name": "a\\u0000b"}'),
    ("pardon", b'{"name": "alice", "group": 1}'),
    ("pardon", b'{"name": "alice", "actor": "somebody else"}'),
    ("allow", b'{"name": "alice"}'),
    ("allow", b'{"name": "alice", "allowed": 1}'),
    ("allow", b'{"name": "alice", "allowed": "true"}'),
    ("budget", b'{"name": "alice"}'),
    ("budget", b'{"name": "alice", "extra_answers": 1.5, "threshold": null}'),
    ("budget", b'{"name": "alice", "extra_answers": true, "threshold": null}'),
    ("budget", b'{"name": "alice", "extra_answers": -1, "threshold": null}'),
    ("budget", b'{"name": "alice", "extra_answers": 99999999999999999999, "threshold": null}'),
    ("budget", b'{"name": "alice", "extra_answers": null, "threshold": 1e999}'),
    ("budget", b'{"name": "alice", "extra_answers": null, "threshold": -1}'),
    ("revoke", b"{}"),
    ("revoke", b'{"name": "alice", "id": "0123456789abcdef"}'),
    ("acknowledge", b'{"event": true}'),
    ("acknowledge", b'{"event": -1}'),
]


@pytest.mark.parametrize(("path", "body"), BAD)
def test_a_malformed_order_is_refused_and_changes_nothing(stub, http, path, body):
    before = ledger_state(stub.guard)
    reply = http.post(path, content=body)
    assert reply.status_code == 400
    assert set(reply.json()) == {"error"}
    assert ledger_state(stub.guard) == before


def test_a_long_order_is_refused(stub, http):
    name = "alice".ljust(4096)
    assert http.post("pardon", content=json.dumps({"name": name})).status_code == 413
    fits = json.dumps({"name": "alice", "allowed": True}).ljust(4096)
    assert http.post("allow", content=fits).status_code == 200
    assert http.get("pardon").status_code == http.post("overview").status_code == 405


# When things fail, or are many.


def test_a_ledger_that_fails_is_no_crash(stub, http):
    stub.fails = LedgerError("the ledger is gone")
    for path in ("overview", "clients", "client?name=alice", "events"):
        reply = http.get(path)
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1"), path
        assert "gone" in reply.json()["error"]
    assert http.post("pardon", json={"name": "thief-7"}).status_code == 503
    assert http.get("series").status_code == 200  # needs no ledger
    stub.fails = None
    assert http.get("overview").status_code == 200


def test_many_dashboards_cost_one_reading_a_second(stub, http, monkeypatch):
    clock, readings = SimpleNamespace(now=100.0), []
    monkeypatch.setattr(background, "time", SimpleNamespace(monotonic=lambda: clock.now))
    real = stub.guard.ledger.each_standing
    monkeypatch.setattr(stub.guard.ledger, "each_standing", lambda: readings.append(clock.now) or real())
    for _ in range(3):
        for _ in range(10):
            assert http.get("clients").status_code == http.get("overview").status_code == 200
        clock.now += 1.0
    assert readings == [100.0, 101.0, 102.0]


def test_a_long_reading_is_kept_longer_and_never_done_twice_at_once(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(background, "time", SimpleNamespace(monotonic=lambda: clock.now))
    readings = []

    async def read() -> int:
        readings.append(clock.now)
        await asyncio.sleep(0)
        clock.now += 3.0
        return len(readings)

    async def scenario() -> None:
        value = BackgroundValue(read)
        assert await asyncio.gather(*(value.get() for _ in range(5))) == [1] * 5
        clock.now += 29.0
        assert await value.get() == 1
        clock.now += 2.0
        assert await value.get() == 2
        value.forget()
        assert await value.get() == 3

    asyncio.run(scenario())


def test_who_asks_does_not_wait_for_a_long_reading():
    async def scenario() -> None:
        gate, letters = asyncio.Event(), iter("abc")

        async def read() -> str:
            letter = next(letters)
            await gate.wait()
            return letter

        value = BackgroundValue(read, patience=0.01)
        assert await value.get() is None  # nothing is known yet
        gate.set()
        await asyncio.sleep(0.01)
        assert await value.get() == "a"
        gate.clear()
        value.forget()
        assert await value.get() == "a"  # the last one, while b is being read
        value.forget()  # b may be from before what made it stale
        gate.set()
        await asyncio.sleep(0.01)
        assert await value.get() == "c"

    asyncio.run(scenario())


def test_a_failed_reading_is_told_and_tried_again():
    results = iter([LedgerError("no"), 7])

    async def read() -> int:
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    async def scenario() -> None:
        value = BackgroundValue(read)
        with pytest.raises(LedgerError):
            await value.get()
        assert await value.get() == 7

    asyncio.run(scenario())


def test_what_is_not_known_yet_is_said_to_be_so(listener, stub, monkeypatch):
    gate = threading.Event()
    real = stub.guard.ledger.each_standing
    monkeypatch.setattr(background, "PATIENCE", 0.05)
    monkeypatch.setattr(stub.guard.ledger, "each_standing", lambda: gate.wait(60) and real())
    with client_of(listener, stub) as http:
        assert http.get("overview").json()["totals"] == {
            "clients": None, "groups": None, "alarmed": None, "spent": None, "unacknowledged": 5,
        }  # fmt: skip
        assert http.get("clients").json() == {"clients": [], "total": None, "complete": False, "at": None}
        assert http.get("client?name=alice").json()["queries"] > 0  # one client needs no list
        assert http.post("pardon", json={"name": "thief-7"}).json()["alarmed"] is False
        gate.set()
        wait_for(lambda: http.get("clients").json()["total"] is not None)
        page = http.get("clients").json()
        assert (page["total"], page["complete"]) == (13, True)


def test_of_very_many_clients_the_first_by_each_order_are_right(monkeypatch):
    monkeypatch.setattr(accounts_module, "MAX_ACCOUNTS", 500)
    monkeypatch.setattr(accounts_module, "MAX_RANKED", 50)
    bundle = small_guard(limits=Limits(threshold=0.5)).bundle
    draw = random.Random(0)
    many = [
        Standing(
            f"client {i}", i % 7 == 0, draw.randrange(10**6), draw.random(), i % 5 == 0, coverage={3: draw.random()}
        )
        for i in range(5_000)
    ]
    accounts = Accounts.read(iter(many), bundle, 0)
    ranks = {"wealth": lambda s: s.wealth, "queries": lambda s: s.queries, "coverage": lambda s: s.coverage[3]}
    for order, rank in ranks.items():
        best = sorted(many, key=rank, reverse=True)[:50]
        assert [a.standing for a in accounts.ranked(order, "", 50)] == best
    spent = sum(one.coverage[3] > 0.5 for one in many)
    assert accounts.totals == {"clients": 4_285, "groups": 715, "alarmed": 1_000, "spent": spent}
    assert not accounts.complete
    assert len(accounts._accounts) <= 500


def test_among_very_many_a_whole_name_is_found(stub, http, monkeypatch):
    monkeypatch.setattr(accounts_module, "MAX_ACCOUNTS", 4)
    monkeypatch.setattr(accounts_module, "MAX_RANKED", 1)

    def names(search: str) -> list[str]:
        return [line["name"] for line in http.get("clients", params={"search": search}).json()["clients"]]

    assert http.get("clients").json()["complete"] is False
    assert names(HOSTILE[1]) == [HOSTILE[1]]
    assert names(HOSTILE[1][:-1]) == []
    assert names("tenant:7") == ["tenant:7"]
    assert http.get("clients", params={"search": "x" * 257}).status_code == 400


def test_of_many_clients_only_the_first_are_sent(listener, tmp_path, monkeypatch):
    monkeypatch.setattr(accounts_module, "MAX_ACCOUNTS", 2_000)
    guard = small_guard(limits=Limits(threshold=0.5))
    many = [Standing(f"client {i}", False, i, float(i % 977), coverage={i % 10: i / 1e5}) for i in range(3_000)]
    monkeypatch.setattr(guard.ledger, "each_standing", lambda: iter(many))
    with client_of(listener, AdminStub(guard, tmp_path)) as http:
        while (page := http.get("clients?limit=1000&sort=queries").json())["total"] is None:
            time.sleep(0.1)
        assert [line["queries"] for line in page["clients"]] == list(range(2_999, 1_999, -1))
        assert page["total"] == http.get("overview").json()["totals"]["clients"] == 3_000


def test_rankings_follow_a_change():
    accounts = Accounts.read([Standing("a", False, 1), Standing("b", False, 2, alarmed=True)], small_guard().bundle, 0)
    assert [a.standing.name for a in accounts.ranked("queries", "", 9)] == ["b", "a"]
    accounts.put(Standing("a", False, 3))
    assert [a.standing.name for a in accounts.ranked("queries", "", 9)] == ["a", "b"]
    accounts.put(Standing("c", True, 9))
    accounts.put(Standing("b", False, 2))
    assert accounts.totals == {"clients": 2, "groups": 1, "alarmed": 0, "spent": 0}
    accounts.put(Standing("c", True, 9, extra_answers=10**6))
    assert accounts.totals["spent"] == 1


@pytest.mark.parametrize(
    ("used", "covered", "expected"),
    [
        (0, 0.0, ()),
        (79, 0.39, ()),
        (80, 0.4, ("budget low", "class low")),
        (99, 0.5, ("budget low", "class low")),
        (100, 0.51, ("budget spent", "class spent")),
        (500, 0.0, ("budget spent",)),
    ],
)
def test_budgets_that_come_to_an_end_are_a_state(used, covered, expected):
    standing = Standing("a", False, 1000, extra_answers=used, coverage={3: covered} if covered else {})
    limits = Limits(threshold=0.5, extra_answers=100)
    for policy, words in (("sentinel", expected), ("strict", ())):  # under the paper's policies nothing is refused
        guard = small_guard(limits=limits, policy=policy)
        assert account_facts(standing, guard.bundle, 0, None, ())["budget_state"] == words
    assert (
        account_facts(replace(standing, allowed=True), small_guard(limits=limits).bundle, 0, None, ())["budget_state"]
        == ()
    )


def test_a_class_that_this_model_does_not_have_is_shown_by_its_number(stub, http, monkeypatch):
    ask(stub.guard, digits()[:3], "old")
    real = stub.guard.ledger.standing("old")
    monkeypatch.setattr(stub.guard.ledger, "standing", lambda name, group=False: replace(real, coverage={77: 0.01}))
    assert http.get("client?name=old").json()["coverage"][0]["name"] == "77"


def test_of_budgets_that_renew_it_is_said_what_counts_what_is_left_and_until_when():
    limits, noon = Limits(threshold="0.5/week", extra_answers="100/day"), MIDNIGHT + 43_200
    usage = {"extra_usage": Usage(100.0, noon), "class_usage": {2: Usage(0.25, noon)}}
    standing = Standing("a", False, 500, extra_answers=300, coverage={1: 0.75, 2: 1.0}, **usage)
    bundle = small_guard(limits=limits).bundle
    found = account_facts(standing, bundle, noon, None, ())
    assert (found["extra_used"], found["extra_left"], found["extra_limit"]) == (100, 0, 100)
    assert (found["extra_allowance"], found["class_allowance"]) == ("100/day", "0.5/week")
    assert (found["extra_renews"], found["classes_renew"]) == (MIDNIGHT + 86_400, MIDNIGHT + 5 * 86_400)
    assert found["classes_end"]
    assert not account_facts(standing, small_guard(limits=SENTINEL_LIMITS).bundle, noon, None, ())["classes_end"]
    assert found["budget_state"] == ("budget spent",)
    assert (found["most"]["label"], found["most"]["used"], found["most"]["cqs"]) == (2, 0.25, 1.0)
    assert [one["used"] for one in coverage_facts(standing, bundle, noon)] == [0.25, 0.0]
    tomorrow = account_facts(standing, bundle, MIDNIGHT + 86_400, None, ())
    assert (tomorrow["extra_used"], tomorrow["extra_left"], tomorrow["budget_state"]) == (0, 100, ())
    orjson.dumps(found)  # as it is sent
