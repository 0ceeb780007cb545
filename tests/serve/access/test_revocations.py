"""A key that is revoked is dead at once, also where that cannot be stored, and stays dead once it can."""

from __future__ import annotations

import errno
import json
import urllib.error
import urllib.request

import pytest

from queen.errors import KeyStoreError, LedgerError, OptionError
from queen.serve.access import key_store
from queen.serve.access.auth import Authenticator
from queen.serve.access.key_store import FileKeys
from queen.serve.access.revocations import KeysWithRevocations
from queen.serve.types import ServeError
from tests.support.server import served_in_thread
from tests.support.serving import digits
from tests.support.waiting import PATIENCE, wait_for


@pytest.fixture
def full_disk(monkeypatch):
    """Call it, and no key file can be written; call what it returns, and it can."""
    write = key_store.write_atomically

    def fill():
        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(key_store, "write_atomically", refuse)
        return lambda: monkeypatch.setattr(key_store, "write_atomically", write)

    return fill


def test_a_full_disk_is_no_mistake_of_the_operator_and_says_that_nothing_is_revoked(tmp_path, full_disk):
    store = FileKeys(tmp_path)
    _, key = store.add("alice")
    full_disk()
    with pytest.raises(KeyStoreError, match=r"No space left on device.*NOTHING IS REVOKED.*--server"):
        store.revoke("alice")
    with pytest.raises(KeyStoreError, match="No space left"):
        store.add("bob")
    assert store.keys() == {key.id: key}


def test_the_key_is_dead_in_this_process_and_everywhere_once_there_is_room(tmp_path, full_disk):
    store = FileKeys(tmp_path)
    keys = KeysWithRevocations(store)
    auth = Authenticator(keys, grace=60.0)
    text, key = store.add("alice")
    other, _ = store.add("bob")
    assert auth.refresh_once()
    assert auth.caller(f"Bearer {text}").client == "alice"
    make_room = full_disk()
    for _ in range(2):  # who asks again is told again
        with pytest.raises(ServeError, match=r"in this server at once, but NOT STORED .*No space left") as error:
            keys.revoke("alice")
        assert (error.value.status, error.value.retry_after) == (503, 1)
    assert auth.refresh_once()
    with pytest.raises(ServeError) as error:
        auth.caller(f"Bearer {text}")
    assert error.value.status == 401
    assert auth.caller(f"Bearer {other}").client == "bob"
    assert store.keys()[key.id].active
    make_room()
    assert auth.refresh_once()
    assert not store.keys()[key.id].active
    assert keys.pending == {}
    assert not Authenticator(FileKeys(tmp_path)).keys[key.id].active
    assert auth.refresh_once()
    with pytest.raises(ServeError):
        auth.caller(f"Bearer {text}")
    assert keys.revoke("alice") == []


def test_who_does_not_exist_is_still_a_mistake(tmp_path, full_disk):
    keys = KeysWithRevocations(FileKeys(tmp_path))
    keys.add("alice")
    full_disk()
    keys.keys()
    with pytest.raises(OptionError, match="no key with the id or name 'nobody'"):
        keys.revoke("nobody")
    assert keys.pending == {}
    keys.close()


def test_a_redis_that_is_gone_is_the_same(tmp_path):
    class Gone(FileKeys):
        def revoke(self, id_or_name):
            raise LedgerError("Redis is gone")

    keys = KeysWithRevocations(Gone(tmp_path))
    _, key = keys.add("alice")
    keys.keys()
    with pytest.raises(ServeError, match=r"NOT STORED .Redis is gone"):
        keys.revoke(key.id)
    assert not keys.keys()[key.id].active
    assert list(keys.pending) == [key.id]


def test_through_the_server_it_is_503_and_the_key_opens_nothing_any_more(tmp_path, full_disk):
    with served_in_thread(tmp_path) as server:
        assert server.infer(digits()[:1])[0] == 200
        make_room = full_disk()
        body = json.dumps({"name": "alice"}).encode()
        asked = urllib.request.Request(f"{server.url}/admin/revoke", body, server.admin_bearer)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked, timeout=PATIENCE)
        assert (refused.value.code, refused.value.headers["Retry-After"]) == (503, "1")
        assert "NOT STORED" in json.load(refused.value)["error"]
        wait_for(lambda: server.infer(digits()[:1])[0] == 401)
        make_room()
        wait_for(lambda: all(not key.active for key in FileKeys(tmp_path).keys().values() if key.name == "alice"))
        with urllib.request.urlopen(asked, timeout=PATIENCE) as reply:
            assert json.load(reply) == {"revoked": []}
