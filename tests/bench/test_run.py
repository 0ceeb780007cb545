"""A benchmark as a whole: every cell once, whatever happens in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from queen.bench import run as run_module
from queen.bench.parsing import SpecError
from queen.bench.run import (
    is_finished,
    missing_results,
    put_in_order,
    read_result,
    read_results,
    run_spec,
    write_result,
)
from queen.errors import OptionError, QueenError
from tests.support.benchmarks import content, result, tiny_spec

TIMES = {"seconds", "training_seconds", "images_per_second", "reused", "jobs"}  # and who did what others share
PATHS = [f"digits8/{c}/knockoff-{a}-s0.json" for c in ("label_only", "none") for a in ("direct", "label_only")]


def timeless(value: Any) -> Any:
    """All that must be the same whenever and wherever it runs."""
    if isinstance(value, dict):
        return {key: timeless(inner) for key, inner in value.items() if key not in TIMES}
    return [timeless(inner) for inner in value] if isinstance(value, list) else value


def found_in(folder: Path) -> dict[str, Any]:
    paths = [path for path in folder.rglob("*-s*.json") if ".cache" not in path.parts]
    return {path.relative_to(folder).as_posix(): timeless(json.loads(path.read_text())) for path in sorted(paths)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The tiny spec, run through in this process without a disturbance."""
    out = tmp_path_factory.mktemp("finished")
    done = run_spec(tiny_spec(), out, jobs=1)
    assert (done.done, done.skipped, done.failed) == (4, 0, {})
    return out


def copied(folder: Path, to: Path) -> Path:
    for path in PATHS:
        write_result(to / path, json.loads((folder / path).read_text()))
    return to


# Running


@pytest.mark.slow
def test_every_cell_has_a_result_that_says_what_it_is(finished):
    results = found_in(finished)
    assert sorted(results) == PATHS
    for cell in tiny_spec().cells():
        one = results[str(cell.path)]
        assert one["hash"] == cell.hash
        assert one["config"] == json.loads(json.dumps(cell.config))
        assert (one["column"], one["attack"], one["seed"], one["version"]) == (cell.column, cell.attack, cell.seed, 1)
        assert one["flags"] == []
        assert one["thief"]["accuracy"] > 0.5
    assert [path.name for path in finished.rglob("*.json.*")] == []  # no file that is only half there


def test_what_is_finished_is_not_run_again(finished, monkeypatch):
    monkeypatch.setattr(run_module, "run_trial", lambda *_: pytest.fail("run again"))
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*.json")}
    done = run_spec(tiny_spec(), finished, jobs=1)
    assert (done.done, done.skipped, done.failed) == (0, 4, {})
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*.json")} == before


def test_only_what_is_missing_is_run(finished, tmp_path, monkeypatch):
    out = copied(finished, tmp_path)
    (out / PATHS[2]).unlink()
    ran: list[str] = []
    original: Callable[..., Any] = run_module.run_trial
    monkeypatch.setattr(
        run_module, "run_trial", lambda run, *rest, **more: ran.append(run.column) or original(run, *rest, **more)
    )
    done = run_spec(tiny_spec(), out, cache=finished / ".cache", jobs=1)
    assert (done.done, done.skipped) == (1, 3)
    assert ran == ["none"]
    assert found_in(out) == found_in(finished)


def test_a_larger_spec_goes_on_where_a_smaller_one_ended(finished, tmp_path):
    out = copied(finished, tmp_path)
    done = run_spec(tiny_spec(seeds=[0, 1]), out, cache=finished / ".cache", jobs=1)
    assert (done.done, done.skipped) == (4, 4)
    assert len(read_results(out)) == 8


@pytest.mark.long
@pytest.mark.slow
def test_two_jobs_give_the_numbers_of_one(finished, tmp_path):
    done = run_spec(tiny_spec(), tmp_path, jobs=2)
    assert (done.done, done.failed) == (4, {})
    assert found_in(tmp_path) == found_in(finished)


