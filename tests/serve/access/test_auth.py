"""Only active keys open the door, quickly enough after they are made, never for long after they are revoked."""

from __future__ import annotations

import gc
import hashlib
import hmac
import logging
import threading
import time
import tracemalloc
from contextlib import suppress
from types import SimpleNamespace
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen.errors import LedgerError, OptionError, SecretError
from queen.serve.access import auth
from queen.serve.access.auth import Authenticator, UnknownKeyError
from queen.serve.access.key import new_key, parse
from queen.serve.access.key_store import FileKeys, RedisKeys
from queen.serve.types import Caller, ServeError
from tests.support.key_texts import IDS, SECRETS
from tests.support.redis_server import redis_server

LOCAL = "127.0.0.1"


@pytest.fixture
def store(tmp_path) -> FileKeys:
    return FileKeys(tmp_path)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The authenticator's clock, in our hands: by itself it only tells what comes before what."""
    now = SimpleNamespace(at=1000.0)

    def monotonic() -> float:
        now.at += 1e-9
        return now.at

    monkeypatch.setattr(auth, "time", SimpleNamespace(monotonic=monotonic))
    return now


def bearer(text: str) -> str:
    return f"Bearer {text}"


def refusal(door: Authenticator, *request: str | None) -> ServeError:
    with pytest.raises(ServeError) as caught:
        door.caller(*request)
    return caught.value


# Keys


def test_a_key_says_who_asks(store):
    text, key = store.add("alice", ["tenant:7"])
    root_text, root = store.add("root", admin=True)
    door = Authenticator(store)
    assert door.caller(bearer(text), LOCAL) == Caller("alice", ("tenant:7",), admin=False, key=key.id)
    assert door.caller(bearer(root_text)) == Caller("root", (), admin=True, key=root.id)
    assert door.keys == store.keys()


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER ", "bEaReR  "])
def test_the_scheme_is_read_in_any_case(store, scheme):
    text, _ = store.add("alice")
    assert Authenticator(store).caller(scheme + text + " ").client == "alice"


def test_two_keys_of_one_name_are_one_client(store):
    texts = [store.add("alice")[0] for _ in range(2)]
    door = Authenticator(store)
    assert [door.caller(bearer(text)).client for text in texts] == ["alice", "alice"]
    store.revoke(parse(texts[0])[0])
    door.refresh_once()
    assert refusal(door, bearer(texts[0])).status == 401
    assert door.caller(bearer(texts[1])).client == "alice"


def test_all_that_is_wrong_is_refused_with_the_same_words(store):
    text, key = store.add("alice")
    gone, _ = store.add("bob")
    store.revoke("bob")
    name, secret = parse(text)
    flipped = secret[:-1] + ("A" if secret[-1] != "A" else "B")
    other = new_key("alice", (), False, None)[0]
    door = Authenticator(store, anonymous=True)
    assert door.caller(bearer(text)).client == "alice"
    wrong = [
        bearer(other),
        bearer(f"qk_{name}_{flipped}"),
        bearer(f"qk_{name}_{parse(other)[1]}"),
        bearer(f"qk_{parse(other)[0]}_{secret}"),
        bearer(gone),
        bearer(text[:-1]),
        bearer(text + "A"),
        bearer(text.upper()),
        bearer(text + "\n"),
        bearer(f"{text}, {text}"),
        bearer(key.digest.hex()),
        bearer(""),
        "Bearer",
        "",
        text,
        f"Basic {text}",
        f"Bearer\t{text}",
        f"Bearer{text}",
    ]
    refusals = [refusal(door, header, LOCAL) for header in wrong]
    assert {(found.status, found.message) for found in refusals} == {(401, auth.BAD_KEY)}
    nothing = refusal(Authenticator(store), None, LOCAL)
    assert (nothing.status, nothing.message) == (401, auth.NO_KEY)


@given(st.text() | st.text().map(bearer) | st.builds("Bearer qk_{}_{}".format, IDS, SECRETS))
def test_no_other_header_opens_the_door(tmp_path_factory, header):
    door = Authenticator(FileKeys(tmp_path_factory.getbasetemp() / "property"))
    assert refusal(door, header).status == 401


