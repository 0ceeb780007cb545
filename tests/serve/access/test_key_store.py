"""Keys are kept as digests, lost never, and revoked for good, in a file and in Redis alike."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from queen.errors import ClientError, KeyStoreError, LedgerError, LimitsError, OptionError, SecretError
from queen.ledger import Budget
from queen.ledger.redis.ledger import RedisLedger
from queen.serve.access.key import Key, budgets, from_plain, new_key, parse, to_plain
from queen.serve.access.key_store import FileKeys, KeyStore, RedisKeys, open_keys
from tests.support.key_texts import IDS, SECRETS, URL_SAFE
from tests.support.redis_server import redis_server as start_redis
from tests.support.redis_server import shared_server
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory):
    """A Redis that tests may kill."""
    server = start_redis(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture(params=["file", "redis", "cluster"])
def url(request, tmp_path) -> str:
    """The ledger's URL: the keys of the first kind are in the folder."""
    if request.param == "file":
        return f"sqlite:///{tmp_path}/ledger.sqlite"
    server = shared_server(cluster=request.param == "cluster")
    server.client().flushall()
    return server.url


@pytest.fixture
def home(tmp_path) -> Path:
    return tmp_path / "deep" / "home"


@pytest.fixture
def store(home, url):
    store = open_keys(home, url)
    yield store
    store.close()


def everything_stored(home: Path, url: str) -> bytes:
    """All that is kept of the keys, as bytes."""
    if url.startswith("sqlite"):
        return b"".join(path.read_bytes() for path in home.iterdir())
    client = redis.Redis.from_url(url)
    kinds = {b"hash": client.hgetall, b"string": client.get}
    return repr([(name, kinds[client.type(name)](name)) for name in client.scan_iter()]).encode()


# The text of a key


def test_the_text_of_a_new_key_has_64_bits_of_id_and_256_of_secret():
    texts = {new_key("a", (), False, None)[0] for _ in range(200)}
    assert len(texts) == 200
    assert all(re.fullmatch(r"qk_[0-9a-f]{16}_[A-Za-z0-9_-]{43}", text) for text in texts)
    assert set("".join(text.split("_", 2)[2] for text in texts)) == set(URL_SAFE)


@given(IDS, SECRETS)
def test_every_text_of_the_right_form_is_parsed_into_its_parts(name, secret):
    assert parse(f"qk_{name}_{secret}") == (name, secret)


@given(IDS, SECRETS, st.integers(0, 62), st.characters(exclude_characters=URL_SAFE))
def test_one_wrong_character_anywhere_makes_it_no_key(name, secret, at, wrong):
    text = f"qk_{name}_{secret}"
    assert parse(text[:at] + wrong + text[at + 1 :]) is None
    assert parse(text[:at] + text[at + 1 :]) is None
    assert parse(text + wrong) is None
    assert parse(wrong + text) is None


@given(st.text() | st.text(URL_SAFE))
def test_other_texts_are_no_keys(text):
    assert parse(text) is None
    assert parse("qk_" + text) is None


# Every store


def test_what_is_added_is_found_again_by_another_and_only_the_digest_is_kept(home, url, store):
    text, key = store.add("alice", ["tenant:7", "region:eu"], True, Budget(extra_answers=9, threshold=0.5))
    plain_text, plain = store.add("Bob Ωmega <b>")
    other = open_keys(home, url)
    assert other.keys() == store.keys() == {key.id: key, plain.id: plain}
    other.close()
    assert (key.name, key.groups, key.admin, key.active) == ("alice", ("tenant:7", "region:eu"), True, True)
    assert key.budget == Budget(extra_answers=9, threshold=0.5)
    assert (plain.groups, plain.admin, plain.revoked, plain.budget) == ((), False, None, None)
    kept = everything_stored(home, url)
    for shown, one in ((text, key), (plain_text, plain)):
        name, secret = parse(shown)
        assert name == one.id
        assert hashlib.sha256(secret.encode()).digest() == one.digest
        assert one.digest.hex().encode() in kept  # so this really is where keys are kept
        assert secret.encode() not in kept
        assert secret not in repr(one)
        assert one.digest.hex() not in repr(one)
        assert secret not in repr(store)


def test_the_version_changes_with_every_change_and_never_else(store):
    versions = [store.version()]
    for change in (
        lambda: store.add("alice"),
        lambda: store.add("alice"),
        lambda: store.add("bob"),
        lambda: store.revoke("alice"),
        lambda: store.revoke("bob"),
    ):
        change()
        versions.append(store.version())
        store.keys()
        assert store.version() == versions[-1]
    assert len(set(versions)) == len(versions)


