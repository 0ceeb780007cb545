"""Reads and checks what operators send: a small JSON object, or parameters in the query string."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.requests import Request

from queen.ledger.rows import MAX_LABEL
from queen.serve.types import ServeError

MAX_BODY = 4096


async def read_body(
    request: Request, *, required: Mapping[str, Any], optional: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A small JSON object with these fields and no others."""
    raw = b""
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > MAX_BODY:
            raise ServeError(413, f"expected at most {MAX_BODY} bytes")
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ServeError(400, "expected a JSON object") from error
    known = {**required, **(optional or {})}
    if not isinstance(body, dict) or not required.keys() <= body.keys() <= known.keys():
        raise ServeError(400, f"expected a JSON object with the fields {', '.join(known)}")
    for name, kind in known.items():
        value = body.get(name)
        if name in body and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
            raise ServeError(400, f"{name} has the wrong type")
    return body


def read_text(request: Request, name: str) -> str:
    """A parameter that must be there."""
    value = request.query_params.get(name)
    if value is None:
        raise ServeError(400, f"expected ?{name}=")
    return value


def read_flag(request: Request, name: str) -> bool:
    """A parameter that is 0 or 1; 0 if it is missing."""
    value = request.query_params.get(name, "0")
    if value not in ("0", "1"):
        raise ServeError(400, f"expected {name}=0 or {name}=1")
    return value == "1"


def read_number(request: Request, name: str, default: int | None, *, most: int = MAX_LABEL) -> int:
    """A whole number from 0 to `most`; without a default it must be there."""
    text = request.query_params.get(name, None if default is None else str(default))
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 10 or int(text) > most:
        raise ServeError(400, f"expected {name}= a whole number from 0 to {most}")
    return int(text)
