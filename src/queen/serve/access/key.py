"""One key: what its text looks like, what the server stores of it, and what it says about its owner.

The name of a key is the ledger's client. Several keys may have one name: to replace a key, make a second one of the
same name, hand it out and revoke the first by its id; the client keeps its budget and its record in the ledger.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from queen.errors import OptionError
from queen.ledger.rows import check_client
from queen.ledger.words import Budget, check_budget
from queen.secret import digest_of

TEXT = re.compile(r"qk_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
ID = re.compile(r"[0-9a-f]{16}")
RESERVED = ("net:", "anonymous", "stranger:")  # beginnings of the names of clients without a key
NETWORK = "net"  # the kind of group that the caller's address decides


@dataclass(frozen=True)
class Key:
    """One key without its secret: `digest` is the SHA-256 of the secret, `name` the client, `created` a time."""

    id: str
    name: str
    digest: bytes = field(repr=False)
    groups: tuple[str, ...] = ()
    admin: bool = False
    created: float = 0.0
    revoked: float | None = None
    budget: Budget | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not ID.fullmatch(self.id):
            raise OptionError("the id of a key must have 16 hexadecimal digits")
        if not isinstance(self.digest, bytes) or len(self.digest) != hashlib.sha256().digest_size:
            raise OptionError("the digest of a key must have 32 bytes")
        if not isinstance(self.admin, bool):
            raise OptionError(f"admin must be True or False, got {self.admin!r}")
        for when in (self.created, 0.0 if self.revoked is None else self.revoked):
            if not isinstance(when, float):
                raise OptionError(f"created and revoked must be times in seconds, got {when!r}")
        _check_name(self.name)
        _check_groups(self.groups)
        check_budget(self.budget)

    @property
    def active(self) -> bool:
        """Whether the key has not been revoked."""
        return self.revoked is None


def new_key(name: str, groups: Sequence[str], admin: bool, budget: Budget | None) -> tuple[str, Key]:
    """The text of a fresh key, and the key without its secret, to be stored."""
    if isinstance(groups, str):
        raise OptionError(f"groups must be a list of names, got '{groups}'")
    secret = secrets.token_urlsafe(32)
    key = Key(secrets.token_hex(8), name, digest_of(secret), tuple(groups), admin, time.time(), None, budget)
    for text in (name, *groups):
        if not text.isprintable():  # older keys may have such names, and keep them
            raise OptionError(f"the names of a key and its groups must be of visible characters, got {text!a}")
    return f"qk_{key.id}_{secret}", key


def parse(text: str) -> tuple[str, str] | None:
    """Id and secret in the text of a key, or None if the text is no key."""
    match = TEXT.fullmatch(text)
    return None if match is None else (match[1], match[2])


def mark_revoked(keys: Mapping[str, Key], id_or_name: str) -> list[Key]:
    """The key of this id, or all keys of this name, as revoked now; those revoked before are left out."""
    parts = parse(id_or_name)  # whoever leaked a key has its whole text at hand
    wanted = id_or_name if parts is None else parts[0]
    chosen = [keys[wanted]] if wanted in keys else [key for key in keys.values() if key.name == wanted]
    if not chosen:
        raise OptionError(f"no key with the id or name '{wanted}': queen keys list shows them")
    now = time.time()
    return [replace(key, revoked=now) for key in chosen if key.active]


def budgets(keys: Mapping[str, Key]) -> dict[str, Budget]:
    """The budget of every client that has one: that of its newest active key with a budget."""
    by_age = sorted(keys.values(), key=lambda key: key.created)
    return {key.name: key.budget for key in by_age if key.active and key.budget is not None}


def to_plain(key: Key) -> dict[str, Any]:
    """A key for JSON, without its id, which it is stored under."""
    return {
        "name": key.name,
        "digest": key.digest.hex(),
        "groups": list(key.groups),
        "admin": key.admin,
        "created": key.created,
        "revoked": key.revoked,
        "budget": None if key.budget is None else vars(key.budget),
    }


def from_plain(name: str, plain: Mapping[str, Any]) -> Key:
    """The key of the id `name` from what `to_plain` made."""
    budget = None if plain["budget"] is None else Budget(**plain["budget"])
    changed = {"digest": bytes.fromhex(plain["digest"]), "groups": tuple(plain["groups"]), "budget": budget}
    return Key(id=name, **{**plain, **changed})


def _check_name(name: str) -> None:
    if check_client(name).startswith((*RESERVED, "qk_")) or ID.fullmatch(name):
        raise OptionError(
            f"the name of a key must not begin with {' or '.join(RESERVED)}, nor look like a key or its id"
        )


def _check_groups(groups: tuple[str, ...]) -> None:
    kinds = []
    for group in groups:
        kind, _, name = check_client(group).partition(":")
        if not kind or not name:
            raise OptionError(f"expected a group as kind:name, for example tenant:7, got '{group}'")
        if kind == NETWORK:
            raise OptionError(f"the caller's address decides its {NETWORK} group, got '{group}': choose another kind")
        kinds.append(kind)
    if len(set(kinds)) != len(kinds):
        raise OptionError(f"expected at most one group of a kind, got {list(groups)}")
