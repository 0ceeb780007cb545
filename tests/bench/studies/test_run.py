from __future__ import annotations

import json
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from queen.attacks import ATTACKS
from queen.bench.parsing import SpecError
from queen.bench.studies import STUDIES, find_study
from queen.bench.studies import run as run_module
from queen.bench.studies.base import StudyContext, read_study
from queen.bench.studies.formatting import percent, percent_range
from queen.bench.studies.run import read_study_result, run_study
from queen.cli import app
from queen.errors import OptionError
from tests.support.paths import ROOT

QUICK = {
    "threshold": {"thresholds": [0.2], "attacks": ["direct"], "defenses": ["queen"], "pools": "foreign"},
    "radius": {"radii": [0.3], "attacks": ["direct"], "defenses": ["queen"], "pools": "foreign"},
    "shadow_models": {"counts": [2], "seeds": [0], "pool": "foreign"},
    "forget_quality": {"defenses": ["rounding"], "control": False},
    "quartiles": {"sources": ["own_kind"], "attacks": ["direct"], "per_class": 3, "seeds": [0]},
    "features": {"test": 40, "pool": 30, "perplexity": 5},
    "detectors": {"defenses": ["seat", "quick-sentinel"], "clients": 3, "life": 50, "queries": ["knockoff"]},
    "costs": {"defenses": ["none", "quick-sentinel"], "orders": 1, "budgets": [50], "pools": ["foreign"]},
    "runtime": {"queries": 20, "repeats": 1, "defenses": ["rounding", "queen"]},
}


def write(folder: Path, name: str, content: object) -> Path:
    path = folder / f"{name}.study.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_leaves_a_whole_result_and_a_picture(context, folder, name):
    threads = torch.get_num_threads()
    path = write(folder, name, {"base": "tiny.yaml", **QUICK[name]})
    result = run_study(name, STUDIES[name], path, folder / "out", cache=folder / "cache", progress=False)
    assert read_study_result(name, folder / "out") == result
    assert result["study"] == result["config"]["study"] == name
    assert result["hardware"]["threads"] == 1
    assert torch.get_num_threads() == threads
    assert result["config"]["base"]["budget"] == 200
    assert (folder / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in (folder / "out").glob(f"*{name}*")) == [f"{name}.json", f"{name}.png"]
    text = STUDIES[name].to_markdown(result)
    assert text.startswith("|")
    assert text.endswith("\n")
    changed = {**result, "version": 0}
    (folder / "old").mkdir(exist_ok=True)
    (folder / "old" / f"{name}.json").write_text(json.dumps(changed))
    with pytest.raises(SpecError, match="version 0"):
        read_study_result(name, folder / "old")


@pytest.mark.slow
def test_what_other_processes_have_done_is_not_done_again(folder, monkeypatch):
    path = write(folder, "shared", {"base": "tiny.yaml", **QUICK["costs"], "defenses": ["none", "rounding", "harsh"]})
    alone = run_study("costs", STUDIES["costs"], path, folder / "alone", cache=folder / "cache-alone", progress=False)
    cached, computed = StudyContext.cached, []

    def noted(context, name, depends_on, compute):
        return cached(context, name, depends_on, lambda: computed.append(depends_on) or compute())

    @contextmanager
    def one_after_another(work, begins):
        for begin in begins:
            work(begin)
        yield

    monkeypatch.setattr(StudyContext, "cached", noted)
    monkeypatch.setattr(run_module, "at_the_same_time", one_after_another)
    out, cache = folder / "together", folder / "cache-together"
    together = run_study("costs", STUDIES["costs"], path, out, cache=cache, jobs=3, progress=False)
    assert [parts[0] for parts in computed] == ["rounding", "rounding", "harsh", "harsh", "none", "none"]
    assert {name: together[name] for name in ("benign", "thieves")} == {
        name: alone[name] for name in ("benign", "thieves")
    }
    assert (together["hardware"]["jobs"], alone["hardware"]["jobs"]) == (3, 1)


@pytest.mark.slow
def test_processes_that_share_a_study_are_real(folder):
    path = write(folder, "real", {"base": "tiny.yaml", **QUICK["threshold"], "thresholds": [0.1, 0.3], "seeds": [4]})
    results = [
        run_study("threshold", STUDIES["threshold"], path, folder / f"of-{jobs}", cache=cache, jobs=jobs)["rows"]
        for jobs, cache in ((2, folder / "cache-of-2"), (1, folder / "cache"))
    ]
    assert results[0] == results[1]