def test_ids_that_exist_and_those_that_do_not_cost_the_same_work(store, monkeypatch):
    text, key = store.add("alice")
    store.add("revoked")
    store.revoke("revoked")
    door = Authenticator(store)
    work: list[str] = []
    sha256, compare_digest = hashlib.sha256, hmac.compare_digest

    def counted_sha256(data: bytes):
        work.append(f"sha256 of {len(data)}")
        return sha256(data)

    def counted_compare(one: bytes, other: bytes) -> bool:
        work.append(f"compare {len(one)} with {len(other)}")
        return compare_digest(one, other)

    monkeypatch.setattr(hashlib, "sha256", counted_sha256)
    monkeypatch.setattr(hmac, "compare_digest", counted_compare)

    def work_for(header: str) -> list[str]:
        work.clear()
        with suppress(ServeError):
            door.caller(header)
        return list(work)

    secret = "s" * 43
    revoked = next(name for name in door.keys if name != key.id)
    cases = [text, f"qk_{key.id}_{secret}", f"qk_{revoked}_{secret}", f"qk_{'0' * 16}_{secret}"]
    assert [work_for(bearer(case)) for case in cases] == [["sha256 of 43", "compare 32 with 32"]] * 4


def sizes(door: Authenticator) -> dict[str, int]:
    """How much every container inside holds."""
    found = {name: len(value) for name, value in vars(door).items() if hasattr(value, "__len__")}
    return found | {"keys": len(door.keys), "store": len(vars(door._store)), "attributes": len(vars(door))}


def attack(door: Authenticator, known: str, count: int, seed: int) -> int:
    """Send bogus keys, every third with an id that exists; how many were refused."""
    refused = 0
    for number in range(count):
        bogus = hashlib.sha256(f"{seed}-{number}".encode()).hexdigest()
        name = known if number % 3 == 0 else bogus[:16]
        try:
            door.caller(f"Bearer qk_{name}_{bogus[:43]}", f"203.0.{number % 256}.{number // 256 % 256}")
        except UnknownKeyError as error:
            refused += 1
            if error.retry:
                door.refresh_once()
    return refused


def growth(door: Authenticator, known: str, count: int) -> int:
    """Bytes of Python objects that stay behind after an attack: a count, the same on every machine."""
    attack(door, known, 200, 0)
    gc.collect()
    tracemalloc.start()
    try:
        attack(door, known, 200, 1)  # what the measuring itself keeps
        start = tracemalloc.get_traced_memory()[0]
        assert attack(door, known, count, 2) == count
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - start
    finally:
        tracemalloc.stop()


def test_bogus_keys_leave_nothing_behind(store):
    text, key = store.add("alice")
    door = Authenticator(store, net_groups=True, anonymous=True)
    before = sizes(door)
    assert growth(door, key.id, 2000) < 4096
    assert sizes(door) == before
    assert door.caller(bearer(text)).client == "alice"


class Remembers(Authenticator):
    """The control: keeps the ids that it has refused."""

    seen: ClassVar[set[str]] = set()

    def caller(self, authorization, peer=None, forwarded=None):
        self.seen.add(authorization[:23])
        return super().caller(authorization, peer, forwarded)


def test_the_growth_of_one_that_remembers_would_be_seen(store):
    _, key = store.add("alice")
    assert growth(Remembers(store), key.id, 500) > 4096


def test_no_key_in_any_log_or_repr_or_message(store, caplog):
    caplog.set_level(logging.NOTSET)
    text, key = store.add("alice")
    bogus = new_key("x", (), False, None)[0]
    door = Authenticator(store)
    seen = [door.caller(bearer(text)), door, store, door.keys, door._snapshot, key, vars(door)]
    for header in (bearer(bogus), f"Basic {bogus}", bearer(text + "x"), bearer(bogus + "\n")):
        error = refusal(door, header)
        seen += [error, error.args, vars(error), str(error)]
    assert caplog.records == []  # nothing is logged here at all
    for thing in seen:
        for secret in (parse(text)[1], parse(bogus)[1], key.digest.hex(), repr(key.digest)):
            assert secret not in repr(thing)


# Admins


def test_admin_keys_and_nothing_else_operate_the_server(store):
    text, _ = store.add("alice")
    root, key = store.add("root", admin=True)
    door = Authenticator(store, anonymous=True)
    assert door.admin(bearer(root), LOCAL) == Caller("root", (), admin=True, key=key.id)
    for header, status in ((None, 401), (bearer(text), 403), (bearer(root[:-1]), 401), (bearer("x"), 401)):
        with pytest.raises(ServeError) as caught:
            door.admin(header, LOCAL)
        assert caught.value.status == status
    store.revoke("root")
    door.refresh_once()
    with pytest.raises(ServeError) as caught:
        door.admin(bearer(root), LOCAL)
    assert caught.value.status == 401


