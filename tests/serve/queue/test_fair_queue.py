"""Clients in turn by rows: whatever comes in whatever order, nobody starves, and the longest line pays for room."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen.serve.queue.fair_queue import SPARE, FairQueue

TURN, LIMIT = 8, 20
NAMES = st.sampled_from("abcdef")
ROWS = st.lists(st.integers(1, TURN), min_size=1, max_size=4)
PUSH = st.tuples(st.just("push"), NAMES, ROWS)
OTHERS = st.one_of(
    st.tuples(st.just("pop"), st.just(""), st.just(())),
    st.tuples(st.just("shed"), st.just(""), st.just(())),
    st.tuples(st.sampled_from(["accuse", "pardon"]), NAMES, st.just(())),
)


@dataclass(frozen=True)
class Piece:
    client: str
    request: int
    number: int
    rows: int


class Model:
    """The same queue as plain lists, with what must hold of every step."""

    def __init__(self) -> None:
        self.queue: FairQueue[Piece] = FairQueue(turn=TURN, max_client_rows=LIMIT)
        self.lines: dict[str, list[Piece]] = defaultdict(list)
        self.accused: set[str] = set()
        self.requests = 0
        self.passed: dict[str, Counter[str]] = {}  # by client: rows of others since its first piece came to the front

    def rows(self, client: str) -> int:
        return sum(piece.rows for piece in self.lines[client])

    def waiting(self) -> list[str]:
        return [client for client, line in self.lines.items() if line]

    def push(self, client: str, rows: list[int]) -> None:
        assert self.queue.has_room(client) == (self.rows(client) < LIMIT)
        pieces = [Piece(client, self.requests, number, count) for number, count in enumerate(rows)]
        self.requests += 1
        self.queue.push(client, pieces, accused=client in self.accused)
        if not self.lines[client]:
            self.passed[client] = Counter()
        self.lines[client] += pieces

    def pop(self) -> None:
        if not self.waiting():
            assert self.queue.first() is None
            with pytest.raises(IndexError):
                self.queue.pop()
            return
        first = self.queue.first()
        piece = self.queue.pop()
        assert piece is first
        assert self.lines[piece.client].pop(0) == piece  # the order of arrival
        for client in self.waiting():
            self.passed[client][piece.client] += piece.rows
        self.passed[piece.client] = Counter()
        self.check_nobody_starves()

    def check_nobody_starves(self) -> None:
        """Others have less than two turns before it is a client's turn; the accused have them together."""
        for client in set(self.waiting()) - self.accused:
            passed = self.passed[client]
            assert all(rows < 2 * TURN for rows in passed.values())
            assert sum(rows for other, rows in passed.items() if other in self.accused) < 2 * TURN

    def shed(self) -> None:
        waiting = self.waiting()
        removed = self.queue.shed()
        assert bool(removed) == bool(waiting)
        if not removed:
            return
        client = removed[0].client
        if accused := self.accused & set(waiting):
            assert client in accused
        rivals = [other for other in waiting if (other in self.accused) == (client in self.accused)]
        assert self.rows(client) == max(map(self.rows, rivals))
        newest = self.lines[client][-1].request
        assert removed == [piece for piece in self.lines[client] if piece.request == newest]
        self.lines[client] = [piece for piece in self.lines[client] if piece.request != newest]

    def accuse(self, client: str, accused: bool) -> None:
        (self.accused.add if accused else self.accused.discard)(client)
        self.queue.set_accused(client, accused)
        self.passed = {waiting: Counter() for waiting in self.passed}

    def step(self, order: str, client: str, rows: list[int]) -> None:
        if order == "push":
            self.push(client, rows)
        elif order == "pop":
            self.pop()
        elif order == "shed":
            self.shed()
        else:
            self.accuse(client, order == "accuse")
        assert self.queue.rows == sum(map(self.rows, self.lines))
        assert all(self.queue.rows_of(client) == self.rows(client) for client in self.lines)
        assert all(0 <= self.queue.rows_ahead(client) <= self.queue.rows for client in self.lines)


@given(st.lists(st.one_of(PUSH, OTHERS), max_size=60))
def test_whatever_happens_the_order_is_kept_nobody_starves_and_rows_are_exact(steps):
    model = Model()
    for step in steps:
        model.step(*step)
    while model.waiting():
        model.step("pop", "", [])
    assert model.queue.rows == 0
    assert not model.queue._lines
    assert not model.queue._ring
    assert [lengths.longest() for lengths in model.queue._lengths.values()] == [None, None]


@given(st.dictionaries(NAMES, st.lists(st.integers(1, TURN), min_size=30, max_size=30), min_size=2))
def test_clients_who_always_wait_get_the_same_number_of_rows(sizes):
    queue: FairQueue[Piece] = FairQueue(turn=TURN, max_client_rows=LIMIT)
    for client, rows in sizes.items():
        for number, count in enumerate(rows):
            queue.push(client, [Piece(client, number, 0, count)])
    served: Counter[str] = Counter()
    while all(queue.rows_of(client) for client in sizes):
        piece = queue.pop()
        served[piece.client] += piece.rows
        shares = [served[client] for client in sizes]
        assert max(shares) - min(shares) <= 3 * TURN


def test_many_accused_have_the_share_of_one():
    queue: FairQueue[Piece] = FairQueue(turn=TURN, max_client_rows=1000)
    for number in range(50):
        for client in (*(f"accused {i}" for i in range(10)), "honest", "other"):
            queue.push(client, [Piece(client, number, 0, 4)], accused=client.startswith("accused"))
    served = Counter(queue.pop().client.split()[0] for _ in range(60))
    assert served == {"accused": 20, "honest": 20, "other": 20}


def test_a_small_request_waits_for_one_turn_of_a_flood():
    queue: FairQueue[Piece] = FairQueue(turn=TURN, max_client_rows=LIMIT)
    queue.push("flood", [Piece("flood", 0, number, TURN) for number in range(100)])
    queue.pop()
    queue.push("polite", [Piece("polite", 1, 0, 1)])
    assert queue.rows_ahead("somebody else") == 2 * TURN
    assert {queue.pop().client for _ in range(2)} == {"flood", "polite"}


def test_nobody_loses_a_request_to_a_longer_line():
    queue: FairQueue[Piece] = FairQueue(turn=16, max_client_rows=1024)
    for client, rows in (("a", 1020), ("b", 1021), ("c", 1020), ("polite", 512)):
        queue.push(client, [Piece(client, 0, 0, rows)])
    assert {piece.client for piece in queue.shed()} == {"b"}
    assert {piece.client for _ in range(2) for piece in queue.shed()} == {"a", "c"}
    assert queue.rows_of("polite") == 512


def test_lines_that_come_and_go_leave_nothing_behind():
    queue: FairQueue[Piece] = FairQueue(turn=TURN, max_client_rows=LIMIT)
    for number in range(1000):
        queue.push(f"client {number}", [Piece("", number, 0, 1)])
        queue.pop()
    assert all(len(lengths._heap) <= SPARE + 1 for lengths in queue._lengths.values())
