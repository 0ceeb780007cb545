"""Log lines on standard error: one JSON object per line (or plain text), and never a key in it."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from json import JSONEncoder
from math import isfinite
from typing import Any

from queen.errors import OptionError

LEVELS = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error")}
LOGGER = logging.getLogger("queen.serve")
RESERVED = ("time", "level", "event")
MAX_TEXT = 2000  # characters of one field: a client may have chosen them
MAX_DEPTH = 4
HIDDEN = "[hidden]"
NOISE = (  # how messages begin with which uvicorn and gRPC report garbage, and clients that went away
    "Invalid HTTP request received.",
    "Invalid encoding on ",
    "Unexpected [UnicodeDecodeError]",
    "Failed sending error status from server",
)

SECRET_NAMES = re.compile(r"authorization|cookie|password|passwd|secret|token|api_?key", re.IGNORECASE)
SECRET_TEXTS = re.compile(
    r"(?P<scheme>\b(?:bearer|basic)\s+)\S+"  # what an Authorization header says
    r"|(?P<url>://)[^/@\s]+(?=@)"  # redis://user:password@host
    r"|(?P<id>qk_[0-9a-f]{16}_)[\w-]+",  # a key, whose first part is public
    re.IGNORECASE,
)

_encode = JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode


def setup(level: str = "info", json: bool = True) -> None:
    """Send the server's lines from this level on, and warnings of all other libraries, to standard error."""
    if level not in LEVELS:
        raise OptionError(f"no log level '{level}'; known: {', '.join(LEVELS)}")
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, Handler)]:
        root.removeHandler(old)
    root.addHandler(Handler(json))
    LOGGER.setLevel(LEVELS[level])


def log(event: str, *, level: str = "info", **fields: object) -> None:
    """Write one line: what happened, and facts about it. Secrets among them are hidden, long texts cut."""
    number = LEVELS[level]
    if LOGGER.isEnabledFor(number):
        LOGGER.log(number, event, extra={"fields": fields}, exc_info=number >= logging.ERROR and _is_handling_error())


def access(*, id: str, protocol: str, status: int, rows: int, seconds: float, key: str) -> None:
    """Write one line about a request: never inputs, answers or verdicts; `key` is the public part of the key."""
    log("request", id=id, protocol=protocol, status=status, rows=rows, ms=round(1e3 * seconds, 3), key_id=key)


class Handler(logging.StreamHandler[Any]):
    """The one handler of the server, so that a second `setup` replaces the first."""

    def __init__(self, json: bool) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(Formatter(json))
        self.addFilter(_is_not_noise)


def _is_not_noise(record: logging.LogRecord) -> bool:
    """Whether to write this record: not if anybody can cause it without a key, and so fill the disk."""
    return record.name == LOGGER.name or not record.getMessage().startswith(NOISE)


class Formatter(logging.Formatter):
    """A log record as one line of printable ASCII, so that no text in it can start a new line or move the cursor."""

    def __init__(self, json: bool = True) -> None:
        super().__init__()
        self._json = json

    def format(self, record: logging.LogRecord) -> str:
        """The line, without a newline at its end."""
        line: dict[str, object] = {
            "time": _rfc3339(record.created),
            "level": record.levelname.lower(),
            "event": sanitize(record.getMessage()),
        }
        if record.name != LOGGER.name:
            line["logger"] = sanitize(record.name)
        fields = getattr(record, "fields", None)
        for name, value in fields.items() if isinstance(fields, Mapping) else ():
            line[f"{name}_" if name in RESERVED else name] = HIDDEN if _is_secret(name, value) else sanitize(value)
        if record.exc_info and record.exc_info[0] is not None:
            line["traceback"] = hide_secrets(self.formatException(record.exc_info))[-4 * MAX_TEXT :]
        return _ascii(_encode(line)) if self._json else _as_text(line)


def sanitize(value: object, depth: int = 0) -> object:
    """The value as JSON can hold it, with secrets hidden and long texts cut."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, Mapping | list | tuple | set | frozenset) and depth == MAX_DEPTH:
        return "..."
    if isinstance(value, Mapping):
        return {
            hide_secrets(str(k)): HIDDEN if _is_secret(str(k), v) else sanitize(v, depth + 1) for k, v in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [sanitize(item, depth + 1) for item in value]
    text = hide_secrets(str(value))
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}... ({len(text)} characters)"


def hide_secrets(text: str) -> str:
    """The text, with everything hidden that looks like a key or a password."""
    return SECRET_TEXTS.sub(lambda m: f"{m['scheme'] or m['url'] or m['id']}{HIDDEN}", text)


def _is_secret(name: str, value: object) -> bool:
    return value is not None and not isinstance(value, bool) and SECRET_NAMES.search(name) is not None


def _is_handling_error() -> bool:
    return sys.exc_info()[0] is not None


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _ascii(encoded: str) -> str:
    return encoded.replace("\x7f", "\\u007f")  # DEL, the one control character that JSON leaves as it is


def _as_text(line: dict[str, object]) -> str:
    """A line for people: time, level and event, then name=value, where a value is JSON unless it is one plain word."""
    head = f"{line['time']} {line['level']!s:<7} {_word(line['event'])}"
    return " ".join([head, *(f"{_word(name)}={_word(v)}" for name, v in line.items() if name not in RESERVED)])


def _word(value: object) -> str:
    plain = isinstance(value, str) and re.fullmatch(r"[\w.:/@%+-]+", value, re.ASCII)
    return str(value) if plain else _ascii(_encode(value))
