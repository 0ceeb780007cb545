"""What the headers of a request say: each thing once, from whom it comes, and for whom it was forwarded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from queen.serve.types import ServeError

HEADER_LENGTH = b"inference-header-content-length"
ONCE = (b"authorization", HEADER_LENGTH, b"content-encoding", b"content-length")  # headers that decide something
PROXY_HEADERS = frozenset((b"x-forwarded-for", b"forwarded", b"via"))


def read_headers(scope: Mapping[str, Any]) -> dict[bytes, bytes]:
    """A request's headers by name; `ServeError` 400 where one that decides something comes twice.

    One part of a server, or a proxy before it, takes the first of two keys, another one the last.
    """
    headers = dict[bytes, bytes](scope["headers"])
    if len(headers) < len(scope["headers"]):
        names = [name for name, _ in scope["headers"]]
        for name in ONCE:
            if names.count(name) > 1:
                raise ServeError(400, f"expected one header '{name.decode()}', got {names.count(name)}")
    return headers


def addresses(scope: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The peer address of an ASGI request, and whom it was forwarded for, as `forwarded_for` reads the headers."""
    return (scope["client"][0] if scope["client"] else None), forwarded_for(scope["headers"])


def forwarded_for(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """All X-Forwarded-For in order, joined by commas; "" if only other headers speak of a proxy, else None."""
    forwarding = [(name, value) for name, value in headers if name in PROXY_HEADERS]
    if not forwarding:
        return None
    return ", ".join(value.decode("latin-1") for name, value in forwarding if name == b"x-forwarded-for")