def test_times_are_taken_by_one_process(folder, context, monkeypatch):
    begun = []
    monkeypatch.setattr(run_module, "at_the_same_time", lambda _, begins: nullcontext(begun.extend(begins)))
    path = write(folder, "alone", {"base": "tiny.yaml", **QUICK["runtime"]})
    result = run_study("runtime", STUDIES["runtime"], path, folder / "timed", cache=folder / "cache", jobs=4)
    assert begun == []
    assert result["hardware"]["jobs"] == 1


def test_jobs_are_at_least_one(folder):
    path = write(folder, "none", {"base": "tiny.yaml", **QUICK["costs"]})
    with pytest.raises(OptionError, match="jobs must be a whole number of at least 1, got 0"):
        run_study("costs", STUDIES["costs"], path, folder / "out", jobs=0)


@given(count=st.integers(0, 30), begin=st.floats(0, 1, exclude_max=True))
def test_a_process_that_begins_elsewhere_goes_through_all_items(context, count, begin):
    ordered = list(replace(context, begin=begin).each("items", range(count)))
    assert sorted(ordered) == list(range(count))
    assert ordered[:1] == [int(begin * count)][:count]


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_a_file_of_parameters_and_defaults(name):
    spec, parameters = read_study(STUDIES[name], ROOT / "benchmarks" / "studies" / f"{name}.yaml")
    assert spec.name == "smoke"
    plain, defaults = read_study(STUDIES[name], ROOT / "benchmarks" / "smoke.yaml")
    assert plain == spec
    assert type(defaults) is type(parameters)


COMMITTED = sorted((ROOT / "benchmarks" / "studies").rglob("*.yaml"))


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_file_of_parameters_that_ships_is_valid(path):
    spec, parameters = read_study(STUDIES[path.stem], path)
    assert spec.name == ("smoke" if path.parent.name == "studies" else path.parent.name)
    assert type(parameters) is STUDIES[path.stem].parameters


def test_the_file_for_cifar10_trains_the_thieves_that_it_says():
    path = ROOT / "benchmarks" / "studies" / "cifar10" / "costs.yaml"
    spec, parameters = read_study(STUDIES["costs"], path)
    pools = {"foreign": spec.budget, "own_kind": spec.protectee.benign}
    reached = sum(budget <= pools[pool] for pool in parameters.pools for budget in parameters.budgets)
    thieves = reached * len(parameters.defenses) * len(parameters.seeds)
    assert f"So {thieves}\n# thieves" in path.read_text()


def test_unknown_studies_are_answered_with_the_nearest():
    with pytest.raises(OptionError, match=r"no study 'raduis'; known: threshold, .*; did you mean 'radius'\?"):
        find_study("raduis")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"radi": [0.1]}, "no key 'radi'; known: .*did you mean 'radii'"),
        ({"radii": ["wide"]}, "radii: expected float, got 'wide'"),
        ({"radii": []}, "radii: expected at least one, got none"),
        ({"base": "nowhere.yaml"}, "cannot read spec .*nowhere.yaml"),
        ({"base": None}, "key 'base' is missing"),
        ([1], "expected keys and values, got list"),
    ],
)
def test_mistakes_in_a_file_of_parameters_are_named(folder, content, message):
    content = {"base": "tiny.yaml", **content} if isinstance(content, dict) else content
    with pytest.raises(SpecError, match=message):
        read_study(STUDIES["radius"], write(folder, "wrong", content))


