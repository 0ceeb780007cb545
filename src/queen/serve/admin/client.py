"""A client of a running server's admin API, for operators' commands: it has the same methods as a ledger."""

from __future__ import annotations

import json
import time
from dataclasses import fields
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from queen.errors import OptionError, reason
from queen.ledger import Budget, Event, Standing
from queen.ledger.usage import Usage

TIMEOUT = 10.0  # seconds per request
PATIENCE = 120.0  # seconds that a server may take to read very many clients for the first time
MAX_LINES = 1000  # of any list that the API returns


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class AdminClient:
    """Operates a server with an admin key; the server logs the key's name as the actor."""

    def __init__(self, address: str, key: str) -> None:
        if urlsplit(address).scheme not in ("http", "https"):
            raise OptionError(f"expected the server as http://HOST:PORT, got '{address}'")
        self._address, self._key = address.rstrip("/"), key
        self._opener = build_opener(_NoRedirects)  # a redirect would take the key along

    def standings(self) -> list[Standing]:
        """Where clients and groups stand, the highest wealth first; at most 1,000."""
        deadline = time.monotonic() + PATIENCE
        while True:
            page = self._call(f"/admin/clients?limit={MAX_LINES}")
            if page["total"] is not None:
                return [_standing(line) for line in page["clients"]]
            if time.monotonic() > deadline:
                raise OptionError(f"the server at {self._address} is still reading its clients: ask again later")
            time.sleep(0.5)

    def standing(self, name: str, *, group: bool = False) -> Standing:
        """Where a client or group stands."""
        return _standing(self._call(f"/admin/client?name={quote(name, safe='')}&group={int(group)}"))

    def events(self) -> list[Event]:
        """Notices and what operators did, oldest first; at most 1,000."""
        newest_first = self._call(f"/admin/events?limit={MAX_LINES}")["events"]
        return [Event(**(line | {"coverage": dict(line["coverage"])})) for line in reversed(newest_first)]

    def acknowledge(self, event: int, actor: str) -> None:
        """Note that somebody has seen an event."""
        self._call("/admin/acknowledge", {"event": event})

    def now(self) -> int:
        """The time by which budgets renew in the server's ledger."""
        return int(self._call("/admin/overview")["server"]["ledger_time"])

    def pardon(self, name: str, actor: str, *, group: bool = False) -> None:
        """Clear the alarm and wealth of a client or group."""
        self._call("/admin/pardon", {"name": name, "group": group})

    def allow(self, client: str, actor: str, *, allowed: bool = True) -> None:
        """Put a client on the allow-list, or take it off."""
        self._call("/admin/allow", {"name": client, "allowed": allowed})

    def set_budget(self, client: str, budget: Budget | None, actor: str) -> None:
        """Give a client a budget of its own, or the guard's again."""
        own = {"extra_answers": None, "threshold": None} if budget is None else vars(budget)
        self._call("/admin/budget", {"name": client, **own})

    def revoke(self, id_or_name: str) -> list[str]:
        """Revoke a key by its id, or all keys of a client; returns their ids."""
        return list(self._call("/admin/revoke", {"id": id_or_name})["revoked"])

    def close(self) -> None:
        """Nothing to close; ledgers have this method."""

    def _call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._address + path, data, headers)  # noqa: S310  (http and https only, see above)
        try:
            with self._opener.open(request, timeout=TIMEOUT) as reply:
                return json.load(reply)
        except HTTPError as error:
            raise OptionError(f"the server at {self._address} says {error.code}: {_message(error)}") from error
        except (URLError, OSError, ValueError) as error:
            raise OptionError(f"cannot reach the server at {self._address}: {reason(error)}") from error


def _standing(line: dict[str, Any]) -> Standing:
    """The standing that the API describes: of a list, with its most covered class alone."""
    classes = line.get("coverage", [line["most"]] if line["most"] else [])
    return Standing(**{
        **{field.name: line[field.name] for field in fields(Standing) if field.name in line},
        "budget": line["budget"] and Budget(**line["budget"]),
        "extra_usage": Usage(**line.get("extra_usage", {})),
        "coverage": {entry["label"]: entry["cqs"] for entry in classes},
    })  # fmt: skip


def _message(error: HTTPError) -> str:
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return str(error.reason)
