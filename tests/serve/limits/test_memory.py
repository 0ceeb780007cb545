"""The account of bytes in flight is exact, whatever happens, and nobody who waits is forgotten."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from queen.serve.limits.bodies import memory_of_body, memory_of_query, memory_to_parse
from queen.serve.limits.memory import MemoryAccount, Reservation
from queen.serve.types import AnswerFormat, ModelSpec, Query, ServeError, TensorSpec

CLIENTS = ("alice", "bob", "carol")
MOST, SHARE = 100, 60
STEPS = st.lists(
    st.tuples(st.sampled_from(["reserve", "resize", "close"]), st.sampled_from(CLIENTS), st.integers(0, 120)),
    max_size=60,
)


def check(account: MemoryAccount, open_ones: list[Reservation]) -> None:
    """The account says what the open reservations add up to, and is within its limits."""
    expected: Counter[str] = Counter()
    for reservation in open_ones:
        expected[reservation.client] += reservation.size
    assert account.by_client == {client: size for client, size in expected.items() if size}
    assert account.total == sum(expected.values()) <= MOST
    assert max(expected.values(), default=0) <= SHARE


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_the_account_is_what_open_reservations_add_up_to(steps):
    refused: list[str] = []
    account, open_ones = (
        MemoryAccount(MOST, SHARE, on_refusal=lambda client, largest: refused.append(client)),
        list[Reservation](),
    )
    for action, client, size in steps:
        before, own = account.total, account.by_client.get(client, 0)
        if action == "reserve":
            fits = before + size <= MOST and own + size <= SHARE
            if fits or size == 0:
                open_ones.append(account.reserve(client, size))
            else:
                with pytest.raises(ServeError) as told:
                    account.reserve(client, size)
                assert (told.value.status, told.value.retry_after, refused.pop()) == (503, 1, client)
        elif open_ones:
            reservation = open_ones[size % len(open_ones)]
            own, more = account.by_client.get(reservation.client, 0), size - reservation.size
            if action == "resize":
                fits = more <= 0 or (before + more <= MOST and own + more <= SHARE)
                try:
                    reservation.resize(size)
                    assert fits
                except ServeError:
                    assert not fits
                    assert account.total == before
            else:
                reservation.close()
                reservation.close()  # a second time changes nothing
                open_ones.remove(reservation)
        check(account, open_ones)
    for reservation in open_ones:
        reservation.close()
    assert (account.total, account.by_client) == (0, {})


def test_a_reservation_that_was_given_back_cannot_grow():
    reservation = MemoryAccount(MOST, SHARE).reserve("alice", 5)
    reservation.close()
    with pytest.raises(RuntimeError):
        reservation.resize(1)


def test_a_reservation_ends_with_its_block_whatever_happens():
    account = MemoryAccount(MOST, SHARE)
    for error in (ServeError(400, "no"), asyncio.CancelledError(), ConnectionResetError(), KeyboardInterrupt()):
        with pytest.raises(type(error)), account.reserve("alice", 50):
            raise error
    assert account.total == 0


TASKS = st.lists(
    st.tuples(st.sampled_from(CLIENTS), st.integers(1, SHARE), st.integers(0, 4), st.booleans(), st.integers(0, 6)),
    max_size=25,
)


@settings(max_examples=100, deadline=None)
@given(TASKS)
def test_all_who_wait_get_their_bytes_in_the_end_and_the_cancelled_leave_none(tasks):
    async def main() -> None:
        account, served = MemoryAccount(MOST, SHARE), set[int]()

        async def work(number: int, client: str, size: int, turns: int) -> None:
            with await account.wait(client, size):
                assert size <= account.by_client[client] <= SHARE
                assert sum(account.by_client.values()) == account.total <= MOST
                for _ in range(turns):
                    await asyncio.sleep(0)
            served.add(number)

        running = [asyncio.create_task(work(i, *task[:3])) for i, task in enumerate(tasks)]

        async def cancel(task: asyncio.Task[None], turns: int) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()

        cancelled = {i for i, task in enumerate(tasks) if task[3]}
        await asyncio.gather(*(cancel(running[i], tasks[i][4]) for i in cancelled))
        async with asyncio.timeout(60):
            results = await asyncio.gather(*running, return_exceptions=True)
        assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}
        assert served >= set(range(len(tasks))) - cancelled
        assert (account.total, account.by_client, account._queues) == (0, {}, {})

    asyncio.run(main())


def order(*waits: tuple[str, int], first: int, most: int = MOST, share: int = MOST) -> list[tuple[str, int]]:
    """In which order those who wait get their bytes, when one who has `first` of them goes."""

    async def main() -> list[tuple[str, int]]:
        account, done = MemoryAccount(most, share), list[tuple[str, int]]()

        async def work(client: str, size: int) -> None:
            with await account.wait(client, size):
                done.append((client, size))
                await asyncio.sleep(0)

        holder = account.reserve("first", first)
        running = [asyncio.create_task(work(*one)) for one in waits]
        await asyncio.sleep(0)
        holder.close()
        await asyncio.gather(*running)
        return done

    return asyncio.run(main())


def test_clients_take_turns():
    waits = [("alice", 90 + i) for i in range(3)] + [("bob", 80), ("carol", 81)]
    assert order(*waits, first=MOST) == [("alice", 90), ("bob", 80), ("carol", 81), ("alice", 91), ("alice", 92)]


def test_small_ones_do_not_starve_a_large_one():
    assert order(("alice", 100), ("bob", 1), ("carol", 1), first=50) == [("alice", 100), ("bob", 1), ("carol", 1)]


def test_who_has_no_share_left_keeps_nobody_waiting():
    done = order(("first", 60), ("bob", 20), first=60, share=60)
    assert done == [("bob", 20), ("first", 60)]


def test_those_who_wait_leave_something_to_those_who_cannot():
    async def main() -> None:
        account = MemoryAccount(100, 100, spare=10)
        assert account.largest == 90
        first = await account.wait("alice", 90)
        second = asyncio.create_task(account.wait("alice", 1))
        await asyncio.sleep(0)
        third = account.reserve("alice", 10)
        third.close()
        assert not second.done()
        first.resize(89)
        (await second).close()
        first.close()
        assert account.total == 0

    asyncio.run(main())


def test_one_that_has_its_turn_while_it_is_cancelled_leaves_nothing():
    async def main() -> None:
        account = MemoryAccount(10, 10)
        holder = account.reserve("bob", 10)
        waiting = asyncio.create_task(account.wait("alice", 5))
        await asyncio.sleep(0)
        holder.close()  # which gives alice her turn
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (account.total, account._queues) == (0, {})

    asyncio.run(main())


def test_what_is_reserved_is_more_than_the_body_and_grows_with_it():
    sizes = [0, 1, 1000, 1 << 17, 1 << 20, 1 << 24]
    assert [memory_of_body(size) >= size for size in sizes] == [True] * 6
    assert sorted(map(memory_of_body, sizes)) == list(map(memory_of_body, sizes))
    assert memory_to_parse(1000, None, is_packed=False, most=1 << 20) == 32_000
    assert memory_to_parse(1000, 100, is_packed=False, most=1 << 20) == 32 * 100 + 8 * 900
    assert memory_to_parse(10, 1000, is_packed=False, most=1 << 20) == 320
    assert memory_to_parse(10, None, is_packed=True, most=1 << 20) == 1 << 20
    assert memory_to_parse(1 << 20, None, is_packed=False, most=1 << 20) == 1 << 20


def test_a_parsed_request_takes_its_tensors_and_its_answer():
    spec = ModelSpec("m", "1", (TensorSpec("input", "FP32", (-1, 3)),), 10, ("cat", "büffel", *"abcdefgh"))
    plain, labels = (Query(torch.zeros(4, 3), 4, "", AnswerFormat(classification=k)) for k in (0, 5))
    assert memory_of_query(plain, spec) == 4 * 3 * 4 + 4 * 10 * 40
    assert memory_of_query(labels, spec) == memory_of_query(plain, spec) + 4 * 5 * len("büffel".encode())


class Arriving:
    """A request that arrives: what it has reserved ends when it is evicted, at once or only `later`."""

    def __init__(self, account: MemoryAccount, client: str, *, later: bool) -> None:
        self.reservation, self.later = account.reserve(client), later
        self.block = self.reservation.arriving(self.evict)
        self.block.__enter__()

    def evict(self) -> None:
        if self.later:
            asyncio.get_running_loop().call_soon(self.close)
        else:
            self.reservation.resize(0)

    def close(self) -> None:
        self.block.__exit__(None, None, None)
        self.reservation.close()


ARRIVALS = st.lists(
    st.tuples(st.sampled_from(["claim", "claim", "arrived", "close"]), st.integers(0, 7), st.integers(1, SHARE)),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(CLIENTS), st.booleans()), min_size=8, max_size=8), ARRIVALS)
def test_nobody_is_refused_while_somebody_has_more_in_bodies_that_still_arrive(requests, steps):
    async def main() -> None:
        named: list[str] = []
        account = MemoryAccount(MOST, SHARE, on_refusal=lambda client, largest: named.append(largest))
        arriving = [Arriving(account, client, later=later) for client, later in requests]
        whole: list[Reservation] = []
        for action, number, size in steps:
            request = arriving[number]
            reservation, client = request.reservation, request.reservation.client
            before, is_gone = account.by_client, reservation.is_evicted
            if action == "claim" and not reservation._is_closed:
                others: Counter[str] = Counter()
                for other in arriving:
                    if other.reservation not in whole:
                        others[other.reservation.client] += other.reservation.size
                own = before.get(client, 0) - reservation.size + size
                try:
                    await reservation.claim(size)
                    assert reservation.size == size
                except ServeError:
                    assert is_gone or own > SHARE or all(held <= own for held in others.values())
                    assert is_gone or before[named[-1]] == max(before.values()) or len(named) > 1
                for other in arriving:
                    if other.reservation.is_evicted and other.reservation.client == client:
                        assert other.reservation is not reservation or is_gone
            elif action == "arrived" and reservation not in whole and not is_gone:
                request.block.__exit__(None, None, None)
                whole.append(reservation)
            elif action == "close":
                request.close()
                arriving[number] = Arriving(account, client, later=request.later)
            assert account.total == sum(account.by_client.values()) <= MOST
            assert max(account.by_client.values(), default=0) <= SHARE
            assert not any(one.is_evicted for one in whole)  # what is whole is never thrown away
        for request in arriving:
            request.close()
        assert (account.total, account._leaving, account._arriving) == (0, 0, {})

    asyncio.run(main())


def test_the_newest_request_of_the_largest_holder_makes_room():
    async def main() -> None:
        named: list[tuple[str, str]] = []
        account = MemoryAccount(MOST, SHARE, on_refusal=lambda *names: named.append(names))
        requests = [Arriving(account, client, later=True) for client in ("alice", "alice", "bob")]
        for request, size in zip(requests, (30, 25, 45), strict=True):
            await request.reservation.claim(size)
        with account.reserve("carol") as polite:
            await polite.claim(5)
            assert [request.reservation.is_evicted for request in requests] == [False, True, False]
            assert named == [("alice", "alice")]
            with pytest.raises(ServeError):
                await polite.claim(56)  # she would have more than anybody else
        for request in requests:
            request.close()

    asyncio.run(main())


def test_a_waiter_that_has_less_displaces_what_arrives_of_the_largest_holder():
    async def main() -> None:
        account = MemoryAccount(MOST, SHARE)
        flood = [Arriving(account, client, later=True) for client in ("alice", "bob") for _ in range(2)]
        for request in flood:
            await request.reservation.claim(25)
        more = [asyncio.create_task(account.wait("alice", 10)) for _ in range(3)]
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            (await account.wait("polite", 20)).close()
        for request in flood:
            request.close()
        for task in more:
            (await task).close()
        assert (account.total, account._leaving, account._queues) == (0, 0, {})

    asyncio.run(main())