CANNOT = {
    "threshold": ({}, {"benign": 0}, "needs images of the victim's own kind: say protectee: benign: 600"),
    "radius": ({"defenses": ["quen"]}, {}, "no defense 'quen'.*did you mean 'queen'"),
    "shadow_models": ({"attacks": ["dirct"]}, {}, "no attack 'dirct'.*did you mean 'direct'"),
    "forget_quality": ({}, {"calibration": 0}, "defense 'queen-sentinel' needs held-out images: give protectee: calib"),
    "quartiles": ({"attacks": ["warm_up"], "sources": "train"}, {"benign": 0}, "attack 'warm_up' owns images of the"),
    "features": ({"test": 20, "pool": 20}, {}, "more than three times the perplexity"),
    "detectors": ({"defenses": ["seat", "rounding"]}, {}, "defense 'rounding' accuses nobody"),
    "costs": (
        {"budgets": [300]},
        {},
        "budgets must begin with at most the number of queries in the base's budget, 200",
    ),
    "runtime": ({"defenses": ["non"]}, {}, "no defense 'non'"),
}


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_refuses_a_base_that_it_cannot_use_before_any_work(folder, tmp_path, name, monkeypatch):
    parameters, changes, message = CANNOT[name]
    base = yaml.safe_load((folder / "tiny.yaml").read_text())
    base["protectee"] |= changes
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))
    monkeypatch.setattr(run_module, "make_protectee", lambda *_: pytest.fail("worked"))
    path = write(tmp_path, name, {"base": "base.yaml", **parameters})
    with pytest.raises(OptionError, match=message):
        run_study(name, STUDIES[name], path, tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_a_study_has_the_first_victim_of_a_spec_with_one_per_seed(folder, tmp_path):
    base = yaml.safe_load((folder / "tiny.yaml").read_text())
    base["seeds"] = [2, 3]
    base["protectee"] |= {"seed": 5, "victim_per_seed": True}
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))
    spec, _ = read_study(STUDIES["runtime"], tmp_path / "base.yaml")
    assert spec.protectee.seed == 7
    assert not spec.protectee.victim_per_seed


def test_a_study_whose_attack_does_not_go_with_its_queries_is_refused(folder, monkeypatch):
    only_jbda = replace(ATTACKS["direct"], queries=("jbda_tr",))
    monkeypatch.setitem(ATTACKS, "direct", only_jbda)
    with pytest.raises(OptionError, match="attack 'direct' does not go with the queries 'knockoff'"):
        read_study(STUDIES["quartiles"], folder / "tiny.yaml")


def test_unknown_names_in_parameters_are_answered_with_the_nearest(context):
    with pytest.raises(OptionError, match="no pool 'own'; known: foreign, own_kind"):
        context.protectee_for("own")
    with pytest.raises(OptionError, match=r"no defense 'quen'.*did you mean 'queen'"):
        context.make_trial("quen", seed=0)
    with pytest.raises(OptionError, match=r"no attack 'dirct'.*did you mean 'direct'"):
        context.make_trial("queen", seed=0, attack="dirct")


def test_own_kind_images_must_be_there(context):
    poor = replace(context, spec=replace(context.spec, protectee=replace(context.spec.protectee, benign=0)))
    with pytest.raises(SpecError, match="protectee: benign: 600"):
        poor.protectee_for("own_kind")


def test_shares_are_said_in_percent():
    assert (percent(), percent(0.5), percent(0.5, 0.7)) == ("-", "50.0", "60.0 ± 14.1")
    assert (percent_range([0.5, 0.5]), percent_range([0.5, 0.25])) == ("50.0 %", "25.0 to 50.0 %")


def test_a_column_of_the_spec_may_name_another_method(context):
    trial = context.make_trial("harsh", seed=3, options={"threshold": 0.5})
    assert (trial.defense, trial.seed, trial.budget) == ("queen-strict", 3, 200)
    assert trial.options == {"map_epochs": 20, "shadow_models": 2, "threshold": 0.5}


def test_the_command_prints_the_result(context, folder):
    path = write(folder, "cli", {"base": "tiny.yaml", **QUICK["threshold"]})
    words = ["bench", "study", "threshold", str(path), "--out", str(folder / "cli"), "--cache", str(folder / "cache")]
    plain = CliRunner().invoke(app, words)
    assert plain.exit_code == 0
    assert plain.stdout.startswith("| attacker's images |")
    as_json = CliRunner().invoke(app, [*words, "--json"])
    assert json.loads(as_json.stdout) == json.loads((folder / "cli" / "threshold.json").read_text())
    wrong = CliRunner().invoke(app, ["bench", "study", "treshold", *words[3:]])
    assert "did you mean 'threshold'" in str(wrong.exception)


def test_a_result_of_another_study_is_refused(tmp_path):
    (tmp_path / "radius.json").write_text(json.dumps({"version": 1, "study": "threshold"}))
    with pytest.raises(SpecError, match="not a result of the study 'radius'"):
        read_study_result("radius", tmp_path)
