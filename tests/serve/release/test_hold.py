"""Answers are held back where their time would tell something, for as long as work takes; operators hear of it."""

from __future__ import annotations

import asyncio

import pytest

import queen.serve.release.hold
from queen.cli import serve as command
from queen.serve.release.clock import ReleaseClock
from queen.serve.release.hold import ENOUGH, HEADROOM, MOST, SECONDS, WINDOW_BATCHES, Hold
from queen.serve.release.measure import WorkTime
from queen.serve.settings import read_settings
from queen.serve.types import Caller, Query, ServeError
from tests.support.server import running_service
from tests.support.serving import digits, small_guard
from tests.support.waiting import PATIENCE

HOURS = 10_000.0
WORK = WorkTime(0.001, 0.002, 0.0005)


async def as_measured(guard, *, uniform):
    return WORK


@pytest.fixture
def measured(monkeypatch):
    """As if requests took the same time on every machine."""
    monkeypatch.setattr(queen.serve.release.hold, "measure_work", as_measured)


def started(every="auto", **options):
    hold = Hold(read_settings({"bundle": "b", "release_every": every}), small_guard(**options))

    async def start():
        await hold.start()
        hold.stop()

    asyncio.run(start())
    return hold


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize(
    "options", [{}, {"on_alarm": "decoy"}, {"on_alarm": "observe"}, {"observe": True}, {"on_spent": "reverse"}], ids=str
)
def test_the_sentinel_holds_answers_back_whatever_it_does_to_the_accused(options):
    hold = started(**options)
    assert hold.seconds(1) == HEADROOM * WORK.one_row
    assert hold.seconds(5) == pytest.approx(HEADROOM * (WORK.one_row + 4 * WORK.each_more))
    assert hold._clock._every == 0.001
    assert "every 1.0 ms, 3.0 ms after the request or later" in hold.advice
    assert "costs about 2.5 ms in the median (--release-every 0: off)" in hold.advice


@pytest.mark.usefixtures("measured")
def test_the_operator_may_choose_the_ticks_or_none():
    assert started(0.02)._clock._every == 0.02
    assert started(0.02, policy="paper").seconds(1) == HEADROOM * WORK.one_row
    off = started("0")
    assert off.seconds(1) == 0
    assert off.advice.endswith("release_every is 0")


@pytest.mark.parametrize("policy", ["paper", "strict", "artifact"])
def test_policies_that_accuse_nobody_answer_at_once(policy):
    hold = started(policy=policy)
    assert hold.seconds(1) == 0
    assert f"policy {policy} accuses nobody" in hold.advice


@pytest.mark.usefixtures("measured")
def test_a_slower_server_holds_answers_back_for_longer_in_coarse_steps_and_a_faster_one_for_less():
    hold = started()
    at_first = hold.seconds(1)

    def work(seconds, batches=WINDOW_BATCHES):
        for _ in range(batches):
            hold.note_batch(1, seconds)
        return hold.seconds(1) / at_first

    assert work(2 * at_first, WINDOW_BATCHES - 1) == 1  # no single batch shows
    assert work(2 * at_first, 1) == 2
    assert work(at_first) == 2
    assert [work(100 * at_first) for _ in range(5)][-1] == MOST
    assert [work(at_first / 3) for _ in range(8)][-1] == 1  # half would no longer do for all
    assert [work(at_first / 100) for _ in range(8)][-1] == WORK.median / WORK.one_row


@pytest.mark.usefixtures("measured")
def test_a_server_with_little_to_do_becomes_faster_by_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(queen.serve.release.hold, "monotonic", lambda: now[0])
    hold = started()
    at_first = hold.seconds(1)

    def work(seconds, batches):
        for _ in range(batches):
            hold.note_batch(1, seconds)
        return hold.seconds(1) / at_first

    assert work(2 * at_first, WINDOW_BATCHES) == 2
    now[0] += SECONDS
    assert work(at_first / 100, ENOUGH - 1) == 2  # no few batches show
    assert work(at_first / 100, 1) == 1
    assert work(at_first / 100, WINDOW_BATCHES - 1) == 1  # it is too soon
    now[0] += SECONDS
    assert work(at_first / 100, 1) == WORK.median / WORK.one_row
    now[0] += SECONDS
    assert work(2 * at_first, WINDOW_BATCHES - 1) == WORK.median / WORK.one_row  # it becomes slower by batches alone,
    now[0] += SECONDS
    assert work(2 * at_first, 1) == 2 * WORK.median / WORK.one_row  # however long they take


@pytest.mark.usefixtures("measured")
def test_one_late_batch_of_twenty_changes_nothing():
    hold = started()
    before = hold.seconds(1)
    for number in range(10 * WINDOW_BATCHES):
        hold.note_batch(1, 2 * before if number % 20 == 0 else before / 2)
    assert hold.seconds(1) == before


@pytest.mark.usefixtures("measured")
def test_nothing_is_counted_without_a_clock():
    hold = started("0")
    hold.note_batch(1, 1.0)
    assert hold._window.batches == 0


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.usefixtures("measured")
def test_answers_and_refusals_of_a_server_leave_at_its_ticks(tmp_path, monkeypatch, refuses):
    monkeypatch.setattr(queen.serve.release.hold, "ReleaseClock", lambda every: ReleaseClock(HOURS))

    async def check():
        async with running_service(tmp_path, release_every=0.5) as (service, _):
            submit, ready = service.batcher.submit, asyncio.Event()

            async def answer(query, caller):
                try:
                    if refuses:
                        raise ServeError(429, "no")
                    return await submit(query, caller)
                finally:
                    ready.set()

            service.batcher.submit = answer
            leaving = asyncio.create_task(service.infer(Query(digits()[:1], 1), Caller("alice")))
            await ready.wait()
            await asyncio.sleep(0.1)  # without a clock it would leave now
            assert not leaving.done()
            service.hold._clock._release(1)
            await asyncio.wait([leaving])
            assert isinstance(leaving.exception(), ServeError) == refuses

    asyncio.run(asyncio.wait_for(check(), PATIENCE))


def test_a_server_measures_itself_and_says_what_it_costs(tmp_path, caplog, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)

    async def look():
        async with running_service(tmp_path, release_every="auto") as (service, ports):
            command._print_addresses(service, ports)
            await asyncio.wait_for(service.infer(Query(digits()[:3], 3), Caller("alice")), PATIENCE)
            return service.hold

    with caplog.at_level("INFO"):
        hold = asyncio.run(look())
    [line] = [record for record in caplog.records if record.message == "release clock"]
    assert set(line.fields) == {"period_ms", "hold_ms", "p50_cost_ms", "p99_ms"}
    assert hold.advice in capsys.readouterr().err.replace("\n", "")
    assert hold._window.batches == 1


@pytest.mark.usefixtures("measured")
def test_a_server_that_is_about_to_stop_holds_nothing_back(tmp_path, monkeypatch):
    monkeypatch.setattr(queen.serve.release.hold, "ReleaseClock", lambda every: ReleaseClock(HOURS))

    async def check():
        async with running_service(tmp_path, release_every=0.5) as (service, _):
            leaving = asyncio.create_task(service.infer(Query(digits()[:1], 1), Caller("alice")))
            while not service.hold._clock._leaving:
                await asyncio.sleep(0.01)
            service.drain()
            await leaving

    asyncio.run(asyncio.wait_for(check(), PATIENCE))
