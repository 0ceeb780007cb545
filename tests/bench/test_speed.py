from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import queen.bench.speed.measure
from queen.bench.speed.measure import QUICK, WHOLE, Effort, measure_speed, patterned_images
from queen.cli import app
from tests.support.paths import ROOT

COMMITTED = ROOT / "results" / "speed" / "cpu-2-cores.json"
TINY = Effort(scale=1000, network="small_cnn", shadow_network="small_cnn", stored_clients=10)
CASES = {
    "benign_b32", "benign_b1", "all_a_b32", "all_a_b1", "all_b_b32", "all_b_b1", "network_shadows_all_b_b32",
    "sentinel_b32", "sentinel_b1", "sentinel_decoys_b32", "sentinel_decoys_b1",
}  # fmt: skip
KEYS = {
    "guard_ratio": CASES,
    "judge_per_second": {
        "b32",
        "b4096",
        "sentinel_b32",
        "sentinel_b4096",
        "sentinel_b4096_64_clients_10_classes",
        "sentinel_b4096_1_clients_100_classes",
        "sentinel_b4096_64_clients_100_classes",
        "cost_ratio_100000_clients",
    },
    "sqlite_per_second": None,
    "sqlite_sentinel_per_second": None,
    "rows_per_second": {"reverse_gradient", "move_feature"},
    "guard_verdicts": CASES,
    "slsqp_ratio": None,
    "machine": {"threads", "processor", "python", "torch"},
    "quick": None,
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> dict:
    """A measurement too small to mean anything: no test looks at its speeds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("speed"))
        result = measure_speed(TINY, progress=False)
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


def test_every_promised_number_is_there_and_makes_sense(measured):
    check(measured)
    assert measured["quick"] is True


def test_the_committed_measurement_holds_the_same():
    committed = json.loads(COMMITTED.read_text())
    check(committed)
    assert committed["quick"] is False


def test_the_command_prints_what_was_measured(measured, monkeypatch):
    efforts = []
    monkeypatch.setattr(
        queen.bench.speed.measure, "measure_speed", lambda effort: (efforts.append(effort), measured)[1]
    )
    assert json.loads(CliRunner().invoke(app, ["speed", "--json", "--quick"]).stdout) == measured
    table = CliRunner().invoke(app, ["speed"]).stdout
    assert efforts == [QUICK, WHOLE]
    assert all(case in table for case in CASES)
    assert f"{measured['guard_ratio']['all_b_b32']:.3f}" in table
    assert f"{measured['rows_per_second']['move_feature']:,.0f}" in table
    assert f"{measured['slsqp_ratio']:,.0f}" in table


def test_the_images_of_a_measurement_are_the_same_every_time():
    x, y = patterned_images(20, torch.Generator().manual_seed(3))
    again, _ = patterned_images(20, torch.Generator().manual_seed(3))
    assert torch.equal(x, again)
    assert x.shape == (20, 3, 32, 32)
    assert len(set(y.tolist())) > 3
