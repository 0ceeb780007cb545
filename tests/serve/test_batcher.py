"""Batches of many clients: the same answers as one by one, in order, and everybody pays for its own faults."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from queen.errors import LedgerError, ModelError
from queen.guard import Guard
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


def test_what_the_models_library_says_of_an_input_is_not_for_clients(monkeypatch):
    """It may name layers, as ONNX Runtime and torch do."""
    guard = small_guard(policy="paper")
    split = guard.bundle.split

    def failing(x):
        raise RuntimeError("node '/bert/embeddings/Gather' does not take 50")

    monkeypatch.setattr(type(split), "__call__", lambda self, x: failing(x))
    [error] = run(guard, [("a", digits()[:1])])
    assert (error.status, error.message) == (400, "the model cannot run on this input")
    with pytest.raises(ModelError, match="Gather"):
        guard.answer(digits()[:1], client="a")


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


@asynccontextmanager
async def stuck(guard, **options):
    """A batcher whose model waits for an event, with one row of a client `first` at the model."""
    free, measure, started = threading.Event(), guard.measure, threading.Event()

    def wait_and_measure(x):
        started.set()
        free.wait(60)
        return measure(x)

    guard.measure = wait_and_measure
    async with batching(guard, **options) as batcher:
        first = asyncio.ensure_future(batcher.submit(query(digits()[:1]), Caller("first")))
        await asyncio.to_thread(started.wait, 60)
        try:
            yield batcher, free
        finally:
            free.set()
            await first


async def submit_all(batcher, requests):
    """Submit [(client, rows)] in this order; the tasks."""
    tasks = [asyncio.ensure_future(batcher.submit(query(digits()[:rows]), Caller(client))) for client, rows in requests]
    await asyncio.sleep(0)
    return tasks


def clients_of(outcomes):
    return [sorted({request.caller.client for request in outcome.requests}) for outcome in outcomes]


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_large_requests_are_answered_in_parts_as_if_they_were_whole(policy):
    limits = Limits(radius=0.2, threshold=0.02, extra_answers=400)
    alone, together = (small_guard(policy=policy, limits=limits, on_alarm="decoy", on_spent="decoy") for _ in range(2))
    images = torch.cat([digits()[:200], noise(50)])
    requests = [("a", images[:150]), ("b", images[:7]), ("a", images[150:]), ("b", images[100:200])]
    expected = [alone.answer(x, client=client).probabilities.numpy() for client, x in requests]
    outcomes: list[BatchOutcome] = []
    got = run(together, requests, max_batch=32, max_turn=8, on_batch=outcomes.append)
    for one, other in zip(expected, got, strict=True):
        assert np.allclose(one, other, atol=1e-5)
    assert max(sum(request.rows for request in outcome.requests) for outcome in outcomes) <= 32
    for client in ("a", "b"):
        a, b = alone.ledger.standing(client), together.ledger.standing(client)
        assert (a.queries, a.extra_answers, a.alarmed) == (b.queries, b.extra_answers, b.alarmed)


def test_a_small_request_does_not_wait_for_a_large_one():
    outcomes: list[BatchOutcome] = []
    guard = small_guard()

    async def ask():
        async with stuck(guard, max_batch=8, max_turn=8, on_batch=outcomes.append) as (batcher, free):
            tasks = await submit_all(batcher, [("flood", 200), ("polite", 1)])
            free.set()
            await asyncio.gather(*tasks)

    asyncio.run(ask())
    order = clients_of(outcomes)
    assert "polite" in [client for clients in order[1:4] for client in clients]
    assert len(order) > 20


def test_while_others_ask_a_batch_has_one_turn_of_each_client():
    outcomes: list[BatchOutcome] = []
    guard = small_guard()

    async def ask():
        async with stuck(guard, max_batch=64, max_turn=8, on_batch=outcomes.append) as (batcher, free):
            tasks = await submit_all(batcher, [("flood", 64), ("other", 3)])
            free.set()
            await asyncio.gather(*tasks)

    asyncio.run(ask())
    rows = [sum(r.rows for r in outcome.requests if r.caller.client == "flood") for outcome in outcomes]
    assert max(rows) == 8
    assert guard.ledger.standing("flood").queries == 64


def test_a_fault_anywhere_in_a_large_request_is_said_before_anything_is_recorded():
    guard = small_guard()
    bad = digits()[:100].clone()
    bad[90] = 1e6
    wrong, right = run(guard, [("a", bad), ("b", digits()[:1])], max_turn=8)
    assert (wrong.status, isinstance(right, np.ndarray)) == (400, True)
    assert list(guard.ledger.clients()) == ["b"]


def test_what_is_left_of_a_failed_request_is_dropped(monkeypatch):
    guard, judge_rows = small_guard(), Guard.judge_rows
    calls = []

    def judge_three(self, *args):
        calls.append(args)
        if len(calls) > 3:
            raise LedgerError("disk full")
        return judge_rows(self, *args)

    monkeypatch.setattr(Guard, "judge_rows", judge_three)
    (failed,) = run(guard, [("a", digits()[:200])], max_batch=8, max_turn=8)
    assert failed.status == 503
    assert guard.ledger.standing("a").queries == 3 * 8
    assert len(calls) < 10


def test_refused_rows_of_a_large_request_are_reported_as_if_it_had_come_in_one_piece():
    whole, parts = (
        run(small_guard(limits=TIGHT), [("a", digits()[:200])], max_batch=size, max_turn=size)[0] for size in (256, 8)
    )
    assert (parts.status, parts.rows, parts.message) == (429, whole.rows, whole.message)
    assert 0 < len(parts.rows) < 200
    assert parts.rows[0] >= 8  # not in the first part


def test_what_is_left_of_a_request_is_dropped_when_its_client_goes_away():
    guard = small_guard()

    async def ask():
        async with stuck(guard, max_batch=8, max_turn=8) as (batcher, free):
            [gone] = await submit_all(batcher, [("gone", 100)])
            gone.cancel()
            await asyncio.sleep(0)
            free.set()
            await batcher.submit(query(digits()[:1]), Caller("next"))

    asyncio.run(ask())
    assert sorted(guard.ledger.clients()) == ["first", "next"]


def test_a_client_over_its_own_limit_is_refused_alone():
    guard = small_guard()

    async def ask():
        async with stuck(guard, max_client_queue=10) as (batcher, free):
            tasks = await submit_all(batcher, [("flood", 6), ("flood", 6), ("flood", 1), ("polite", 1)])
            with pytest.raises(ServeError, match="limit for one client is 10"):
                batcher.queue.check_room("flood")
            batcher.queue.check_room("polite")
            free.set()
            return await asyncio.gather(*tasks, return_exceptions=True)

    *answered, refused, polite = asyncio.run(ask())
    assert [len(answer) for answer in answered] == [6, 6]
    assert (refused.status, refused.retry_after) == (503, 1)
    assert "this client has 12 rows waiting" in refused.message
    assert len(polite) == 1


def test_room_is_made_at_the_expense_of_the_longest_line():
    guard = small_guard()

    async def ask():
        async with stuck(guard, max_queue=20) as (batcher, free):
            tasks = await submit_all(batcher, [("flood", 10), ("flood", 8), ("polite", 1), ("polite", 2)])
            assert batcher.waiting <= 20
            free.set()
            return await asyncio.gather(*tasks, return_exceptions=True)

    first, second, *polite = asyncio.run(ask())
    assert len(first) == 10
    assert (second.status, second.retry_after) == (503, 1)
    assert [len(answer) for answer in polite] == [1, 2]


@pytest.mark.parametrize("on_alarm", ["refuse", "label-only", "decoy", "reverse", "observe"])
def test_accused_clients_lose_first_unless_that_would_tell_them(on_alarm):
    guard = small_guard(on_alarm=on_alarm)

    async def ask():
        async with batching(guard) as batcher:
            for x in noise(150).split(10):
                await asyncio.gather(batcher.submit(query(x), Caller("thief")), return_exceptions=True)
        assert guard.ledger.standing("thief").alarmed
        accused = batcher.queue._accused
        async with stuck(guard, max_queue=30) as (batcher, free):
            batcher.queue._accused = accused
            tasks = await submit_all(batcher, [("thief", 8), ("honest", 20), ("polite", 8)])
            free.set()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            return [getattr(answer, "status", 200) == 503 for answer in answers]

    is_told = on_alarm in ("refuse", "label-only")
    assert asyncio.run(ask()) == [is_told, not is_told, False]


def test_a_pardoned_client_is_served_like_others_again():
    guard = small_guard(on_alarm="refuse")

    async def ask():
        async with batching(guard) as batcher:
            for x in noise(150).split(10):
                await asyncio.gather(batcher.submit(query(x), Caller("thief")), return_exceptions=True)
            assert list(batcher.queue._accused) == ["thief"]
            guard.ledger.pardon("thief", "boss")
            await batcher.submit(query(digits()[:1]), Caller("thief"))
            assert not batcher.queue._accused

    asyncio.run(ask())


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
