"""Several servers with one ledger: different CPUs keep one wealth, and a rolling recalibration keeps both tests."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch

from queen import Guard, calibrate, protect
from queen.ledger import open_ledger
from queen.options import Limits
from tests.support.guards import QUICK, SECRET, digits, trained
from tests.support.replica import CLIENT, newer_than_sse, replica

pytestmark = pytest.mark.slow
ROWS = 60


@pytest.fixture(scope="module")
def guard() -> Guard:
    x, y = digits()
    options = {"limits": Limits(threshold=100.0, extra_answers=10**6), "mapping": QUICK, "secret": SECRET}
    return protect(
        trained("mlp"), (x[:1200], y[:1200]), calibration=(x[1200:1500], y[1200:1500]), policy="sentinel",
        factory="tests.support.guards:make_mlp", **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def bundle(guard, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("replicas") / "bundle"
    guard.save(folder)
    return folder


@pytest.fixture(scope="module")
def foreign(bundle) -> Path:
    """Noise, which is foreign to a model of digits."""
    file = bundle.parent / "foreign.npy"
    np.save(file, torch.rand(ROWS, 64, generator=torch.Generator().manual_seed(0)).numpy())
    return file


@pytest.fixture(params=["sqlite", "redis"])
def shared(request, tmp_path) -> str:
    """The address of a ledger that several processes may write."""
    return (
        f"sqlite:///{tmp_path / 'ledger.sqlite'}" if request.param == "sqlite" else request.getfixturevalue("redis_url")
    )


def alarm_alone(guard: Guard, queries: Path) -> tuple[int, list[float]]:
    """The query that raises the alarm of a single server, and the wealth after each until then."""
    fresh, wealth = guard.fresh(on_alarm="decoy"), []
    for row, x in enumerate(torch.from_numpy(np.load(queries))):
        reply = fresh.answer(x[None], client=CLIENT)
        wealth.append(fresh.ledger.standing(CLIENT).wealth)
        if reply.alarmed[0]:
            return row, wealth
    raise AssertionError("no alarm")


@pytest.mark.skipif(not newer_than_sse(), reason="this CPU is an old one already")
def test_replicas_with_different_cpus_keep_one_wealth(guard, bundle, foreign, shared):
    alone, wealth = alarm_alone(guard, foreign)
    assert alone > 4  # or else there is nothing to share
    with replica(bundle, shared, foreign) as new, replica(bundle, shared, foreign, old_cpu=True) as old:
        assert new.facts["test"] == old.facts["test"] == guard.bundle.test.id
        assert new.facts["numpy"] != old.facts["numpy"] == []
        assert new.facts["torch"] != old.facts["torch"]
        replies = [(new, old)[row % 2].ask(row) for row in range(alone + 2)]
    assert [reply["alarmed"] for reply in replies] == [False] * alone + [True] * 2
    assert [reply["wealth"] for reply in replies[: alone + 1]] == pytest.approx(wealth, rel=1e-6)
    assert {reply["number"] for reply in replies} == {1}


def test_a_rolling_recalibration_keeps_both_tests(guard, bundle, foreign, shared, tmp_path):
    """While some servers have the new calibration and some the old one, a thief gains nothing by alternating."""
    x, y = digits()
    renewed = calibrate(guard, (x[1500:], y[1500:]))
    renewed.save(tmp_path / "renewed")
    assert renewed.bundle.test.id != guard.bundle.test.id
    with ExitStack() as stack:
        old = stack.enter_context(replica(bundle, shared, foreign))
        new = stack.enter_context(replica(tmp_path / "renewed", shared, foreign))
        before = old.ask(0)["wealth"]
        richer = [new.ask(1)["wealth"], old.ask(2)["wealth"]]
        replies, wealth = [], []
        for row in range(3, ROWS):
            replies.append((old, new)[row % 2].ask(row))
            wealth.append(replies[-1]["wealth"])
            if replies[-1]["alarmed"]:
                break
    assert replies[-1]["alarmed"]
    assert richer[1] > before  # nothing was lost in between
    assert {reply["number"] for reply in replies} == {1, 2}
    ledger = open_ledger(shared)
    assert ledger.standing(CLIENT).alarmed
    assert len(replies) + 3 <= 2 * (alarm_alone(guard, foreign)[0] + 1) + 10  # each test sees every other query
    ledger.close()
