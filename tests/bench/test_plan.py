"""A plan counts what will be done, shares what is shared, and expects what was measured."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from queen.bench.plan import Plan, make_plan, minutes_taken, read_measured
from queen.bench.run import write_result
from queen.cli import app
from tests.support.benchmarks import content, result, tiny_spec

SECONDS = {"victim": 60.0, "fit": 30.0, "utility": 6.0, "ask": 12.0, "recover": 3.0, "train": 24.0, "other": 1.0}


def timed(column: str, attack: str, *, jobs: int = 1, reused: tuple[str, ...] = (), **changes: float) -> dict[str, Any]:
    plain = result(column=column, attack=attack)
    hardware = {"device": "x86_64", "threads": 1, "jobs": jobs}
    config = next(tiny_spec().cells()).config
    return {**plain, "config": config, "seconds": SECONDS | changes, "reused": list(reused), "hardware": hardware}


def phase(plan: Plan, name: str) -> tuple[int, int, float, int]:
    [found] = [phase for phase in plan.phases if phase.name == name]
    return found.times, found.cells, found.minutes, found.unknown


def test_what_cells_share_is_counted_once():
    matrix = [{"queries": "knockoff", "attacks": ["direct", "label_only", "many_accounts"]}]
    spec = tiny_spec(defenses=["none", "rounding"], seeds=[0, 1], matrix=matrix)
    plan = make_plan(spec, measured=[timed("none", "direct")])
    assert (plan.cells, plan.finished) == (12, 0)
    assert phase(plan, "victim") == (1, 12, 1.0, 0)
    assert phase(plan, "fit") == (4, 12, 1.0, 2)  # nobody knows what rounding trains
    assert not plan.complete
    assert phase(plan, "utility") == (4, 12, pytest.approx(0.4), 0)
    # Per column and seed, direct and label_only share their answers; many_accounts asks in its own way.
    assert phase(plan, "ask") == (8, 12, pytest.approx(8 * 12 / 60), 0)
    assert phase(plan, "train") == (12, 12, pytest.approx(12 * 24 / 60), 0)
    assert plan.minutes == pytest.approx(sum(phase.minutes for phase in plan.phases))


def test_the_most_alike_result_tells_the_time():
    spec = tiny_spec(defenses=["none", "rounding"], matrix=[{"queries": "knockoff", "attacks": ["direct"]}])
    plan = make_plan(spec, measured=[timed("none", "direct", train=60.0), timed("mad", "direct", train=180.0)])
    assert phase(plan, "train")[2] == pytest.approx((60 + (60 + 180) / 2) / 60)


def test_a_gpu_that_several_processes_share_is_counted_once():
    spec = tiny_spec(defenses=["none"], matrix=[{"queries": "knockoff", "attacks": ["direct"]}])
    plan = make_plan(spec, measured=[timed("none", "direct", jobs=3)])
    assert phase(plan, "train")[2] == pytest.approx(24 / 3 / 60)
    assert phase(plan, "victim")[2] == 1.0  # trained before the others start


def test_the_minutes_that_results_took_are_what_a_plan_of_the_same_cells_expects():
    matrix = [{"queries": "knockoff", "attacks": ["direct", "label_only"]}]
    spec = tiny_spec(defenses=["none", "rounding"], matrix=matrix)
    shared = ("fit", "utility", "ask")
    results = [
        timed(column, attack, jobs=2, reused=() if attack == "direct" else shared)
        for column in ("none", "rounding")
        for attack in ("direct", "label_only")
    ]
    assert minutes_taken(results) == pytest.approx(make_plan(spec, measured=results).minutes)
    assert minutes_taken(results) == pytest.approx((60 + 2 * (30 + 6 + 12 + 2 * (3 + 24 + 1)) / 2) / 60)


def test_a_defense_that_was_set_up_before_the_workers_started_took_its_time_alone():
    results = [timed("mad", attack, jobs=2, reused=("fit", "utility", "ask")) for attack in ("direct", "label_only")]
    assert minutes_taken(results) == pytest.approx((60 + 30 + 2 * (3 + 24 + 1) / 2) / 60)


def test_a_thief_that_somebody_else_trained_costs_nothing():
    spec = tiny_spec(defenses=["none"], matrix=[{"queries": "knockoff", "attacks": ["direct"]}])
    plan = make_plan(spec, measured=[timed("none", "direct", reused=("train", "ask"))])
    assert phase(plan, "train")[2] == 0
    assert phase(plan, "ask")[2] == pytest.approx(12 / 60)


def test_what_was_never_measured_is_unknown_and_not_nothing():
    plan = make_plan(tiny_spec())
    assert plan.measured == 0
    assert not plan.complete
    assert all(phase.unknown == phase.times > 0 and phase.minutes == 0 for phase in plan.phases)


def test_only_results_of_the_same_victim_and_thief_on_the_same_kind_of_device_tell(tmp_path):
    spec = tiny_spec()
    other = next(tiny_spec(protectee__train=800).cells()).config
    mine, others = tmp_path / "mine", tmp_path / "others"
    write_result(mine / "digits8" / "none" / "knockoff-direct-s0.json", timed("none", "direct"))
    write_result(others / "digits8" / "mad" / "knockoff-direct-s0.json", {**timed("mad", "direct"), "config": other})
    [own] = read_measured([others, mine, tmp_path / "nothing"], spec, "cpu")
    assert own["column"] == "none"
    assert not make_plan(spec, measured=[own]).of_another_victim
    assert read_measured([mine, others], spec, "cuda") == []


def test_before_the_first_cell_another_victim_with_such_networks_tells_in_proportion_to_the_work(tmp_path):
    [spec] = [tiny_spec(defenses=["none"], matrix=[{"queries": "knockoff", "attacks": ["direct"]}])]
    write_result(tmp_path / "digits8" / "none" / "knockoff-direct-s0.json", timed("none", "direct"))
    twice = {
        "protectee__train": 2 * spec.protectee.train,
        "protectee__schedule__epochs": 3 * spec.protectee.schedule.epochs,
        "thief__schedule__epochs": 5 * spec.thief.schedule.epochs,
        "budget": 2 * spec.budget,
    }
    larger = tiny_spec(**twice, defenses=["none"], matrix=[{"queries": "knockoff", "attacks": ["direct"]}])
    measured = read_measured([tmp_path], larger, "cpu")
    plan = make_plan(larger, measured=measured)
    assert plan.of_another_victim
    assert plan.complete
    assert phase(plan, "victim")[2] == pytest.approx(6 * 60 / 60)
    assert phase(plan, "fit")[2] == pytest.approx(2 * 30 / 60)
    assert phase(plan, "ask")[2] == pytest.approx(2 * 12 / 60)
    steps = [s.thief.schedule.plan(s.budget) for s in (spec, larger)]
    rows = [epochs * per_epoch for epochs, per_epoch in steps]
    assert phase(plan, "train")[2] == pytest.approx(rows[1] / rows[0] * 24 / 60)
    assert read_measured([tmp_path], tiny_spec(protectee__network={"name": "alexnet"}), "cpu") == []
    assert read_measured([tmp_path], tiny_spec(protectee__pool={"set": "digits", "split": "train"}), "cpu") == []


def test_the_command_says_it_in_words_and_as_json(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(json.dumps(content()))
    text = CliRunner().invoke(app, ["bench", "plan", str(spec)]).stdout
    assert "4 cells" in text
    assert "unknown" in text
    found = json.loads(CliRunner().invoke(app, ["bench", "plan", str(spec), "--json"]).stdout)
    assert [phase["name"] for phase in found["phases"]] == [
        "victim",
        "fit",
        "utility",
        "ask",
        "recover",
        "train",
        "other",
    ]
    assert found["files"] == []


def test_files_that_another_machine_needs_are_listed_with_their_sizes(tmp_path):
    (tmp_path / "cifar10_q90.npz").write_bytes(b"x" * 300)
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "victim-abc.safetensors.1-of-1").write_bytes(b"x" * 20)
    changed = content()
    changed["protectee"]["pool"] = {"set": "cifar10", "size": 8, "channels": 1}
    plan = make_plan(tiny_spec(**changed), root=tmp_path, cache=cache)
    assert [size for _, size in plan.files] == [300, 20]
    (tmp_path / "mine.safetensors.1-of-2").write_bytes(b"x" * 15)
    (tmp_path / "mine.safetensors.2-of-2").write_bytes(b"x" * 5)
    changed["protectee"]["weights"] = "mine.safetensors"
    plan = make_plan(tiny_spec(**changed), root=tmp_path, cache=cache)
    assert [size for _, size in plan.files] == [300, 15, 5]