def test_when_time_is_up_no_cell_is_begun_and_the_next_run_goes_on(finished, tmp_path, monkeypatch):
    now, original = [0.0], run_module.run_trial

    def take_40_seconds(*given, **more):
        now[0] += 40
        return original(*given, **more)

    monkeypatch.setattr(run_module, "time", SimpleNamespace(time=lambda: now[0]))
    monkeypatch.setattr(run_module, "run_trial", take_40_seconds)
    first = run_spec(tiny_spec(), tmp_path, cache=finished / ".cache", jobs=1, minutes=1)
    assert (first.done, first.skipped, first.failed, first.left) == (2, 0, {}, 2)
    second = run_spec(tiny_spec(), tmp_path, cache=finished / ".cache", jobs=1, minutes=3)
    assert (second.done, second.skipped, second.failed, second.left) == (2, 2, {}, 0)
    assert found_in(tmp_path) == found_in(finished)


def test_time_that_is_up_at_once_trains_nothing(tmp_path, monkeypatch):
    times = iter([0.0])
    monkeypatch.setattr(run_module, "time", SimpleNamespace(time=lambda: next(times, 60.0)))
    monkeypatch.setattr(run_module, "run_trial", lambda *_: pytest.fail("begun"))
    done = run_spec(tiny_spec(), tmp_path, jobs=1, minutes=1)
    assert (done.done, done.left) == (0, 4)


@pytest.mark.parametrize("minutes", [0, -1, float("nan")])
def test_minutes_are_above_0(tmp_path, minutes):
    with pytest.raises(OptionError, match="minutes must be a number above 0"):
        run_spec(tiny_spec(), tmp_path, minutes=minutes)


def test_a_failing_cell_does_not_stop_the_others(finished, tmp_path, monkeypatch):
    original = run_module.run_trial

    def fragile(run, *rest, **more):
        if (run.column, run.attack) == ("none", "direct"):
            raise ZeroDivisionError("on\npurpose")
        return original(run, *rest, **more)

    monkeypatch.setattr(run_module, "run_trial", fragile)
    done = run_spec(tiny_spec(), tmp_path, cache=finished / ".cache", jobs=1)
    assert done.failed == {"digits8/none/knockoff-direct-s0.json": "ZeroDivisionError: on purpose"}
    assert (done.done, done.skipped) == (3, 0)
    monkeypatch.undo()
    again = run_spec(tiny_spec(), tmp_path, cache=finished / ".cache", jobs=1)  # a failure is tried again
    assert (again.done, again.skipped, again.failed) == (1, 3, {})
    assert found_in(tmp_path) == found_in(finished)


CANNOT = {
    "too few images": ({"protectee__train": 5000}, "set 'digits' has 1797 images, 5700 are asked for"),
    "too small a pool": ({"protectee__pool__count": 2000}, r"set 'digits' has 1797 images \(all\), 2000 are asked for"),
    "budget larger than the pool": ({"budget": 601}, "a budget of 601 queries is larger than the pool of 600 images"),
    "budget of a block": (
        {"matrix": [{"queries": "active_thief", "attacks": "direct", "budget": 602}]},
        "a budget of 602 queries",
    ),
    "unknown set": ({"protectee__data": {"set": "digts"}}, "no data set 'digts'.*did you mean 'digits'"),
    "absent set": ({"protectee__data": {"set": "cifar10"}}, "the data set 'cifar10' is not in .*Put one of these"),
    "unknown network": ({"protectee__network": {"name": "vgg99"}}, "no network 'vgg99'"),
}


@pytest.mark.parametrize(("changes", "message"), CANNOT.values(), ids=CANNOT)
def test_what_no_cell_could_do_is_said_before_any_runs(tmp_path, changes, message):
    with pytest.raises(QueenError, match=message):
        run_spec(tiny_spec(**changes), tmp_path, root=tmp_path / "empty", jobs=1)
    assert found_in(tmp_path) == {}


def test_an_unknown_device_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(OptionError, match="abacus"):
        run_spec(tiny_spec(), tmp_path / "out", device="abacus")
    assert not (tmp_path / "out").exists()


# Results that do not belong here


def test_results_of_another_spec_are_refused_not_mixed(finished, tmp_path):
    out = copied(finished, tmp_path)
    before = found_in(out)
    with pytest.raises(SpecError, match=r"-s0\.json' is a result of another spec: choose another --out folder"):
        run_spec(tiny_spec(budget=299), out, jobs=1)
    assert found_in(out) == before


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_results_of_another_version_are_refused(finished, tmp_path, version):
    out = copied(finished, tmp_path)
    changed = json.loads((out / PATHS[0]).read_text()) | {"version": version}
    (out / PATHS[0]).write_text(json.dumps(changed))
    for read in (lambda: read_results(out), lambda: run_spec(tiny_spec(), out, jobs=1)):
        with pytest.raises(SpecError, match=f"is a result of version {version}, this program reads 1"):
            read()