# Changes


def test_a_key_made_a_moment_ago_works_when_asked_again(store):
    door = Authenticator(store)
    text, _ = store.add("alice")
    error = refusal(door, bearer(text))
    assert isinstance(error, UnknownKeyError)
    assert error.retry
    assert door.refresh_once()
    assert door.caller(bearer(text)).client == "alice"


def test_unknown_keys_ask_for_a_refresh_every_50_ms_at_most(store, clock):
    door = Authenticator(store)
    header = bearer(new_key("x", (), False, None)[0])
    asked = []
    for _ in range(990):
        asked.append(refusal(door, header).retry)
        clock.at += 0.001
    assert asked[0]
    assert sum(asked) == 20
    assert not isinstance(refusal(door, "Bearer nonsense"), UnknownKeyError)


def test_a_revocation_is_seen_by_another_authenticator_after_one_refresh(tmp_path):
    here, there = FileKeys(tmp_path), FileKeys(tmp_path)
    text, key = here.add("alice")
    doors = [Authenticator(here), Authenticator(there)]
    assert [door.caller(bearer(text)).key for door in doors] == [key.id] * 2
    here.revoke("alice")
    assert doors[1].caller(bearer(text)).key == key.id  # the control: not before it looks
    assert doors[1].refresh_once()
    assert refusal(doors[1], bearer(text)).status == 401


def test_keys_are_read_again_only_when_they_changed(store, monkeypatch):
    reads = []
    keys = FileKeys.keys
    monkeypatch.setattr(FileKeys, "keys", lambda self: reads.append(1) or keys(self))
    door = Authenticator(store)
    for _ in range(5):
        assert door.refresh_once()
    assert len(reads) == 1
    store.add("alice")
    reads.clear()
    for _ in range(5):
        assert door.refresh_once()
    assert len(reads) == 1


def test_a_change_between_the_version_and_the_keys_is_not_missed(store, monkeypatch):
    door = Authenticator(store)
    text, _ = store.add("alice")
    keys = FileKeys.keys

    def changed_meanwhile(self):
        found = keys(self)
        monkeypatch.setattr(FileKeys, "keys", keys)
        store.revoke("alice")
        return found

    monkeypatch.setattr(FileKeys, "keys", changed_meanwhile)
    door.refresh_once()
    assert door.caller(bearer(text)).client == "alice"
    door.refresh_once()
    assert refusal(door, bearer(text)).status == 401


def test_a_store_that_fails_is_trusted_for_a_second_and_then_nobody_is(tmp_path, store, clock):
    text, _ = store.add("alice")
    door = Authenticator(store, anonymous=True)
    (tmp_path / "keys.json").chmod(0o644)
    clock.at += 0.5
    assert not door.refresh_once()
    assert isinstance(door.failure, SecretError)
    assert door.caller(bearer(text)).client == "alice"
    bogus = refusal(door, bearer(new_key("x", (), False, None)[0]))
    assert (bogus.status, bogus.retry) == (401, False)
    clock.at += 0.51
    for header in (bearer(text), bearer(new_key("x", (), False, None)[0]), "nonsense"):
        error = refusal(door, header)
        assert (error.status, error.retry_after, error.retry) == (503, 1, False)
    with pytest.raises(ServeError) as caught:
        door.admin(bearer(text))
    assert caught.value.status == 503
    assert door.caller(None, LOCAL).client == "anonymous:127.0.0.0/24"  # has no key that could be revoked
    (tmp_path / "keys.json").chmod(0o600)
    assert door.refresh_once()
    assert door.failure is None
    assert door.caller(bearer(text)).client == "alice"


def test_a_refresh_that_is_merely_late_is_made_up_for(store, clock):
    """No revocation is missed, and no good key is turned away, when the thread that looks was held up."""
    text, _ = store.add("alice")
    gone, _ = store.add("bob")
    door = Authenticator(store)
    store.revoke("bob")
    clock.at += 3
    errors = [refusal(door, bearer(one)) for one in (text, text, gone)]
    assert [(error.status, error.retry) for error in errors] == [(503, True)] * 3
    door.refresh_once()
    assert door.caller(bearer(text)).client == "alice"
    assert refusal(door, bearer(gone)).status == 401


