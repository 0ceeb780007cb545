"""Who asks: the owner of the key in the header, or without a key the network that the request comes from."""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from queen.errors import QueenError
from queen.secret import digest_of
from queen.serve.access.key import NETWORK, Key, parse
from queen.serve.access.key_store import KeySource
from queen.serve.access.proxies import UnnamedProxies
from queen.serve.network import Address, TrustedProxies, parse_address
from queen.serve.types import Caller, ServeError

NO_KEY = "a key is needed: send the header 'Authorization: Bearer KEY'"
BAD_KEY = "the key in the header 'Authorization: Bearer KEY' is not valid"
UNKNOWN_EVERY = 0.05  # seconds at least between two readings of the store because of an unknown key
PREFIX = {4: 24, 6: 64}  # length, by IP version, of the network that one household or office usually has


class UnknownKeyError(ServeError):
    """The copy of the keys lacks this key, or is too old; if `retry` is set, call `refresh_once` and ask again."""

    def __init__(self, status: int, message: str, *, retry: bool, retry_after: int | None = None) -> None:
        super().__init__(status, message, retry_after=retry_after)
        self.retry = retry


@dataclass(frozen=True)
class _Snapshot:
    """A copy of the keys, at least as new as the time `at` of the monotonic clock."""

    keys: Mapping[str, Key] = field(repr=False)
    version: object
    at: float


class Authenticator:
    """Turns header and address into a `Caller`, from a copy of the keys that `refresh_once` keeps up to date.

    The copy is never used when older than `grace` seconds, so a revoked key is dead by then, whatever fails. `caller`
    and `admin` never block; `refresh_once` does, and `KeyWatcher` calls it in a thread. The first copy is made here: an
    error of the store is an error of the constructor.
    """

    def __init__(
        self,
        store: KeySource,
        *,
        anonymous: bool = False,
        trusted_proxies: Sequence[str] = (),
        net_groups: bool = False,
        grace: float = 1.0,
        unnamed_proxies: UnnamedProxies | None = None,
    ) -> None:
        self.failure: QueenError | None = None  # why the keys could not be read the last time
        self._store = store
        self._anonymous, self._net_groups, self._grace = anonymous, net_groups, grace
        self.unnamed_proxies = UnnamedProxies() if unnamed_proxies is None else unnamed_proxies
        self._proxies = TrustedProxies(trusted_proxies)
        self._no_digest = secrets.token_bytes(32)  # compared with the secret where no key has the id
        self._lock = threading.Lock()
        self._snapshot = self._read(None)
        self._tried = self._snapshot.at
        self._last_unknown = float("-inf")

    @property
    def keys(self) -> Mapping[str, Key]:
        """All keys by id, as last read."""
        return self._snapshot.keys

    def refresh_once(self) -> bool:
        """Read the keys again if they have changed (blocks); returns whether they could be read, see `failure`."""
        called = time.monotonic()
        with self._lock:
            if self._tried < called:  # else another thread has read them while this one waited
                self._tried = time.monotonic()
                try:
                    self._snapshot = self._read(self._snapshot)
                    self.failure = None
                except QueenError as error:
                    self.failure = error
            return self.failure is None

    def caller(self, authorization: str | None, peer: str | None = None, forwarded: str | None = None) -> Caller:
        """Who asks, or `ServeError` 401 or 503.

        `peer` is the address of the socket, None if it has none; `forwarded` all X-Forwarded-For headers in order,
        joined by commas, or "" if only other headers (Forwarded, Via) speak of a proxy.
        """
        if authorization is None:
            return self._anonymous_caller(peer, forwarded)
        key = self._find_key(authorization)
        groups = (*key.groups, f"{NETWORK}:{self._prefix(peer, forwarded)}") if self._net_groups else key.groups
        return Caller(key.name, groups, key.admin, key.id)

    def admin(self, authorization: str | None, peer: str | None = None, forwarded: str | None = None) -> Caller:
        """Who asks, if it may operate the server; else `ServeError` 401, 403 or 503."""
        if authorization is None:
            raise ServeError(401, NO_KEY)
        caller = self.caller(authorization, peer, forwarded)
        if not caller.admin:
            raise ServeError(403, "this needs an admin key: queen keys new NAME --admin")
        return caller

    def _anonymous_caller(self, peer: str | None, forwarded: str | None) -> Caller:
        if not self._anonymous:
            raise ServeError(401, NO_KEY)
        prefix = self._prefix(peer, forwarded)
        return Caller(f"anonymous:{prefix}", (f"{NETWORK}:{prefix}",) if self._net_groups else ())

    def _find_key(self, authorization: str) -> Key:
        """The active key in the header. An id that does not exist costs the same time and gets the same error."""
        now, snapshot = time.monotonic(), self._snapshot
        if now - snapshot.at > self._grace:  # a revocation might have been missed
            raise UnknownKeyError(503, "keys cannot be checked now", retry=self.failure is None, retry_after=1)
        scheme, _, text = authorization.partition(" ")
        parts = parse(text.strip(" ")) if scheme.lower() == "bearer" else None
        if parts is None:
            raise ServeError(401, BAD_KEY)
        key = snapshot.keys.get(parts[0])
        same = hmac.compare_digest(digest_of(parts[1]), self._no_digest if key is None else key.digest)
        if key is None or not same or not key.active:
            raise UnknownKeyError(401, BAD_KEY, retry=self._may_ask_again(now))
        return key

    def _may_ask_again(self, now: float) -> bool:
        """Whether an unknown key may be one made a moment ago, so that the store is worth reading again."""
        if self.failure is not None or now - self._last_unknown < UNKNOWN_EVERY:
            return False
        self._last_unknown = now
        return True

    def _read(self, old: _Snapshot | None) -> _Snapshot:
        at, version = time.monotonic(), self._store.version()  # before the keys: a change in between is then read again
        keys = old.keys if old is not None and version == old.version else self._store.keys()
        return _Snapshot(keys, version, at)

    def _prefix(self, peer: str | None, forwarded: str | None) -> str:
        """The network that the caller belongs to, as text; `local` without an address."""
        address = parse_address(peer)
        if address is None:
            return "local"
        if forwarded is not None:
            if address in self._proxies:
                address = self._origin(forwarded) or address
            else:
                self.unnamed_proxies.note(str(address), forwarded)
        length = PREFIX[address.version]
        rest = address.max_prefixlen - length
        return f"{type(address)(int(address) >> rest << rest)}/{length}"  # ip_network, in a third of the time

    def _origin(self, forwarded: str) -> Address | None:
        """The last address that is no trusted proxy's; the caller may have invented all those before it."""
        for text in reversed(forwarded.split(",")):
            address = parse_address(_without_port(text.strip()))
            if address is None or address not in self._proxies:
                return address
        return None


def _without_port(text: str) -> str:
    """The address that some proxies write with a port: 10.0.0.1:80, or [2001:db8::1]:80."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    host, colon, port = text.partition(":")
    return host if colon and ":" not in port else text