def test_keys_are_revoked_by_id_name_or_text_and_stay_so(store):
    (text, first), (_, second), (_, third), (_, other) = (store.add(name) for name in ("a", "a", "a", "b"))
    assert [key.id for key in store.revoke(first.id)] == [first.id]
    when = store.keys()[first.id].revoked
    assert when >= first.created
    assert {key.id for key in store.revoke("a")} == {second.id, third.id}
    assert store.revoke("a") == store.revoke(text) == []
    assert store.keys()[first.id].revoked == when
    assert [key.id for key in store.keys().values() if key.active] == [other.id]


@pytest.mark.parametrize("text", ["nobody", "", "0" * 16, "qk_" + "0" * 16 + "_" + "s" * 43])
def test_what_does_not_exist_cannot_be_revoked_and_no_secret_is_repeated(store, home, text):
    with pytest.raises(OptionError, match="queen keys list") as caught:
        store.revoke(text)
    assert "sss" not in str(caught.value)
    assert not home.exists()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"name": ""}, ClientError),
        ({"name": "x" * 257}, ClientError),
        ({"name": "a\0b"}, ClientError),
        ({"name": "\ud800"}, ClientError),
        ({"name": 7}, ClientError),
        ({"name": "net:10.0.0.0/8"}, OptionError),
        ({"name": "anonymous"}, OptionError),
        ({"name": "anonymous:10.0.0.0/8"}, OptionError),
        ({"name": "0123456789abcdef"}, OptionError),
        ({"name": new_key("a", (), False, None)[0]}, OptionError),
        ({"groups": ["tenant"]}, OptionError),
        ({"groups": ["tenant:"]}, OptionError),
        ({"groups": [":7"]}, OptionError),
        ({"groups": [""]}, ClientError),
        ({"groups": ["tenant:" + "x" * 256]}, ClientError),
        ({"groups": ["net:10.0.0.0/8"]}, OptionError),
        ({"groups": ["tenant:7", "tenant:8"]}, OptionError),
        ({"groups": "tenant:7"}, OptionError),
        ({"admin": "yes"}, OptionError),
        ({"budget": 7}, LimitsError),
    ],
)
def test_wrong_names_groups_and_budgets_make_no_key(store, options, error):
    with pytest.raises(error):
        store.add(**{"name": "alice", **options})
    assert store.keys() == {}


def test_an_error_about_a_name_does_not_repeat_a_key(store):
    text, _ = store.add("alice")
    with pytest.raises(OptionError) as caught:
        store.add(text)
    assert parse(text)[1] not in str(caught.value)


def add_50(home: Path, url: str, who: str, together, found) -> None:
    store = open_keys(home, url)
    together.wait(60)
    found.put([store.add(f"{who}-{number}")[1].id for number in range(50)])


def test_two_processes_that_add_50_keys_each_lose_none(home, url, store):
    fork = multiprocessing.get_context("fork")  # a new interpreter would take longer than the test
    together, found = fork.Barrier(2), fork.Queue()
    both = [fork.Process(target=add_50, args=(home, url, who, together, found)) for who in "ab"]
    for process in both:
        process.start()
    added = [name for _ in both for name in found.get(timeout=60)]
    for process in both:
        process.join(60)
    assert len(set(added)) == 100
    assert set(store.keys()) == set(added)
    assert {key.name for key in store.keys().values()} == {f"{who}-{number}" for who in "ab" for number in range(50)}


@given(
    st.builds(
        Key,
        id=IDS,
        name=st.text("aé漢:<'\n", min_size=1, max_size=20),
        digest=st.binary(min_size=32, max_size=32),
        groups=st.lists(st.sampled_from("abc"), unique=True).map(lambda kinds: tuple(f"{k}:{k}:1" for k in kinds)),
        admin=st.booleans(),
        created=st.floats(0, 1e12),
        revoked=st.none() | st.floats(0, 1e12),
        budget=st.none()
        | st.builds(
            Budget,
            threshold=st.none() | st.floats(0, 9),
            extra_answers=st.none() | st.integers(min_value=0, max_value=99),
        ),
    )
)
def test_every_key_survives_json(key):
    assert from_plain(key.id, json.loads(json.dumps(to_plain(key)))) == key


def test_the_budget_of_a_client_is_that_of_its_newest_active_key_with_one(store):
    store.add("alice", budget=Budget(extra_answers=1))
    newest = store.add("alice", budget=Budget(extra_answers=2))[1]
    store.add("alice")
    store.add("bob")
    assert budgets(store.keys()) == {"alice": Budget(extra_answers=2)}
    store.revoke(newest.id)
    assert budgets(store.keys()) == {"alice": Budget(extra_answers=1)}


# The file


@pytest.fixture
def files(home) -> FileKeys:
    return FileKeys(home)


