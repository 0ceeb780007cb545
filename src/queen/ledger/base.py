"""The protocol every ledger follows, and the methods that follow from others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from numpy.typing import ArrayLike

from queen.core.sensitivity import Floats
from queen.ledger.rows import Rows, check_client, make_rows
from queen.ledger.witness import ACCEPTED, ID, check_id, new_id
from queen.ledger.words import Budget, Event, Judgement, Standing, check_budget, make_event
from queen.options import Limits
from queen.sentinel.bets import Test

BINDING = "binding"  # the fact that says which bundles a ledger is for
UNFINISHED = "unfinished "  # what it begins with while coverage is being forgotten


class Ledger(Protocol):
    """Judges rows in arrival order and remembers them; several clients may mix in one call."""

    def judge_rows(self, rows: Rows) -> Judgement:
        """Judge all rows and record the fresh ones, or raise `LedgerError`: then nobody may be answered.

        A row is judged in its client's own scope and then in its groups', in order of kind. Each decides and charges by
        itself; after a denial the rest are not asked, and what a trusted client asks is charged to no group.
        """
        ...

    def now(self) -> int:
        """The time by which budgets renew, in whole Unix seconds: that of the store, not of the caller."""
        ...

    def number_of(self, test: Test, *, claim: bool = True) -> int:
        """The number of a test among those of its account, from 1, in the order in which the ledger met them.

        A new one gets the next number, as it does when its bets are judged for the first time; unless `claim`, nothing
        is written and the answer is the number that it would get.
        """
        ...

    def judge(self, client: str, labels: ArrayLike, points: ArrayLike, limits: Limits) -> Judgement:
        """The one-client case: labels (n,), points (n, 2) relative to the class disc."""
        ...

    def coverage(self, client: str) -> dict[int, float]:
        """CQS of every class in which this client has records."""
        ...

    def records(self, client: str) -> dict[int, Floats]:
        """The recorded points (m, 2) of every class in which this client has records, oldest first."""
        ...

    def clients(self) -> Iterable[str]:
        """The names of all clients on record (see `Standing.on_record`), sorted."""
        ...

    def standing(self, name: str, *, group: bool = False) -> Standing:
        """Where a client (or group) stands; one that is not on record has `Standing(name, group)`."""
        ...

    def standings(self) -> list[Standing]:
        """Where all clients and groups on record stand, the highest wealth first."""
        ...

    def each_standing(self) -> Iterator[Standing]:
        """The same in no order, one after the other, for callers that cannot hold a million of them.

        Each is as it was when it was read, and one may come twice (a Redis cluster may move it meanwhile).
        """
        ...

    def events(self, *, after: int = 0, newest: int | None = None) -> list[Event]:
        """Notices and what operators did, oldest first; those with a higher number than `after`.

        Of those, at most so many of the `newest`. Judging goes on meanwhile, however many there are.
        """
        ...

    def acknowledgements(self) -> dict[int, str]:
        """Who has read which event, by its number; for who has read the events before."""
        ...

    def acknowledge(self, event: int, actor: str) -> None:
        """Note that somebody has read an event."""
        ...

    def pardon(self, name: str, actor: str, *, group: bool = False) -> None:
        """Clear the alarm, what was counted since, the wealth in every test and the homes of a client (or group).

        Coverage, records and the memory of queries stay.
        """
        ...

    def allow(self, client: str, actor: str, *, allowed: bool = True) -> None:
        """Put a client on the allow-list (or take it off): always answered honestly, and not charged to its groups."""
        ...

    def set_budget(self, client: str, budget: Budget | None, actor: str) -> None:
        """Give a client its own budget, or (None) the guard's limits again."""
        ...

    def fact(self, name: str) -> str | None:
        """Something that is true of the whole ledger, by name: whose it is, how old; None if nobody has said it."""
        ...

    def set_fact(self, name: str, value: str, *, replace: bool = True) -> str:
        """Say something of the whole ledger; unless it may `replace` it, only if nobody has. What holds is returned."""
        ...

    def accept(self, lost: str, actor: str) -> str:
        """Go on although state was lost: whoever knew this ledger as `lost` believes it again. Returns its new id."""
        ...

    def accept_clock(self, actor: str) -> None:
        """Go on with a clock that was ahead before: no use of a renewing budget lies after the ledger's time any more.

        Nothing is given back: what was used counts until the window that is now is over.
        """
        ...

    def rebind(self, binding: str, actor: str, *, name: str, forget_coverage: bool) -> None:
        """Replace the fact `binding`, what the ledger is for, and log that `actor` did so for the bundle called `name`.

        With `forget_coverage`, coverage and records of all clients and groups go; all else stays: alarms, evidence,
        budgets, the allow-list, events, counts and the memory of queries. Where this takes several steps, the fact
        begins with `UNFINISHED` until the last; doing it again goes on from there.
        """
        ...

    def check(self) -> None:
        """Raise `LedgerError` if nothing can be written now, so that a server finds out before a client asks."""
        ...

    def verify(self) -> None:
        """Raise `LedgerError` if this ledger has lost state, or would not keep it; quick, and writes nothing."""
        ...

    def close(self) -> None:
        """Give back files and connections."""
        ...


