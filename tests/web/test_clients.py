"""Who asks: keys and users become clients, and everything that is unclear becomes nobody."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from uuid import UUID

import pytest
from starlette.requests import HTTPConnection

from queen.web import Client, NoAnswerError, from_key, from_user
from queen.web.ask import Ask
from queen.web.clients import ClientHook, name_of_key
from tests.support.web_app import by_key


def connection(*headers: tuple[str, str], **state: object) -> HTTPConnection:
    encoded = [(name.lower().encode(), text.encode("latin-1")) for name, text in headers]
    return HTTPConnection({"type": "http", "headers": encoded, "state": state})


def client_of(hook: ClientHook, *headers: tuple[str, str], **state: object) -> Client:
    async def ask() -> Client:
        return await Ask(None, hook, connection(*headers, **state)).client()

    return asyncio.run(ask())


def is_nobody(hook: ClientHook, *headers: tuple[str, str], **state: object) -> bool:
    with pytest.raises(NoAnswerError) as caught:
        client_of(hook, *headers, **state)
    return caught.value.status == 401


def test_the_owner_of_a_key_asks():
    assert client_of(by_key, ("Authorization", "Bearer a")) == Client("alice")
    assert client_of(by_key, ("authorization", "bearer  m ")) == Client("mallory")


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Authorization", "")],
        [("Authorization", "Bearer")],
        [("Authorization", "Bearer ")],
        [("Authorization", "a")],
        [("Authorization", "Basic a")],
        [("Authorization", "Bearer nobody's")],
        [("Authorization", "Bearer a, b")],
        [("Authorization", "Bearer a"), ("Authorization", "Bearer b")],
        [("Authorization", "Bearer a"), ("Authorization", "Bearer a")],
        [("X-API-Key", "a")],
        [("X-User", "alice"), ("X-Client", "alice"), ("Cookie", "client=alice")],
    ],
)
def test_without_exactly_one_valid_key_nobody_asks(headers):
    assert is_nobody(by_key, *headers)


def test_a_key_may_come_in_another_header():
    hook = from_key({"a": "alice"}.get, header="X-API-Key")
    assert client_of(hook, ("x-api-key", "a")) == Client("alice")
    assert is_nobody(hook, ("Authorization", "Bearer a"))
    assert is_nobody(hook, ("x-api-key", "a"), ("X-Api-Key", "b"))


def test_a_valid_key_without_an_owner_is_called_after_its_digest():
    name = client_of(from_key("secret".__eq__), ("Authorization", "Bearer secret")).name
    assert name == name_of_key("secret")
    assert name == "key:2bb80d537b1da3e38bd30361aa855686"  # printf secret | sha256sum
    assert is_nobody(from_key("secret".__eq__), ("Authorization", "Bearer other"))


def test_hooks_may_wait():
    async def owner(key: str) -> str | None:
        await asyncio.sleep(0)
        return "alice" if key == "a" else None

    assert client_of(from_key(owner), ("Authorization", "Bearer a")) == Client("alice")
    assert is_nobody(from_key(owner), ("Authorization", "Bearer b"))


@pytest.mark.parametrize(
    ("attribute", "user", "name"),
    [
        (None, "alice", "alice"),
        (None, 7, "7"),
        ("id", SimpleNamespace(id=7), "7"),
        ("id", SimpleNamespace(id=UUID(int=7)), "00000000-0000-0000-0000-000000000007"),
        ("name", SimpleNamespace(name="alice"), "alice"),
    ],
)
def test_the_user_of_the_application_asks(attribute, user, name):
    assert client_of(from_user(attribute), user=user) == Client(name)


@pytest.mark.parametrize(
    ("attribute", "user"), [(None, None), (None, ""), (None, " \t"), ("id", SimpleNamespace(id=None))]
)
def test_a_user_without_a_name_is_nobody(attribute, user):
    assert is_nobody(from_user(attribute), user=user)
    assert is_nobody(from_user(attribute))


@pytest.mark.parametrize("user", [SimpleNamespace(id="alice"), True, 7.0, b"alice"])
def test_what_is_no_name_is_the_applications_mistake(user):
    """An object's own text holds its address, which would make every request another client."""
    with pytest.raises(TypeError, match=r"expected request\.state\.user to be text or a number"):
        client_of(from_user(), user=user)


@pytest.mark.parametrize("name", [None, "", " ", "x" * 257, "a\0b", Client(""), Client("\n")])
def test_names_that_the_ledger_would_not_take_are_nobody(name):
    assert is_nobody(lambda _: name)


@pytest.mark.parametrize("found", [7, b"alice", True, ("alice", ())])
def test_a_hook_must_return_a_client(found):
    with pytest.raises(TypeError, match="expected a client's name"):
        client_of(lambda _: found)


def test_a_hook_may_name_groups():
    assert client_of(lambda _: Client("alice", ("tenant:7",))).groups == ("tenant:7",)