def test_file_and_folder_are_for_the_owner_alone_whatever_the_umask(home, files):
    before = os.umask(0)
    try:
        files.add("alice")
        files.add("bob")
    finally:
        os.umask(before)
    assert home.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in home.iterdir()} == {
        "keys.json": 0o600,
        ".keys.lock": 0o600,
    }


def test_the_file_is_private_before_it_has_content(home, files, monkeypatch):
    modes = []
    real = os.fdopen

    def spy(handle, *args):
        modes.append((os.fstat(handle).st_mode & 0o777, os.fstat(handle).st_size))
        return real(handle, *args)

    before = os.umask(0)
    monkeypatch.setattr(os, "fdopen", spy)
    try:
        files.add("alice")
    finally:
        os.umask(before)
    assert modes == [(0o600, 0)]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_file_that_others_can_read_is_refused(home, files, mode):
    files.add("alice")
    seen = files.version()
    (home / "keys.json").chmod(mode)
    assert files.version() != seen
    for call in (files.keys, lambda: files.add("bob"), lambda: files.revoke("alice")):
        with pytest.raises(SecretError, match="chmod 600"):
            call()
    (home / "keys.json").chmod(0o600)
    assert [key.name for key in files.keys().values()] == ["alice"]


GOOD = {"name": "a", "digest": "00" * 32, "groups": [], "admin": False, "created": 1.0, "revoked": None, "budget": None}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"format": 1}',
        b'{"format": 2, "keys": {}}',
        b'{"format": 1, "keys": []}',
        b'{"format": 1, "keys": {"0123456789abcdef": null}}',
        *(
            json.dumps({"format": 1, "keys": {name: {**GOOD, **change}}}).encode()
            for name, change in [
                ("0", {}),
                ("0123456789abcdef", {"digest": "00"}),
                ("0123456789abcdef", {"digest": "zz" * 32}),
                ("0123456789abcdef", {"digest": None}),
                ("0123456789abcdef", {"name": ""}),
                ("0123456789abcdef", {"groups": ["tenant"]}),
                ("0123456789abcdef", {"groups": 7}),
                ("0123456789abcdef", {"admin": 1}),
                ("0123456789abcdef", {"created": "now"}),
                ("0123456789abcdef", {"revoked": True}),
                ("0123456789abcdef", {"budget": {"extra_answers": -1}}),
                ("0123456789abcdef", {"budget": {"other": 1}}),
                ("0123456789abcdef", {"other": 1}),
            ]
        ),
    ],
)
def test_a_damaged_file_is_said_to_be_so_and_left_alone(home, files, content):
    home.mkdir(parents=True)
    (home / "keys.json").write_bytes(content)
    (home / "keys.json").chmod(0o600)
    for call in (files.keys, lambda: files.add("bob"), lambda: files.revoke("alice")):
        with pytest.raises(OptionError, match="damaged"):
            call()
    assert (home / "keys.json").read_bytes() == content


def test_the_undamaged_form_of_those_is_read(home, files):
    home.mkdir(parents=True)
    (home / "keys.json").touch(0o600)
    (home / "keys.json").write_text(json.dumps({"format": 1, "keys": {"0123456789abcdef": GOOD}}))
    assert files.keys() == {"0123456789abcdef": Key("0123456789abcdef", "a", bytes(32), created=1.0)}


def test_without_a_file_there_are_no_keys_and_reading_makes_nothing(home, files):
    assert files.keys() == {}
    assert files.version() is None
    assert not home.exists()


def test_a_file_in_the_place_of_the_folder_is_one_clear_error(home, files):
    home.parent.mkdir()
    home.write_text("")
    for call in (files.keys, files.version, lambda: files.add("alice")):
        with pytest.raises((OptionError, KeyStoreError), match="cannot"):
            call()


def test_a_write_that_fails_changes_nothing_and_leaves_nothing_behind(home, files, monkeypatch):
    files.add("alice")
    before = {path.name: path.read_bytes() for path in home.iterdir()}

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(KeyStoreError, match="No space left"):
        files.add("bob")
    assert {path.name: path.read_bytes() for path in home.iterdir()} == before


