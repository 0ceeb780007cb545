from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import queen.bench.speed
from queen.bench.defense_speed import BATCH, PAPER, InBatches
from queen.bench.speed import measure_speed, paired_ratio
from queen.bench.untrained import images
from queen.cli import app
from queen.defenses import DEFENSES
from tests.support.paths import ROOT

COMMITTED = sorted((ROOT / "results" / "speed").glob("*.json"))
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
    "solver_ratio": {"modelguard_w_k10", "modelguard_w_k100", "mad_k10"},
    "query_time_ratio": set(DEFENSES),
    "query_time_seconds": set(DEFENSES),
    "query_time_verdicts": {name for name in DEFENSES if name.startswith("queen")},
    "query_time_network": None,
    "paper_query_time_ratio": set(PAPER),
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
    figures = "guard_ratio judge_per_second rows_per_second solver_ratio query_time_ratio query_time_seconds"
    for name in figures.split():
        numbers += result[name].values()
    assert all(math.isfinite(number) and number > 0 for number in numbers)
    verdicts = result["guard_verdicts"]
    shown = [*verdicts.values(), *result["query_time_verdicts"].values()]
    assert all(math.isclose(sum(shares.values()), 1) for shares in shown)
    assert result["query_time_ratio"]["none"] == 1
    assert result["query_time_network"].startswith("vgg16_bn, untrained, ")
    assert verdicts["all_a_b32"] == {"A": 1.0}
    assert verdicts["all_b_b32"]["B"] > 0.9
    assert verdicts["network_shadows_all_b_b32"]["B"] > 0.9
    assert verdicts["benign_b32"].get("C", 0) > 0
    assert verdicts["sentinel_b32"].get("C", 0) > 0
    assert verdicts["sentinel_decoys_b32"] == {"A": 1.0}


@pytest.mark.slow
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
    assert f"{found['solver_ratio']['modelguard_w_k100']:,.0f}" in table
    assert found["query_time_network"] in " ".join(table.split())
    lines = [line.split() for line in table.splitlines()]
    for name, ratio in found["query_time_ratio"].items():
        seconds = f"{found['query_time_seconds'][name]:.2f}"
        [shown] = [line for line in lines if line[:1] == [name]]
        assert shown == [name, seconds, f"{ratio:.3f}", *([f"{PAPER[name]:g}"] if name in PAPER else [])]


def test_the_papers_ratios_are_of_defenses_that_exist():
    assert set(PAPER) < set(DEFENSES)
    assert PAPER["mad"] == max(PAPER.values()) == 24


def test_what_must_be_fast_is_fast_even_in_a_rough_measurement(found):
    """Far below what is promised of a whole measurement, so that a busy machine does not fail it."""
    assert found["solver_ratio"]["modelguard_w_k10"] > 50
    assert found["solver_ratio"]["modelguard_w_k100"] > 10
    assert found["solver_ratio"]["mad_k10"] > 10
    assert found["query_time_ratio"]["modelguard_w"] < 5
    assert found["query_time_ratio"]["mad"] < 10  # a second network of the same size, and little more


def test_clients_ask_in_batches_and_get_every_answer():
    sizes: list[int] = []

    class Service:
        def client(self, name: str):
            return lambda x: (sizes.append(len(x)), x + len(name))[1]

    x = torch.arange(2 * BATCH + 5.0)
    assert torch.equal(InBatches(Service()).client("abc")(x), x + 3)
    assert sizes == [BATCH, BATCH, 5]


def test_the_images_of_a_measurement_are_the_same_every_time():
    x, y = images(20, torch.Generator().manual_seed(3))
    again, _ = images(20, torch.Generator().manual_seed(3))
    assert torch.equal(x, again)
    assert x.shape == (20, 3, 32, 32)
    assert len(set(y.tolist())) > 3


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
