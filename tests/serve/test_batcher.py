"""Batches of many clients: the same answers as one by one, in order, and everybody pays for its own faults."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from queen.errors import LedgerError
from queen.ledger import MemoryLedger
from queen.options import Group, Limits
from queen.policy import POLICIES
from queen.serve.batcher import Batcher, BatchOutcome
from queen.serve.types import Caller, Query, ServeError
from tests.support.serving import WIDE, digits, honest, noise, small_guard

TIGHT = Limits(radius=0.3, threshold=0.1, extra_answers=5)
POLICY_NAMES = sorted(POLICIES)


def query(x: torch.Tensor) -> Query:
    return Query(x, len(x))


@asynccontextmanager
async def batching(guard, **options):
    batcher = Batcher(guard, **options)
    batcher.start()
    try:
        yield batcher
    finally:
        await asyncio.to_thread(batcher.close)


def run(guard, requests, **options):
    """Answers (or errors) to [(client, x)], all submitted at once."""

    async def ask():
        async with batching(guard, **options) as batcher:
            waiting = [asyncio.ensure_future(batcher.submit(query(x), Caller(client))) for client, x in requests]
            return await asyncio.gather(*waiting, return_exceptions=True)

    return asyncio.run(ask())


@pytest.mark.parametrize("policy", POLICY_NAMES)
@pytest.mark.parametrize("uniform", [False, True])
def test_mixed_batches_answer_as_one_by_one(policy, uniform):
    limits = Limits(radius=0.2, threshold=0.02, extra_answers=40)
    alone, together = (small_guard(policy=policy, limits=limits, on_alarm="decoy", on_spent="decoy") for _ in range(2))
    images = torch.cat([digits()[:60], noise(30)])
    requests = [(f"c{i % 5}", images[3 * i : 3 * i + 3]) for i in range(30)]
    expected = [alone.answer(x, client=client).probabilities.numpy() for client, x in requests]
    got = run(together, requests, uniform=uniform, max_batch=16)
    for one, other in zip(expected, got, strict=True):
        assert np.allclose(one, other, atol=1e-5)
    for client in sorted({client for client, _ in requests}):
        a, b = alone.ledger.standing(client), together.ledger.standing(client)
        assert (a.queries, a.extra_answers, a.alarmed) == (b.queries, b.extra_answers, b.alarmed)
        assert a.coverage == pytest.approx(
            b.coverage, rel=1e-4
        )  # a network computes a little differently in each batch


def test_rows_of_one_client_are_judged_in_the_order_of_arrival():
    outcomes: list[BatchOutcome] = []
    guard = small_guard(policy="paper", limits=Limits(radius=0.2, threshold=0.02))
    images = digits()[:120]
    run(guard, [("a", image[None]) for image in images], on_batch=outcomes.append)
    letters = "".join(outcome.judgement.letters for outcome in outcomes)
    again = small_guard(policy="paper", limits=Limits(radius=0.2, threshold=0.02))
    assert letters == "".join(v.value for v in again.answer(images, client="a").verdicts)
    assert len(set(letters)) == 4
    assert len(outcomes) < 120  # or nothing was batched


@pytest.mark.parametrize(
    "bad",
    [
        torch.full((1, 1, 8, 8), torch.nan),
        torch.full((1, 1, 8, 8), 1e6),
        torch.zeros(1, 8, 8),
        torch.zeros(1, 1, 8, 9),
        torch.zeros(0, 1, 8, 8),
        torch.zeros(2, 1, 8, 8, dtype=torch.int64),
    ],
)
def test_a_bad_request_fails_alone_and_leaves_no_trace(bad):
    guard = small_guard()
    good = digits()[:2]
    first, wrong, last = run(guard, [("a", good), ("b", bad), ("c", good)])
    assert isinstance(wrong, ServeError)
    assert wrong.status == 400
    assert np.allclose(first, honest(good).numpy(), atol=1e-5)
    assert np.allclose(last, honest(good).numpy(), atol=1e-5)
    assert sorted(guard.ledger.clients()) == ["a", "c"]


def test_a_request_with_a_refused_row_is_refused_whole_and_stays_recorded():
    guard = small_guard(limits=TIGHT)
    found = run(guard, [("a", digits()[:30]), ("b", digits()[:1])])
    assert isinstance(found[0], ServeError)
    assert (found[0].status, found[0].retry_after) == (429, None)  # nothing renews by itself
    assert "a" not in found[0].message.split("'")  # says nothing of verdicts or names
    assert isinstance(found[1], np.ndarray)
    assert guard.ledger.standing("a").queries == 30
    answered = [row for row in range(30) if row not in found[0].rows]
    before = guard.ledger.standing("a")
    (again,) = run(guard, [("a", digits()[answered])])
    assert np.allclose(again, honest(digits()[answered]).numpy(), atol=1e-5)
    assert guard.ledger.standing("a") == replace(before, queries=30 + len(answered))  # and costs nothing


def test_refused_rows_are_marked_where_a_request_may_be_answered_in_part():
    whole, part = (small_guard(limits=TIGHT) for _ in range(2))
    (error,) = run(whole, [("a", digits()[:30])])
    assert 0 < len(error.rows) < 30

    async def ask():
        async with batching(part) as batcher:
            return await batcher.submit(replace(query(digits()[:30]), partial=True), Caller("a"))

    answer = asyncio.run(ask())
    assert np.flatnonzero(np.isnan(answer).all(1)).tolist() == list(error.rows)
    rest = [row for row in range(30) if row not in error.rows]
    assert np.allclose(answer[rest], honest(digits()[rest]).numpy(), atol=1e-5)
    assert part.ledger.standing("a") == whole.ledger.standing("a")


def test_an_answer_that_is_no_number_is_not_sent(monkeypatch):
    guard = small_guard()
    images = digits()[:3]
    reply = guard.reply

    def broken(seen, judgement, clients, *, uniform):
        told = reply(seen, judgement, clients, uniform=uniform)
        told.probabilities[[client == "b" for client in clients]] = torch.nan
        return told

    monkeypatch.setattr(guard, "reply", broken)
    first, wrong, last = run(guard, [("a", images), ("b", images[:1]), ("c", images)])
    assert isinstance(wrong, ServeError)
    assert wrong.status == 500
    assert np.allclose(first, honest(images).numpy(), atol=1e-5)
    assert np.allclose(last, honest(images).numpy(), atol=1e-5)


def test_only_the_model_has_several_cores(monkeypatch):
    guard = small_guard()
    used = {}
    for name in ("measure", "reply"):
        method = getattr(guard, name)

        def noting(*args, name=name, method=method, **options):
            used[name] = torch.get_num_threads()
            return method(*args, **options)

        monkeypatch.setattr(guard, name, noting)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        run(guard, [("a", digits()[:2])])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert used == {"measure": 2, "reply": 1}


class Failing(MemoryLedger):
    """Fails while told to."""

    broken = False

    def judge_rows(self, rows):
        if self.broken:
            raise LedgerError("disk full")
        return super().judge_rows(rows)


def test_without_a_ledger_nobody_is_answered_and_it_recovers_alone():
    seen: list[bool] = []
    guard = small_guard()
    guard.ledger = Failing()

    async def ask():
        async with batching(guard, on_ledger=lambda error: seen.append(error is None)) as batcher:
            guard.ledger.broken = True
            with pytest.raises(ServeError) as error:
                await batcher.submit(query(digits()[:1]), Caller("a"))
            guard.ledger.broken = False
            return error.value, await batcher.submit(query(digits()[:1]), Caller("a"))

    error, answer = asyncio.run(ask())
    assert (error.status, error.retry_after) == (503, 1)
    assert "disk full" not in error.message
    assert np.allclose(answer, honest(digits()[:1]).numpy(), atol=1e-5)
    assert seen == [False, True]


def test_overload_is_answered_at_once():
    guard = small_guard()
    blocked = threading.Event()
    measure = guard.measure

    def slow(x):
        blocked.wait(60)
        return measure(x)

    guard.measure = slow

    async def ask():
        async with batching(guard, max_queue=10, max_batch=4) as batcher:
            first = [asyncio.ensure_future(batcher.submit(query(digits()[:1]), Caller("a"))) for _ in range(30)]
            await asyncio.sleep(0.2)
            refused = [task for task in first if task.done()]
            assert batcher.waiting <= 10
            blocked.set()
            await asyncio.gather(*first, return_exceptions=True)
            return [task.exception() for task in refused]

    errors = asyncio.run(ask())
    assert len(errors) >= 15
    assert {error.status for error in errors} == {503}
    assert guard.ledger.standing("a").queries == 30 - len(errors)


def test_a_client_seen_with_two_sets_of_groups_is_judged_with_each():
    group = Group(limits=WIDE)
    guard = small_guard(groups={"net": group})

    async def ask():
        async with batching(guard) as batcher:
            callers = [Caller("a", (f"net:{i % 2}",)) for i in range(10)]
            await asyncio.gather(*(batcher.submit(query(digits()[i : i + 1]), c) for i, c in enumerate(callers)))

    asyncio.run(ask())
    assert guard.ledger.standing("a").queries == 10
    assert [guard.ledger.standing(f"net:{i}", group=True).queries for i in range(2)] == [5, 5]


def test_closing_answers_what_waits_and_refuses_the_rest():
    guard = small_guard()

    async def ask():
        batcher = Batcher(guard)
        waiting = [asyncio.ensure_future(batcher.submit(query(digits()[:1]), Caller("a"))) for _ in range(5)]
        await asyncio.sleep(0)
        batcher.start()
        await asyncio.to_thread(batcher.close)
        with pytest.raises(ServeError, match="shutting down"):
            await batcher.submit(query(digits()[:1]), Caller("a"))
        return await asyncio.gather(*waiting)

    assert len(asyncio.run(ask())) == 5
