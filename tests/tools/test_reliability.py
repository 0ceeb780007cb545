"""The page of goals: each goal beside its figure and its control, and those without a scenario by name."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.paths import ROOT
from tools import reliability


@pytest.fixture
def place(tmp_path):
    """A folder of results and one of scenarios, with one program for goal 9 and one for 21."""
    for name in ("09-slow-clients", "21-fairness"):
        (tmp_path / "qa" / name).mkdir(parents=True)
        (tmp_path / "qa" / name / "run.py").touch()
    (tmp_path / "results").mkdir()
    return tmp_path


def check(name, holds=True, found=""):
    return {"name": name, "holds": holds, "found": found}


def report(*checks, **more):
    return {
        "goal": "9 slow clients",
        "quick": False,
        "seconds": 50.6,
        "checks": [*checks, check("the control fails")],
        **more,
    }


def test_a_goal_stands_beside_its_figure_and_its_control(place):
    found = report(
        check("slow clients kept longer", found="0 of 1050"),
        check("99th percentile", found="1.56 times"),
        check("the server lives"),
        control=[check("slow clients kept longer", holds=False, found="900 of 1050")],
        machine="2 cores",
        date="2026-11-16",
    )
    (place / "results" / "09-slow-clients.json").write_text(json.dumps(found))
    table = reliability.goals_table(place / "results", place / "qa")
    [row] = [line for line in table.splitlines() if "9 slow clients" in line]
    assert row.endswith(
        "| 4 checks hold | slow clients kept longer: 0 of 1050; 99th percentile: 1.56 times "
        "| caught: slow clients kept longer: 900 of 1050 | long, 51 s, 2 cores, 2026-11-16 |"
    )


def test_what_was_not_measured_is_said(place):
    table = reliability.goals_table(place / "results", place / "qa")
    assert table.count("| not measured yet |") == 2
    assert "[21 fairness](../qa/21-fairness/README.md)" in table


def test_a_goal_is_in_one_of_the_two_tables(place):
    with_scenario = reliability.goals_table(place / "results", place / "qa")
    without = reliability.open_goals_table(place / "qa")
    for goal in reliability.read_goals():
        assert f"{goal.number} {goal.name}" in (with_scenario if goal.number in (9, 21) else without)


def test_without_a_pattern_the_last_check_that_measured_something_is_the_figure():
    found = report(check("first", found="1"), check("second", found="2"), check("no number"))
    assert reliability.find_figures(found) == "second: 2"


def test_failures_are_shouted():
    found = report(check("fast", holds=False, found="no"))
    found["checks"][-1] = check("the control fails", holds=False)
    assert reliability.describe_outcome(found) == "2 of 2 checks FAILED: fast"
    assert reliability.describe_control(found) == "NOT caught"


def test_long_figures_are_cut_to_one_line():
    figure = reliability.find_figures(report(check("log", found="a line\n" * 100)))
    assert len(figure) == reliability.LONGEST
    assert figure.endswith(" ...")


def test_goals_are_numbered_through_and_every_scenario_has_one():
    goals = reliability.read_goals()
    assert [goal.number for goal in goals] == list(range(1, len(goals) + 1))
    assert set(reliability.find_scenarios()) <= {goal.number for goal in goals}


def test_what_covers_a_goal_instead_exists():
    named = [path for goal in reliability.read_goals() for path in re.findall(r"`([\w./-]+/[\w./-]+)`", goal.instead)]
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(
    "goal", [goal for goal in reliability.read_goals() if goal.figures], ids=lambda goal: goal.name
)
def test_every_figure_is_found_in_the_committed_results(goal):
    files = list(reliability.RESULTS.glob(f"{goal.number:02}-*.json"))
    for path in files:
        names = [check["name"] for check in json.loads(path.read_text())["checks"] if check["found"]]
        assert [figure for figure in goal.figures if not any(re.search(figure, name) for name in names)] == []