class LedgerBase:
    """The methods of `Ledger` that follow from its others, and from `_operate`, which carries out operators' orders."""

    def judge(self: Ledger, client: str, labels: ArrayLike, points: ArrayLike, limits: Limits) -> Judgement:
        """Judge the rows of one client: labels (n,), points (n, 2) relative to the class disc."""
        return self.judge_rows(make_rows((client,), None, labels, points, limits))

    def coverage(self: Ledger, client: str) -> dict[int, float]:
        """CQS of every class in which this client has records."""
        return dict(self.standing(client).coverage)

    def clients(self: Ledger) -> Iterable[str]:
        """The names of all clients on record, sorted."""
        return sorted({standing.name for standing in self.each_standing() if not standing.group})

    def standings(self: Ledger) -> list[Standing]:
        """Where all stand, the highest wealth first, then by name."""
        latest = {(standing.group, standing.name): standing for standing in self.each_standing()}
        return sorted(latest.values(), key=lambda s: (-s.wealth, s.group, s.name))

    def pardon(self, name: str, actor: str, *, group: bool = False) -> None:
        """Clear the alarm, the wealth and the homes of a client or group."""
        self._operate("pardon", name, actor, group=group)

    def allow(self, client: str, actor: str, *, allowed: bool = True) -> None:
        """Put a client on the allow-list, or take it off."""
        self._operate("allow" if allowed else "disallow", client, actor)

    def set_budget(self, client: str, budget: Budget | None, actor: str) -> None:
        """Give a client its own budget, or the guard's limits again."""
        self._operate("budget", client, actor, budget=check_budget(budget))

    def accept(self, lost: str, actor: str) -> str:
        """Give the ledger a new id after the one that was `lost`, and log who did it."""
        event = make_event("accept", Standing("ledger", group=False), actor=check_client(actor))
        check_id(lost)
        own = self.set_fact(ID, new_id(), replace=False)  # type: ignore[attr-defined]
        earlier = (self.fact(ACCEPTED) or "").split()  # type: ignore[attr-defined]
        self.set_fact(ACCEPTED, " ".join(dict.fromkeys([*earlier, own, lost])))  # type: ignore[attr-defined]
        self._add_event(event)
        return str(self.set_fact(ID, new_id()))  # type: ignore[attr-defined]

    def verify(self) -> None:
        """What is only in memory cannot be lost while it is used."""

    def _add_event(self, event: Event) -> None:
        """Log an event."""
        raise NotImplementedError(f"{type(self).__name__} logs no events")

    def _operate(self, order: str, name: str, actor: str, *, group: bool = False, budget: Budget | None = None) -> None:
        """Carry out an order (pardon, allow, disallow or budget) and log it, with the standing from before it."""
        raise NotImplementedError(f"{type(self).__name__} takes no orders from operators")
