"""Recorded queries replayed under the sentinel, to find those who have been extracting the model all along."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from queen.batch import MeasuredBatch
from queen.bundle.bundle import Bundle
from queen.core import inputs
from queen.errors import OptionError, QueenError
from queen.guard import Guard
from queen.ledger import Event, Judgement
from queen.options import Group
from queen.policy import Action
from queen.progress import Progress
from queen.serve.querylog.format import Logged
from queen.types import Inputs

MAX_REASONS = 3


@dataclass(frozen=True)
class Audited:
    """One client (or group) after the replay.

    `accused_at_query` counts its own queries from 1, `accused_at` is when that one was sent (Unix seconds).
    `honest_answers` are those it would have got before it was accused, `coverage` its most covered class.
    """

    name: str
    group: bool
    queries: int
    wealth: float
    accused: bool
    accused_at_query: int | None
    accused_at: float | None
    coverage: float
    extra_answers: int
    honest_answers: int


@dataclass(frozen=True)
class AuditReport:
    """What a replay found, the most suspicious first.

    `skipped` queries do not fit the bundle, for the `reasons` given; groups of kinds in `unpooled` have no limits in
    the bundle, so that only their members are judged. `statement` is what an accusation is worth.
    """

    found: tuple[Audited, ...]
    requests: int
    queries: int
    first: float | None
    last: float | None
    skipped: int
    reasons: tuple[str, ...]
    unpooled: tuple[str, ...]
    statement: str

    @property
    def accused(self) -> tuple[Audited, ...]:
        """Those whose queries are evidence of extraction."""
        return tuple(one for one in self.found if one.accused)


def audit(
    guard: Guard | Bundle, log: Iterable[Logged], *, batch: int = 256, progress: Progress | None = None
) -> AuditReport:
    """Send recorded requests through the bundle in their order, under the policy `sentinel` and an empty ledger.

    The model runs on up to `batch` rows at once; the ledger judges row by row.
    """
    if batch < 1:
        raise OptionError(f"batch must be at least 1, got {batch}")
    fresh = (guard if isinstance(guard, Guard) else Guard(guard)).fresh(policy="sentinel", observe=False)
    replay = _LogReplay(fresh)
    entries = log if progress is None else progress.each("replay", log)
    for together in _batches(entries, batch):
        replay.run(together)
    if replay.skipped and not replay.queries:
        raise OptionError(
            f"not one of {replay.skipped} recorded queries fits this bundle: {next(iter(replay.reasons))}"
        )
    return replay.report()


def _batches(entries: Iterable[Logged], rows: int) -> Iterator[list[Logged]]:
    """Requests in a row whose tensors can be joined, until there are `rows` rows."""
    together: list[Logged] = []
    count = 0
    for entry in entries:
        if together and (count >= rows or _kind(entry.inputs) != _kind(together[0].inputs)):
            yield together
            together, count = [], 0
        together.append(entry)
        count += inputs.count(entry.inputs)
    if together:
        yield together


def _kind(batch: Inputs) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
    return [(name, t.dtype, tuple(t.shape[1:])) for name, t in inputs.tensors(batch).items()]


@dataclass
class _ScopeRecord:
    """What the replay itself must remember of a scope."""

    honest: int = 0
    accused_at_query: int | None = None
    accused_at: float | None = None


@dataclass
class _LogReplay:
    guard: Guard
    scopes: dict[tuple[bool, str], _ScopeRecord] = field(default_factory=dict)
    requests: int = 0
    queries: int = 0
    first: float | None = None
    last: float | None = None
    skipped: int = 0
    reasons: dict[str, None] = field(default_factory=dict)
    unpooled: set[str] = field(default_factory=set)
    events: int = 0

    def run(self, entries: list[Logged]) -> None:
        """Requests that can be joined; if the model cannot take them together, one by one."""
        try:
            seen = self.guard.measure(inputs.join([entry.inputs for entry in entries]))
        except QueenError as error:
            if len(entries) > 1:
                for entry in entries:
                    self.run([entry])
            else:
                self._skip(entries[0], error)
            return
        row = 0
        for entry in entries:
            self._note(entry)
            groups = self._groups(entry.groups)
            for _ in range(inputs.count(entry.inputs)):
                self._judge(_one(seen, row), entry, groups)
                row += 1

    def _skip(self, entry: Logged, error: QueenError) -> None:
        self.skipped += inputs.count(entry.inputs)
        if len(self.reasons) < MAX_REASONS:
            self.reasons[str(error)] = None

    def _note(self, entry: Logged) -> None:
        self.requests += 1
        self.first = entry.at if self.first is None else min(self.first, entry.at)
        self.last = entry.at if self.last is None else max(self.last, entry.at)

    def _groups(self, names: tuple[str, ...]) -> Mapping[str, Group]:
        """Those that the bundle has limits for."""
        known = self.guard.bundle.sentinel.groups
        kinds = {name: name.partition(":")[0] for name in names}
        self.unpooled |= set(kinds.values()) - set(known)
        return {name: known[kind] for name, kind in kinds.items() if kind in known}

    def _judge(self, seen: MeasuredBatch, entry: Logged, groups: Mapping[str, Group]) -> None:
        judgement = self.guard.judge(seen, entry.client, groups)
        self.queries += 1
        events = self.guard.ledger.events()  # all of them alarms: nobody operates this ledger
        for event in events[self.events :]:
            self._accuse(event, entry.at)
        self.events = len(events)
        if self._is_honest(judgement):
            for scope in ((False, entry.client), *((True, name) for name in groups)):
                known = self.scopes.setdefault(scope, _ScopeRecord())
                known.honest += known.accused_at is None

    def _accuse(self, event: Event, at: float) -> None:
        known = self.scopes.setdefault((event.group, event.name), _ScopeRecord())
        known.accused_at_query, known.accused_at = event.queries, at

    def _is_honest(self, judgement: Judgement) -> bool:
        return bool(self.guard.policy.actions(judgement)[0] == Action.HONEST)

    def report(self) -> AuditReport:
        found = []
        for standing in self.guard.ledger.standings():
            known = self.scopes.get((standing.group, standing.name), _ScopeRecord())
            found.append(
                Audited(
                    name=standing.name,
                    group=standing.group,
                    queries=standing.queries,
                    wealth=standing.wealth,
                    accused=standing.alarmed,
                    accused_at_query=known.accused_at_query,
                    accused_at=known.accused_at,
                    coverage=max(standing.coverage.values(), default=0.0),
                    extra_answers=standing.extra_answers,
                    honest_answers=known.honest,
                )
            )
        return AuditReport(
            found=tuple(sorted(found, key=lambda one: (not one.accused, -one.wealth, -one.coverage, one.name))),
            requests=self.requests,
            queries=self.queries,
            first=self.first,
            last=self.last,
            skipped=self.skipped,
            reasons=tuple(self.reasons),
            unpooled=tuple(sorted(self.unpooled)),
            statement=self.guard.bundle.statement,
        )


def _one(seen: MeasuredBatch, row: int) -> MeasuredBatch:
    """One row of a batch, as the ledger needs it."""
    bets = seen.bets
    return replace(
        seen,
        labels=seen.labels[row : row + 1],
        points=seen.points[row : row + 1],
        bets=bets
        and replace(
            bets,
            factors=bets.factors[row : row + 1],
            digests=bets.digests[row : row + 1],
            sketches=bets.sketches[row : row + 1],
        ),
    )