def test_an_unexpected_error_of_the_store_ends_in_503_too(store, clock, monkeypatch):
    text, _ = store.add("alice")
    door = Authenticator(store)

    def broken(self):
        raise ZeroDivisionError

    monkeypatch.setattr(FileKeys, "version", broken)
    clock.at += 1.5
    with pytest.raises(ZeroDivisionError):
        door.refresh_once()
    assert refusal(door, bearer(text)).status == 503


def test_a_store_that_fails_at_the_start_is_an_error_at_once(tmp_path, store):
    store.add("alice")
    (tmp_path / "keys.json").write_text("{")
    with pytest.raises(OptionError, match="damaged"):
        Authenticator(store)
    with pytest.raises(LedgerError):
        Authenticator(RedisKeys("redis://127.0.0.1:1"))


def test_threads_that_wait_for_a_refresh_share_it(store, monkeypatch):
    door = Authenticator(store)
    gate, entered, reads = threading.Event(), threading.Event(), []
    version = FileKeys.version

    def slow(self):
        reads.append(1)
        entered.set()
        gate.wait(60)
        return version(self)

    monkeypatch.setattr(FileKeys, "version", slow)
    results: list[bool] = []
    first = threading.Thread(target=lambda: results.append(door.refresh_once()))
    first.start()
    assert entered.wait(60)
    others = [threading.Thread(target=lambda: results.append(door.refresh_once())) for _ in range(20)]
    for thread in others:
        thread.start()
    time.sleep(0.2)
    gate.set()
    for thread in (first, *others):
        thread.join(60)
    assert results == [True] * 21
    assert 2 <= len(reads) < 6  # one for all who came while the first was under way, and perhaps for some who came late


@pytest.fixture
def own_redis(tmp_path):
    """A Redis that the test may kill."""
    server = redis_server(tmp_path / "redis")
    yield server
    server.kill()


@pytest.mark.real
def test_replicas_that_share_a_redis_see_new_and_revoked_keys_and_its_death(own_redis, clock):
    here, there = RedisKeys(own_redis.url), RedisKeys(own_redis.url)
    door = Authenticator(there)
    text, _ = here.add("alice", ["tenant:7"])
    assert refusal(door, bearer(text)).retry
    assert door.refresh_once()
    assert door.caller(bearer(text)).groups == ("tenant:7",)
    own_redis.kill()
    try:
        assert not door.refresh_once()
        assert isinstance(door.failure, LedgerError)
        clock.at += 1.1
        assert refusal(door, bearer(text)).status == 503
    finally:
        own_redis.start()
    assert door.refresh_once()
    assert door.caller(bearer(text)).client == "alice"
    here.revoke("alice")
    assert door.refresh_once()
    assert refusal(door, bearer(text)).status == 401


# Addresses


