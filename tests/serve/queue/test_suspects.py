"""Requests that an upstream does not take: found in a few questions, and paid for by whoever sends them."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from queen.errors import UpstreamError
from queen.serve.batcher import Batcher
from queen.serve.queue.suspects import MOST_QUESTIONS, SUSPECTED, Suspects, halves
from queen.serve.types import Caller, Query, ServeError
from tests.support.serving import digits, honest, small_guard

POISON = 0.515625


def poisoned(count: int = 1) -> torch.Tensor:
    x = digits()[:count].clone()
    x[:, 0, 0, 0] = POISON
    return x


class Picky:
    """A guard whose network lies on a server that takes no question with poison in it."""

    def __init__(self) -> None:
        self.guard, self.questions = small_guard(), list[torch.Tensor]()
        self.measure, self.guard.measure = self.guard.measure, self.ask

    def ask(self, x: torch.Tensor):
        self.questions.append(x)
        if (x[:, 0, 0, 0] == POISON).any():
            raise UpstreamError("it does not take this", "rejected")
        return self.measure(x)

    def rounds(self, *rounds: list[tuple[str, torch.Tensor]]) -> list[list[object]]:
        """What became of every request, all of a round submitted at once."""

        async def ask() -> list[list[object]]:
            batcher = Batcher(self.guard)
            batcher.start()
            found = []
            for requests in rounds:
                waiting = [batcher.submit(Query(x, len(x)), Caller(client)) for client, x in requests]
                found.append(await asyncio.gather(*waiting, return_exceptions=True))
            await asyncio.to_thread(batcher.close)
            return found

        return asyncio.run(ask())


@pytest.fixture
def picky() -> Picky:
    return Picky()


def is_503(answer: object) -> bool:
    return isinstance(answer, ServeError) and answer.status == 503


def test_one_request_at_fault_is_the_only_one_that_fails(picky):
    good = digits()[:2]
    [answers] = picky.rounds([("a", good), ("a", poisoned()), ("a", good), ("b", good)])
    assert [is_503(answer) for answer in answers] == [False, True, False, False]
    assert np.allclose(answers[3], honest(good).numpy(), atol=1e-5)
    assert picky.guard.ledger.standing("a").queries == 4


def test_a_flood_of_them_takes_a_bounded_number_of_questions_and_the_others_one(picky):
    good = digits()[:2]
    flood = [("mallory", poisoned()) for _ in range(16)]
    first, second = picky.rounds([*flood, ("alice", good)], [*flood, ("alice", good), ("bert", good)])
    assert all(map(is_503, first[:16]))
    assert all(map(is_503, second[:16]))
    assert not any(map(is_503, [first[16], *second[16:]]))
    assert "mallory" not in picky.guard.ledger.clients()
    batches = 3  # a round may be taken in two, since the first request does not wait for the others
    assert len(picky.questions) <= batches * (2 * 5 + MOST_QUESTIONS + 1)
    for question in picky.questions[-MOST_QUESTIONS:]:  # nobody else waits for the search
        assert (question[:, 0, 0, 0] == POISON).all()


def test_suspicion_ends():
    now = [0.0]
    suspects = Suspects(lambda: now[0])
    request = Pending("a")
    suspects.add(request, UpstreamError("no", "rejected"))
    assert suspects.divide([request, Pending("b")])[1] == [request]
    now[0] = SUSPECTED - 0.1
    assert suspects.divide([request])[1] == [request]
    now[0] = SUSPECTED
    assert suspects.divide([request]) == ([request], [])


def test_only_suspects_run_out_of_questions():
    suspects = Suspects(lambda: 0.0)
    suspects.add(Pending("a"), UpstreamError("no", "unusable"))
    suspects.divide([])
    assert [suspects.may_ask([Pending("a")]) for _ in range(MOST_QUESTIONS + 1)] == [True] * MOST_QUESTIONS + [False]
    assert suspects.may_ask([Pending("a"), Pending("b")])
    suspects.divide([])  # the next batch
    assert suspects.may_ask([Pending("a")])


def test_halves_keep_a_clients_requests_together_and_in_order():
    requests = [Pending(name) for name in "abacabd"]
    first, second = halves(requests)
    assert "".join(one.caller.client for one in first + second) == "aaabbcd"
    assert [one for one in first + second if one.caller.client == "a"] == [requests[i] for i in (0, 2, 4)]
    assert abs(len(first) - len(second)) <= 1


class Pending:
    """As much of a request as `Suspects` looks at."""

    def __init__(self, client: str) -> None:
        self.caller = Caller(client)
