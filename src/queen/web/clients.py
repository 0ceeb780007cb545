"""Who asks: functions that turn a request into a client of the guard, or into nobody, who gets no answer.

A client has one budget and one record, so its name must be one that the caller cannot choose: the owner of a key that
was checked, or a user who has signed in. Whoever can make up names has as many budgets as names.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from starlette.requests import HTTPConnection

from queen.errors import ClientError
from queen.ledger.rows import check_client
from queen.secret import digest_of
from queen.web.errors import NO_CLIENT, NoAnswerError

KEY_DIGITS = 32  # of a key's digest in the client's name: 128 bits

Value = TypeVar("Value")


@dataclass(frozen=True)
class Client:
    """Whom the guard answers: the name that the ledger knows, and groups such as "tenant:7"."""

    name: str
    groups: tuple[str, ...] = ()


ClientHook = Callable[[HTTPConnection], Client | str | Awaitable[Client | str | None] | None]
"""A function from a request (or websocket) to its client, or the name of one, or None; `async` or not."""


def from_key(owner: Callable[[str], str | bool | None], *, header: str = "Authorization") -> ClientHook:
    """The owner of the API key in a header; of Authorization, what follows "Bearer".

    `owner` says whose a key is: a name (several keys of one name are one client), True for a valid key without a name,
    and None or False for any other; it may be `async`. A key without a name is called after its SHA-256 digest, as
    `name_of_key` says, so that keys themselves are stored nowhere.
    """

    async def find(connection: HTTPConnection) -> str | None:
        key = _key_in(connection, header)
        if key is None:
            return None
        name = await _result(owner(key))
        return name_of_key(key) if name is True else name or None

    return find


def name_of_key(key: str) -> str:
    """The client's name of a key that has no owner's: "key:" and the beginning of its SHA-256 digest."""
    return f"key:{digest_of(key).hex()[:KEY_DIGITS]}"


def from_user(attribute: str | None = None) -> ClientHook:
    """The user that a middleware or dependency of the application has put into `request.state.user`, or nobody.

    `attribute` is where such a user has its name or number, for example "id"; without it the user is that itself.
    """

    def find(connection: HTTPConnection) -> str | None:
        user = getattr(connection.state, "user", None)
        if user is None:
            return None
        name = user if attribute is None else getattr(user, attribute)
        if name is None or isinstance(name, str):
            return name
        if isinstance(name, bool) or not isinstance(name, int | UUID):
            what = "request.state.user" if attribute is None else f"request.state.user.{attribute}"
            raise TypeError(f"expected {what} to be text or a number, got {type(name).__name__}: from_user('id')")
        return str(name)

    return find


def check_found(found: object) -> Client:
    """The client that a hook has found; `NoAnswerError` 401 where that is nobody."""
    if found is None or isinstance(found, str):
        found = Client(found or "")
    if not isinstance(found, Client):
        raise TypeError(f"expected a client's name, queen.web.Client or None from the hook, got {type(found).__name__}")
    try:
        if found.name == "" or found.name.isspace():
            raise NoAnswerError(401, NO_CLIENT)
        check_client(found.name)
    except ClientError as error:
        raise NoAnswerError(401, f"{NO_CLIENT} ({error})") from error
    return found


def _key_in(connection: HTTPConnection, header: str) -> str | None:
    """The key in a header; None without one, and with several, of which a proxy may have checked another one."""
    values = connection.headers.getlist(header)
    if len(values) != 1:
        return None
    key = values[0].strip()
    if header.lower() == "authorization":
        scheme, _, key = key.partition(" ")
        if scheme.lower() != "bearer":
            return None
    return key.strip() or None


async def _result(value: Value | Awaitable[Value]) -> Value:
    """What a function returned, or what the coroutine that it returned does."""
    return await value if inspect.isawaitable(value) else value