@pytest.mark.parametrize(
    ("peer", "prefix"),
    [
        ("203.0.113.7", "203.0.113.0/24"),
        ("203.0.113.255", "203.0.113.0/24"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:DB8:1:2::", "2001:db8:1:2::/64"),
        ("::ffff:203.0.113.7", "203.0.113.0/24"),
        ("::ffff:cb00:7107", "203.0.113.0/24"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        (None, "local"),
        ("", "local"),
        ("/run/queen.sock", "local"),
        ("testclient", "local"),
    ],
)
def test_without_a_key_the_client_is_the_network(store, peer, prefix):
    door = Authenticator(store, anonymous=True)
    assert door.caller(None, peer) == Caller(f"anonymous:{prefix}")
    pooled = Authenticator(store, anonymous=True, net_groups=True)
    assert pooled.caller(None, peer) == Caller(f"anonymous:{prefix}", (f"net:{prefix}",))
    text, key = store.add("alice", ["tenant:7"])
    pooled.refresh_once()
    assert pooled.caller(bearer(text), peer) == Caller("alice", ("tenant:7", f"net:{prefix}"), key=key.id)


PROXIES = ("10.0.0.0/8", "fd00::/8", "192.0.2.1")
FROM_PROXY = [
    ("198.51.100.9", "198.51.100.0/24"),
    ("  198.51.100.9  ", "198.51.100.0/24"),
    ("203.0.113.7, 198.51.100.9", "198.51.100.0/24"),  # the first is the caller's invention
    ("nonsense, 198.51.100.9", "198.51.100.0/24"),
    ("203.0.113.7,198.51.100.9,10.9.9.9", "198.51.100.0/24"),
    ("198.51.100.9, ::ffff:10.9.9.9, fd00::2, 192.0.2.1", "198.51.100.0/24"),
    ("2001:db8::5", "2001:db8::/64"),
    ("::ffff:198.51.100.9", "198.51.100.0/24"),
    ("10.1.1.1, 10.2.2.2", "10.0.0.0/24"),  # nobody but proxies: the socket's
    ("198.51.100.9, nonsense", "10.0.0.0/24"),
    ("198.51.100.9, nonsense, 10.2.2.2", "10.0.0.0/24"),
    ("198.51.100.9:1234", "198.51.100.0/24"),  # as some proxies write it
    ("[2001:db8::5]:1234", "2001:db8::/64"),
    ("[2001:db8::5]", "2001:db8::/64"),
    ("203.0.113.7, 2001:db8:1:2:3::9, fd00::2", "2001:db8:1:2::/64"),
    ("198.51.100.9:12:34", "10.0.0.0/24"),
    ("198.51.100.9,", "10.0.0.0/24"),
    ("198.51.100.999", "10.0.0.0/24"),
    ("unknown", "10.0.0.0/24"),
    ("", "10.0.0.0/24"),
    (None, "10.0.0.0/24"),
]


@pytest.mark.parametrize(("forwarded", "prefix"), FROM_PROXY)
def test_behind_a_trusted_proxy_the_last_other_address_counts(store, forwarded, prefix):
    door = Authenticator(store, anonymous=True, trusted_proxies=PROXIES)
    assert door.caller(None, "10.0.0.5", forwarded).client == f"anonymous:{prefix}"
    assert door.caller(None, "::ffff:10.0.0.5", forwarded).client == f"anonymous:{prefix}"


@pytest.mark.parametrize("cidr", ["2001:db8:ffff::/48", "2001:db8:ffff::1", "::ffff:10.0.0.0/104", "::ffff:10.0.0.5"])
def test_proxies_may_be_networks_of_ipv6_or_of_ipv4_written_so(store, cidr):
    door = Authenticator(store, anonymous=True, trusted_proxies=[cidr])
    peer = "2001:db8:ffff::1" if cidr.startswith("2001") else "10.0.0.5"
    for user, prefix in (("2001:db8:1:2::3", "2001:db8:1:2::/64"), ("2001:db8:1:3::3", "2001:db8:1:3::/64")):
        assert door.caller(None, peer, user).client == f"anonymous:{prefix}"
    assert door.caller(None, "2001:db8:eeee::1", "2001:db8:1:2::3").client == "anonymous:2001:db8:eeee::/64"


@pytest.mark.parametrize("forwarded", [forwarded for forwarded, _ in FROM_PROXY])
def test_from_anybody_else_the_header_means_nothing(store, forwarded):
    door = Authenticator(store, anonymous=True, trusted_proxies=PROXIES)
    assert door.caller(None, "203.0.113.7", forwarded).client == "anonymous:203.0.113.0/24"
    assert door.caller(None, None, forwarded).client == "anonymous:local"
    nobody = Authenticator(store, anonymous=True)
    assert nobody.caller(None, "10.0.0.5", forwarded).client == "anonymous:10.0.0.0/24"


@given(
    st.ip_addresses(), st.text(max_size=60) | st.lists(st.ip_addresses(v=4)).map(lambda all: ",".join(map(str, all)))
)
def test_what_callers_write_before_their_address_changes_nothing(tmp_path_factory, address, written):
    door = Authenticator(
        FileKeys(tmp_path_factory.getbasetemp() / "property"), anonymous=True, trusted_proxies=["127.0.0.1"]
    )
    alone = door.caller(None, "127.0.0.1", str(address)).client
    assert door.caller(None, "127.0.0.1", f"{written}, {address}").client == alone
    if str(address) != "127.0.0.1":
        assert door.caller(None, str(address)).client == alone


@pytest.mark.parametrize("cidr", ["10.0.0.0/33", "nonsense", "", "10.0.0.0-10.0.0.9"])
def test_a_proxy_that_is_no_network_is_an_error(store, cidr):
    with pytest.raises(OptionError, match="trusted proxy"):
        Authenticator(store, trusted_proxies=[cidr])