def test_without_the_lock_keys_would_be_lost(home, files, monkeypatch):
    """The control of the test with two processes: reading together, then writing one after the other, loses one."""
    import queen.serve.access.key_store as module

    monkeypatch.setattr(module.fcntl, "flock", lambda *args: nullcontext())
    together = threading.Barrier(2)
    read = FileKeys.keys

    def keys(self):
        found = read(self)
        together.wait(60)
        return found

    monkeypatch.setattr(FileKeys, "keys", keys)
    threads = [threading.Thread(target=files.add, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    monkeypatch.undo()
    assert len(files.keys()) == 1


# Redis


def test_which_store_belongs_to_which_ledger(home, redis_server):
    for url in ("", "memory://", "sqlite:///x", "sqlite:///redis://x"):
        assert isinstance(open_keys(home, url), FileKeys)
    for url in (redis_server.url, redis_server.url.replace("redis:", "valkey:")):
        store: KeyStore = open_keys(home, url)
        assert isinstance(store, RedisKeys)
        assert isinstance(store.keys(), dict)
        store.close()
    with pytest.raises(LedgerError):  # no TLS there
        open_keys(home, redis_server.url.replace("redis:", "rediss:"))
    assert not home.exists()


def test_both_redis_keys_lie_in_one_slot_of_a_cluster_and_prefixes_do_not_meet(redis_server):
    from redis.crc import key_slot

    redis_server.client().flushall()
    mine, other = RedisKeys(redis_server.url), RedisKeys(redis_server.url, prefix="other")
    mine.add("alice")
    assert other.keys() == {}
    assert other.version() is None
    names = redis_server.client().keys()
    assert len(names) == 2
    assert len({key_slot(name) for name in names}) == 1
    assert key_slot(b"queen:keys") != key_slot(b"queen:keys:version")  # the control


@pytest.mark.parametrize("url", ["redis", "cluster"], indirect=True)
def test_the_ledger_in_the_same_redis_does_not_take_keys_for_clients(url):
    RedisKeys(url).add("alice")
    ledger = RedisLedger(url)
    assert list(ledger.clients()) == ledger.standings() == ledger.events() == []
    ledger.set_budget("alice", Budget(extra_answers=1), "me")
    assert list(ledger.clients()) == ["alice"]
    assert len(RedisKeys(url).keys()) == 1
    ledger.close()


@pytest.mark.real
def test_keys_that_move_to_another_server_of_the_cluster_are_found_after_one_error(tmp_path):
    from redis.crc import key_slot

    first, second = (start_redis(tmp_path / name, cluster_enabled="yes") for name in ("first", "second"))
    try:
        here, there = first.client(), second.client()
        here.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        here.execute_command("CLUSTER", "MEET", "127.0.0.1", second.port)
        for one in (here, there):
            wait_for(lambda one=one: one.cluster("INFO")["cluster_state"] == "ok")
            wait_for(lambda one=one: one.cluster("INFO")["cluster_known_nodes"] == "2")
        store = RedisKeys(first.url)
        assert store.version() is None
        for one in (there, here):
            one.execute_command(
                "CLUSTER", "SETSLOT", key_slot(b"{queen:keys}"), "NODE", there.execute_command("CLUSTER", "MYID")
            )
        with pytest.raises(LedgerError):
            store.version()
        wait_for(lambda: len(here.cluster("SLOTS")) > 1)
        _, key = store.add("alice")
        assert store.keys() == {key.id: key}
        assert there.exists("{queen:keys}")
        store.close()
    finally:
        first.kill()
        second.kill()


def test_a_redis_that_is_gone_is_a_ledger_error_without_the_password(redis_server):
    store = RedisKeys(redis_server.url.replace("//", "//default:hunter2@"))
    redis_server.kill()
    try:
        for call in (store.keys, store.version, lambda: store.add("alice"), lambda: store.revoke("alice")):
            with pytest.raises(LedgerError, match=str(redis_server.port)) as caught:
                call()
            assert "hunter2" not in str(caught.value)
        store.close()  # with nothing open is no error
    finally:
        redis_server.start()
    assert "hunter2" not in repr(store)


def test_a_store_outlives_a_restart_of_redis(redis_server):
    redis_server.client().flushall()
    store = RedisKeys(redis_server.url)
    _, key = store.add("alice")
    redis_server.kill()
    with pytest.raises(LedgerError):
        store.version()
    redis_server.start()
    assert store.keys() == {key.id: key}
    redis_server.kill()
    redis_server.start()
    assert store.keys() == {key.id: key}  # a connection that died unnoticed costs no error


def test_damage_in_redis_and_a_wrong_url_are_clear_errors(redis_server):
    redis_server.client().flushall()
    store = RedisKeys(redis_server.url)
    store.add("alice")
    client = redis_server.client()
    client.hset("{queen:keys}", "0123456789abcdef", "{")
    with pytest.raises(OptionError, match="damaged"):
        store.keys()
    client.set("{queen:keys}", "no hash")
    with pytest.raises(LedgerError, match="WRONGTYPE"):
        store.keys()
    with pytest.raises(OptionError, match="redis://HOST"):
        RedisKeys("redis://host:port/0")


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(OptionError, match=re.escape("queen-guard[redis]")):
        RedisKeys("redis://localhost")
