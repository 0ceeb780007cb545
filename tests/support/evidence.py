"""The evidence that a ledger has stored, read from each store by hand: what decisions hide until the bar is reached."""

from __future__ import annotations

import struct
from contextlib import closing
from itertools import islice

from queen.ledger import Ledger, MemoryLedger, RedisLedger, SqliteLedger
from queen.ledger.sqlite.schema import load
from queen.sentinel.wealth import Winnings
from tests.support.ledgers import Reopened

Evidence = dict[int, tuple]  # by test, the one used last at the end: clocks, purses and counts by class
CLOCK_BYTES = 6


def evidence_of(ledger: Ledger | Reopened, name: str, *, group: bool = False) -> Evidence:
    """Of one client or group."""
    if isinstance(ledger, Reopened):
        with closing(ledger._open()) as opened:
            return evidence_of(opened, name, group=group)
    if isinstance(ledger, MemoryLedger):
        state = ledger._states.get((group, name))
        return {} if state is None else {test: _plain(one) for test, one in state.winnings.items()}
    if isinstance(ledger, SqliteLedger):
        state = load(ledger._db, name, group=group)
        return {test: _plain(one) for test, one in state.winnings.items()}
    assert isinstance(ledger, RedisLedger)
    scope, _, _, *strings = ledger._keys(name, group=group)
    client = ledger._servers.client_of(scope)
    tests = struct.iter_unpack("<Bqd", client.hget(scope, "w") or b"")
    return {test: read_evidence(client.get(strings[place % 2])) for place, test, _ in tests}


def homes_of(ledger: Ledger | Reopened, client: str) -> dict[str, list[str]]:
    """The groups of each kind whose alarms concern a client."""
    if isinstance(ledger, Reopened):
        with closing(ledger._open()) as opened:
            return homes_of(opened, client)
    if isinstance(ledger, MemoryLedger):
        return ledger._states[False, client].homes
    if isinstance(ledger, SqliteLedger):
        return load(ledger._db, client, group=False).homes
    assert isinstance(ledger, RedisLedger)
    scope, *_ = ledger._keys(client)
    homes: dict[str, list[str]] = {}
    for name in (ledger._servers.client_of(scope).hget(scope, "h") or b"").decode().split("\0")[:-1]:
        homes.setdefault(name.partition(":")[0], []).append(name)
    return homes


def _plain(one: Winnings) -> tuple:
    return one.clocks.tolist(), one.purses.tolist(), {label: row.tolist() for label, row in one.counts.items()}


def read_evidence(text: bytes) -> tuple:
    """One string of evidence in Redis; the number of scores is the one whose parts fill the string exactly."""
    width, used = struct.unpack_from("<BI", text)
    for scores in (1, 2, 3, 4):
        front = 5 + CLOCK_BYTES * (1 + scores) + 4 * 10 * scores
        widths = [width] * (1 + scores) + [width, width, width + 1, width, width] * scores
        room, rest = divmod(len(text) - front, 4 + sum(widths))
        if rest == 0 and room == (used if used <= 4 else -4 * (-used // 4)):
            break
    else:
        raise AssertionError(f"{len(text)} bytes are no evidence in {used} classes")
    clocks = [int.from_bytes(text[at : at + CLOCK_BYTES], "little") for at in range(5, 5 + 6 * (1 + scores), 6)]
    purses = struct.unpack_from(f"<{10 * scores}f", text, 5 + CLOCK_BYTES * (1 + scores))
    labels = struct.unpack_from(f"<{used}I", text, front)
    numbers = iter(text[front + 4 * room :])
    counts = {label: [int.from_bytes(bytes(islice(numbers, n)), "little") for n in widths] for label in labels}
    return clocks, list(purses), counts
