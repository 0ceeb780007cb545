"""Recorded queries replayed under the sentinel, to find those who have been extracting the model all along."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from queen.bundle.bundle import Bundle
from queen.core import inputs
from queen.errors import OptionError, QueenError
from queen.guard import Guard
from queen.ledger import Event, Judgement, MemoryLedger
from queen.ledger.clock import LedgerClock
from queen.options import Group
from queen.perturber import MeasuredBatch
from queen.policy import Action
from queen.progress import Progress
from queen.serve.querylog.format import LoggedRequest
from queen.types import Inputs

MAX_REASONS = 3


@dataclass(frozen=True)
class AuditedAccount:
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
    """The result of a replay: all clients and groups, the most suspicious first.

    `skipped` queries do not fit the bundle, for the `reasons` given; groups of kinds in `unpooled` have no limits in
    the bundle, so that only their members are judged. `statement` is what an accusation is worth.
    """

    accounts: tuple[AuditedAccount, ...]
    requests: int
    queries: int
    first: float | None
    last: float | None
    skipped: int
    reasons: tuple[str, ...]
    unpooled: tuple[str, ...]
    statement: str

    @property
    def accused(self) -> tuple[AuditedAccount, ...]:
        """Those whose queries are evidence of extraction."""
        return tuple(account for account in self.accounts if account.accused)


def audit(
    guard: Guard | Bundle, log: Iterable[LoggedRequest], *, batch: int = 256, progress: Progress | None = None
) -> AuditReport:
    """Send recorded requests through the bundle in their order, under the policy `sentinel` and an empty ledger.

    The model runs on up to `batch` rows at once; the ledger judges row by row.
    """
    if batch < 1:
        raise OptionError(f"batch must be at least 1, got {batch}")
    fresh = (guard if isinstance(guard, Guard) else Guard(guard)).fresh(policy="sentinel", observe=False)
    clock = _ReplayClock()
    fresh.ledger = MemoryLedger(clock=clock)
    replay = _LogReplay(fresh, clock)
    requests = log if progress is None else progress.each("replay", log)
    for joinable in joinable_batches(requests, batch):
        replay.run(joinable)
    if replay.skipped and not replay.queries:
        raise OptionError(
            f"not one of {replay.skipped} recorded queries fits this bundle: {next(iter(replay.reasons))}"
        )
    return replay.report()


def joinable_batches(requests: Iterable[LoggedRequest], rows: int) -> Iterator[list[LoggedRequest]]:
    """Successive requests whose tensors can be joined; a list ends once it has `rows` rows or more."""
    joinable: list[LoggedRequest] = []
    count = 0
    for request in requests:
        if joinable and (count >= rows or _row_shapes(request.inputs) != _row_shapes(joinable[0].inputs)):
            yield joinable
            joinable, count = [], 0
        joinable.append(request)
        count += inputs.count(request.inputs)
    if joinable:
        yield joinable


def _row_shapes(batch: Inputs) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
    return [(name, t.dtype, tuple(t.shape[1:])) for name, t in inputs.tensors(batch).items()]


@dataclass
class _Tally:
    """What the ledger does not count of a client or group: answers and the time of the accusation."""

    honest: int = 0
    accused_at_query: int | None = None
    accused_at: float | None = None


class _ReplayClock(LedgerClock):
    """The time at which the request was recorded that is judged, so that budgets renew as they would have."""

    at = 0.0

    def now(self) -> int:
        """Whole Unix seconds."""
        return int(self.at)


@dataclass
class _LogReplay:
    """Judges requests one after the other, and counts what the report says."""

    guard: Guard
    clock: _ReplayClock
    tallies: dict[tuple[bool, str], _Tally] = field(default_factory=dict)
    requests: int = 0
    queries: int = 0
    first: float | None = None
    last: float | None = None
    skipped: int = 0
    reasons: dict[str, None] = field(default_factory=dict)
    unpooled: set[str] = field(default_factory=set)
    events: int = 0

    def run(self, requests: list[LoggedRequest]) -> None:
        """Judge requests that can be joined; if the model cannot take them together, one by one."""
        try:
            batch = self.guard.measure(inputs.join([request.inputs for request in requests]))
        except QueenError as error:
            if len(requests) > 1:
                for request in requests:
                    self.run([request])
            else:
                self._skip(requests[0], error)
            return
        row = 0
        for request in requests:
            self._count(request)
            self.clock.at = request.at
            groups = self._pooled_groups(request.groups)
            for _ in range(inputs.count(request.inputs)):
                self._judge(_single_row(batch, row), request, groups)
                row += 1

    def _skip(self, request: LoggedRequest, error: QueenError) -> None:
        self.skipped += inputs.count(request.inputs)
        if len(self.reasons) < MAX_REASONS:
            self.reasons[str(error)] = None

    def _count(self, request: LoggedRequest) -> None:
        self.requests += 1
        self.first = request.at if self.first is None else min(self.first, request.at)
        self.last = request.at if self.last is None else max(self.last, request.at)

    def _pooled_groups(self, names: tuple[str, ...]) -> Mapping[str, Group]:
        """The groups among these that the bundle has limits for."""
        known = self.guard.bundle.sentinel.groups
        kinds = {name: name.partition(":")[0] for name in names}
        self.unpooled |= set(kinds.values()) - set(known)
        return {name: known[kind] for name, kind in kinds.items() if kind in known}

    def _judge(self, row: MeasuredBatch, request: LoggedRequest, groups: Mapping[str, Group]) -> None:
        judgement = self.guard.judge(row, request.client, groups)
        self.queries += 1
        for event in self.guard.ledger.events(after=self.events):
            self.events = event.id
            if event.what == "alarm":
                self._accuse(event, request.at)
        if self._is_honest(judgement):
            for account in ((False, request.client), *((True, name) for name in groups)):
                tally = self.tallies.setdefault(account, _Tally())
                tally.honest += tally.accused_at is None

    def _accuse(self, event: Event, at: float) -> None:
        tally = self.tallies.setdefault((event.group, event.name), _Tally())
        tally.accused_at_query, tally.accused_at = event.queries, at

    def _is_honest(self, judgement: Judgement) -> bool:
        return bool(self.guard.policy.actions(judgement)[0] == Action.HONEST)

    def report(self) -> AuditReport:
        accounts = []
        for standing in self.guard.ledger.standings():
            tally = self.tallies.get((standing.group, standing.name), _Tally())
            accounts.append(
                AuditedAccount(
                    name=standing.name,
                    group=standing.group,
                    queries=standing.queries,
                    wealth=standing.wealth,
                    accused=standing.alarmed,
                    accused_at_query=tally.accused_at_query,
                    accused_at=tally.accused_at,
                    coverage=max(standing.coverage.values(), default=0.0),
                    extra_answers=standing.extra_answers,
                    honest_answers=tally.honest,
                )
            )
        return AuditReport(
            accounts=tuple(sorted(accounts, key=lambda a: (not a.accused, -a.wealth, -a.coverage, a.name))),
            requests=self.requests,
            queries=self.queries,
            first=self.first,
            last=self.last,
            skipped=self.skipped,
            reasons=tuple(self.reasons),
            unpooled=tuple(sorted(self.unpooled)),
            statement=self.guard.bundle.statement,
        )


def _single_row(batch: MeasuredBatch, row: int) -> MeasuredBatch:
    """One row of a batch, with the fields that the ledger needs."""
    labels, points = batch.labels[row : row + 1], batch.points[row : row + 1]
    return replace(batch, labels=labels, points=points, bets=batch.bets and batch.bets.take([row]))
