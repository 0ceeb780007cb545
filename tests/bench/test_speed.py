from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import queen.bench.speed
from queen.bench.speed import measure_speed, paired_ratio
from queen.cli import app

COMMITTED = sorted((Path(__file__).parents[2] / "results" / "speed").glob("*.json"))
BATCHES = list(range(7))
CASES = {
    "benign_b32", "benign_b1", "all_a_b32", "all_a_b1", "all_b_b32", "all_b_b1", "network_shadows_all_b_b32",
    "sentinel_b32", "sentinel_b1", "sentinel_decoys_b32", "sentinel_decoys_b1",
}  # fmt: skip
KEYS = {
    "guard_ratio": CASES,
    "judge_per_second": {"b32", "b4096", "sentinel_b32", "sentinel_b4096", "cost_ratio_100000_clients"},
    "sqlite_per_second": None,
    "sqlite_sentinel_per_second": None,
    "rows_per_second": {"reverse_gradient", "move_feature"},
    "guard_verdicts": CASES,
    "slsqp_ratio": None,
    "machine": {"threads", "processor", "python", "torch"},
    "quick": None,
}


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("speed"))
        result = measure_speed(quick=True, progress=False)
        assert list(Path.cwd().iterdir()) == []  # no database is left behind
    return json.loads(json.dumps(result))


def check(result: dict) -> None:
    assert set(result) == set(KEYS)
    assert {name: set(result[name]) for name, keys in KEYS.items() if keys} == {k: v for k, v in KEYS.items() if v}
    numbers = [result["sqlite_per_second"], result["sqlite_sentinel_per_second"], result["slsqp_ratio"]]
    for name in ("guard_ratio", "judge_per_second", "rows_per_second"):
        numbers += result[name].values()
    assert all(math.isfinite(number) and number > 0 for number in numbers)
    verdicts = result["guard_verdicts"]
    assert all(math.isclose(sum(shares.values()), 1) for shares in verdicts.values())
    assert verdicts["all_a_b32"] == {"A": 1.0}
    assert verdicts["all_b_b32"]["B"] > 0.9
    assert verdicts["network_shadows_all_b_b32"]["B"] > 0.9
    assert verdicts["benign_b32"].get("C", 0) > 0
    assert verdicts["sentinel_b32"].get("C", 0) > 0
    assert verdicts["sentinel_decoys_b32"] == {"A": 1.0}


def test_every_promised_number_is_there_and_makes_sense(found):
    check(found)
    assert found["quick"] is True


@pytest.mark.parametrize("path", COMMITTED or [None], ids=lambda path: path.name if path else "none")
def test_a_committed_measurement_holds_the_same(path):
    assert path is not None, "no measurement in results/speed"
    result = json.loads(path.read_text())
    check(result)
    assert result["quick"] is False


def test_the_command_prints_what_was_measured(found, monkeypatch):
    monkeypatch.setattr(queen.bench.speed, "measure_speed", lambda quick: found | {"quick": quick})
    shown = CliRunner().invoke(app, ["speed", "--json", "--quick"])
    assert json.loads(shown.stdout) == found
    table = CliRunner().invoke(app, ["speed"]).stdout
    assert all(case in table for case in CASES)
    assert f"{found['guard_ratio']['all_b_b32']:.3f}" in table
    assert f"{found['rows_per_second']['move_feature']:,.0f}" in table


class Clock:
    """A clock that only moves when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def takes(self, *seconds: float):
        """A function that takes these times, one a call, the last one for ever."""
        left = list(seconds)
        return lambda _: setattr(self, "now", self.now + (left.pop(0) if len(left) > 1 else left[0]))


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    return clock


def test_the_ratio_of_two_times(clock):
    assert paired_ratio(clock.takes(3.0), clock.takes(2.0), BATCHES) == 1.5


def test_the_ratio_forgets_the_warm_up_and_one_busy_moment(clock):
    assert paired_ratio(clock.takes(50.0, 60.0, 3.0, 90.0, 3.0), clock.takes(1.0), BATCHES[:5]) == 3.0


def test_pairs_are_interleaved_and_both_sides_start_equally_often(clock):
    calls: list[str] = []
    tick = clock.takes(1.0)

    def guarded(batch: object) -> None:
        calls.append("g")
        tick(batch)

    def plain(batch: object) -> None:
        calls.append("p")
        tick(batch)

    assert paired_ratio(guarded, plain, BATCHES[:6]) == 1.0
    pairs = ["".join(calls[i : i + 2]) for i in range(0, len(calls), 2)]
    assert sorted(pairs) == ["gp"] * 3 + ["pg"] * 3
