"""Whether a loss that an operator accepts is one that a server here has noticed."""

from __future__ import annotations

import json
from contextlib import suppress
from os.path import realpath
from pathlib import Path

from queen.errors import OptionError


def check_expected(lost: str, url: str, home: Path) -> None:
    """Raise unless a witness in `home` expects the ledger at `url` to have the id `lost`.

    Only then can a server's refusal have named it: to accept anything else would help nobody, and would give a ledger
    that is healthy another id.
    """
    ids = _expected_ids(url, home)
    if lost in ids:
        return
    known = f"it is known there as {' or '.join(sorted(ids))}" if ids else "no server has remembered it there"
    raise OptionError(
        f"nothing in '{home}' expects this ledger to be {lost}: {known}. Copy the id from the server's error, and give "
        "the folder of that server (--home); or, if it is out of reach and you are sure, --force"
    )


def _expected_ids(url: str, home: Path) -> set[str]:
    """The ids by which the witnesses in a folder know a ledger."""
    from queen.ledger.open import SERVERS
    from queen.ledger.redis.script import parse_address

    scheme, separator, rest = url.partition("://")
    name = parse_address(url)[0] if scheme in SERVERS else realpath(rest[1:] if separator else url)
    ids: set[str] = set()
    for path in sorted(home.glob("ledger-*.witness")):
        with suppress(OSError, ValueError, KeyError, TypeError):  # a damaged one expects nothing
            content = json.loads(path.read_bytes())
            if content["ledger"] == name:
                ids.add(str(content["id"]))
    return ids