@pytest.mark.parametrize("broken", [b"", b'{"version": 1, "has', b"[1, 2]", b"\xff\xfe", b"null"])
def test_a_broken_result_is_a_clear_error(finished, tmp_path, broken):
    out = copied(finished, tmp_path)
    (out / PATHS[1]).write_bytes(broken)
    for read in (lambda: read_results(out), lambda: run_spec(tiny_spec(), out, jobs=1)):
        with pytest.raises(SpecError, match=r"knockoff-label_only-s0\.json"):
            read()


def test_no_results_say_how_to_get_some(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(SpecError, match=r"no results below .*: queen bench run SPEC --out"):
            read_results(folder)


def test_results_are_read_in_the_order_of_their_paths_and_the_cache_is_none_of_them(tmp_path):
    for column in ("b", "a"):
        write_result(tmp_path / "p" / column / "knockoff-direct-s0.json", result(column))
    write_result(tmp_path / ".cache" / "x-s0.json", {"version": 7})
    assert [one["column"] for one in read_results(tmp_path)] == ["a", "b"]
    assert read_result(tmp_path / "p" / "a" / "knockoff-direct-s0.json") == result("a")


def test_a_cell_is_finished_when_its_own_result_is_there(finished, tmp_path):
    for cell in tiny_spec().cells():
        assert is_finished(cell, finished)
        assert not is_finished(cell, tmp_path)


# The real program


def program(*words: object, cwd: Path) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-m", "queen", "bench", *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def kill_when(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    """Kill the program and all it started as soon as it got somewhere."""
    end = time.monotonic() + 180
    while not reached() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.002)
    assert process.poll() is None, process.communicate()
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_a_run_killed_twice_and_restarted_has_the_numbers_of_an_undisturbed_one(finished, tmp_path):
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(content()))
    out, words = tmp_path / "out", ("run", "spec.yaml", "--out", "out", "--jobs", 1)
    kill_when(program(*words, cwd=tmp_path), lambda: any((out / ".cache").glob(".victim-*.lock")))
    assert not any((out / ".cache").glob("victim-*"))  # killed while the victim was trained
    assert found_in(out) == {}
    kill_when(program(*words, cwd=tmp_path), lambda: any(out.rglob("knockoff-*.json")))
    before = found_in(out)
    assert 1 <= len(before) < 4
    ended = program(*words, "--json", cwd=tmp_path)
    said, complaints = ended.communicate(timeout=120)
    assert ended.returncode == 0, complaints
    assert json.loads(said) == {"done": 4 - len(before), "skipped": len(before), "failed": {}, "left": 0}
    assert found_in(out) == found_in(finished)
    assert (out / "report.html").read_text().startswith("<!doctype html>")


def test_results_of_two_specs_in_one_folder_are_refused_not_mixed(finished, tmp_path):
    copied(finished, tmp_path)
    other = json.loads((tmp_path / PATHS[0]).read_text())
    other["config"]["budget"] = 299
    write_result(tmp_path / "digits8/none/knockoff-s4l-s0.json", other)
    with pytest.raises(SpecError, match="another spec"):
        read_results(tmp_path)


def test_cells_without_a_result_are_known(finished, tmp_path):
    assert missing_results(finished) == []
    copied(finished, tmp_path)
    assert missing_results(tmp_path) == []  # nobody said what should be there
    (tmp_path / ".specs").mkdir()
    (tmp_path / ".specs" / "tiny.json").write_text((finished / ".specs" / "tiny.json").read_text())
    (tmp_path / PATHS[0]).unlink()
    assert missing_results(tmp_path) == [PATHS[0]]


@pytest.mark.parametrize(("changes", "what"), [
    ({"defenses": {"queen-sentinel": {}}, "protectee__calibration": 0}, "calibration"),
    ({"matrix": [{"queries": ["knockoff"], "attacks": ["warm_up"]}], "protectee__benign": 0}, "benign"),
])  # fmt: skip
def test_images_that_a_cell_lacks_are_missed_before_the_work(tmp_path, changes, what, monkeypatch):
    monkeypatch.setattr(run_module, "make_protectee", lambda *_: pytest.fail("worked"))
    with pytest.raises(SpecError, match=what):
        run_spec(tiny_spec(**changes), tmp_path, jobs=1)


@pytest.mark.parametrize(("weights", "others"), [("a" * 64, "b" * 64), (None, "b" * 64)], ids=["two", "one unknown"])
def test_results_of_two_victims_are_refused_not_mixed(tmp_path, weights, others):
    paths = [tmp_path / "digits8" / column / f"knockoff-direct-s{seed}.json" for column in "ab" for seed in (0, 1)]
    for path, seed in zip(paths, (0, 1, 0, 1), strict=True):
        one = result(path.parent.name, seed=seed, config={"protectee": {"victim_per_seed": True}})
        one["protectee"] |= {"weights": others} if seed else {} if weights is None else {"weights": weights}
        write_result(path, one)
    assert len(read_results(tmp_path)) == 4  # one victim for each seed
    one["protectee"]["weights"] = "c" * 64
    write_result(paths[3], one)
    with pytest.raises(
        SpecError, match=r"b/.*-s1.json' attacked another victim than '.*a/.*-s1.json': .* got c{16}\.\."
    ):
        read_results(tmp_path)


def test_seeds_share_a_victim_unless_the_spec_gives_each_its_own(tmp_path):
    for seed, weights in ((0, "a" * 64), (1, "b" * 64)):
        one = result("none", seed=seed)
        one["protectee"]["weights"] = weights
        write_result(tmp_path / "digits8" / "none" / f"knockoff-direct-s{seed}.json", one)
    with pytest.raises(SpecError, match="attacked another victim"):
        read_results(tmp_path)


def test_seeds_with_victims_of_their_own_attack_them_victim_by_victim(tmp_path):
    changes = {"protectee__schedule__epochs": 1, "protectee__victim_per_seed": True, "seeds": [0, 1, 2]}
    done = run_spec(tiny_spec(**changes, defenses=["none"]), tmp_path, jobs=1)
    assert (done.done, done.failed) == (6, {})
    victims = {(one["seed"], one["protectee"]["weights"]) for one in read_results(tmp_path)}
    assert [seed for seed, _ in sorted(victims)] == [0, 1, 2]
    assert len({weights for _, weights in victims}) == 3


@given(st.randoms(use_true_random=False))
def test_cells_that_set_a_defense_up_come_first_victim_by_victim(random):
    matrix = [{"queries": "knockoff", "attacks": ["direct", "label_only", "ddae"]}]
    cells = list(tiny_spec(defenses=["none", "rounding", "mad"], matrix=matrix, seeds=[0, 1]).cells())
    some = random.sample(cells, random.randint(1, len(cells)))
    ordered = put_in_order(some)
    assert sorted(cell.path for cell in ordered) == sorted(cell.path for cell in some)
    assert [cell.seed for cell in ordered] == sorted(cell.seed for cell in some)
    for seed in {cell.seed for cell in some}:
        columns = [cell.column for cell in ordered if cell.seed == seed]
        count = len(set(columns))
        assert len(set(columns[:count])) == count
        rest = [cell for cell in ordered if cell.seed == seed][count:]
        assert [some.index(cell) for cell in rest] == sorted(some.index(cell) for cell in rest)


def test_a_run_does_not_mix_victims_into_a_folder(finished, tmp_path):
    out = copied(finished, tmp_path)
    first = out / PATHS[0]
    first.unlink()
    for path in PATHS[1:]:
        other = json.loads((out / path).read_text())
        other["protectee"]["weights"] = "0" * 64
        write_result(out / path, other)
    with pytest.raises(SpecError, match=r"a victim with weights 0{16}\.\.\., the one at hand has .* --out folder"):
        run_spec(tiny_spec(), out, jobs=1)


def test_a_part_of_the_cells_needs_only_what_these_need(tmp_path):
    spec = tiny_spec(protectee__calibration=0, defenses=["none", "queen-sentinel"])
    done = run_spec(spec, tmp_path, jobs=1, selected=spec.select(columns=["none"], attacks=["direct"]))
    assert (done.done, done.failed) == (1, {})
    with pytest.raises(SpecError, match="needs held-out images"):
        run_spec(spec, tmp_path, jobs=1)
