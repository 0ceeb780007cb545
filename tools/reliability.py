"""The reliability goals beside what was measured: a table of qa/goals.yaml and results/qa."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from queen.bench.render.markdown import markdown_table

ROOT = Path(__file__).parents[1]
GOALS, RESULTS, SCENARIOS = ROOT / "qa" / "goals.yaml", ROOT / "results" / "qa", ROOT / "qa"
CONTROL = "the control fails"  # the check that `qa/serving/scenario.py` adds to every goal
LONGEST = 160  # letters of a figure in a table
Report = Mapping[str, Any]


@dataclass(frozen=True)
class Goal:
    """What must hold, which checks show it, and what covers it where no scenario does."""

    number: int
    name: str
    must_hold: str
    figures: Sequence[str] = ()
    instead: str = ""


def read_goals(path: Path = GOALS) -> list[Goal]:
    """All goals in their order."""
    rows = yaml.safe_load(path.read_text())
    return [Goal(**{"must_hold" if key == "pass" else key: value for key, value in row.items()}) for row in rows]


def find_scenarios(folder: Path = SCENARIOS) -> dict[int, Path]:
    """The programs of the goals that have one, by number."""
    return {int(path.parent.name[:2]): path for path in sorted(folder.glob("[0-9][0-9]-*/run.py"))}


def find_figures(report: Report, patterns: Sequence[str] = ()) -> str:
    """What was measured: the last check for each pattern, or the last one of all that measured anything."""
    checks = [check for check in report["checks"] if check["found"] and check["name"] != CONTROL]
    chosen = [[check for check in checks if re.search(pattern, check["name"])] for pattern in patterns or [""]]
    return "; ".join(_shorten(f"{found[-1]['name']}: {found[-1]['found']}") for found in chosen if found)


def describe_outcome(report: Report) -> str:
    """Whether all checks hold, and how many there are."""
    wrong = [check for check in report["checks"] if not check["holds"]]
    count = len(report["checks"])
    return f"{len(wrong)} of {count} checks FAILED: {wrong[0]['name']}" if wrong else f"{count} checks hold"


def describe_control(report: Report) -> str:
    """What the checks found in something with the defect."""
    if not all(check["holds"] for check in report["checks"] if check["name"] == CONTROL):
        return "NOT caught"
    caught = report.get("control") or ()
    return _shorten(f"caught: {caught[0]['name']}: {caught[0]['found']}") if caught else "caught"


def goals_table(results: Path = RESULTS, scenarios: Path = SCENARIOS) -> str:
    """Every goal with a scenario beside its figure and its control."""
    programs = find_scenarios(scenarios)
    rows = [row for goal in read_goals() if goal.number in programs for row in _rows(goal, programs, results)]
    return markdown_table(("goal", "must hold", "outcome", "figure", "control", "run"), rows)


def _rows(goal: Goal, programs: Mapping[int, Path], results: Path) -> Iterator[tuple[str, ...]]:
    """One row per result file of the goal: it may have been run on several models."""
    folder = programs[goal.number].parent.name
    name = f"[{goal.number} {goal.name}](../qa/{folder}/README.md)"
    files = sorted(results.glob(f"{folder}*.json"), key=lambda path: (len(path.name), path.name))
    if not files:
        yield name, goal.must_hold, "not measured yet", "", "", ""
    for path in files:
        report, variant = json.loads(path.read_text()), path.stem.removeprefix(folder).strip("-")
        yield (
            f"{name}{', ' + variant if variant else ''}",
            goal.must_hold,
            describe_outcome(report),
            find_figures(report, goal.figures),
            describe_control(report),
            ", ".join(_circumstances(report)),
        )


def _circumstances(report: Report) -> Iterator[str]:
    """How it was run: in which mode, for how long, and when and where, if the file says so."""
    yield "quick" if report["quick"] else "long"
    yield f"{report['seconds']:.0f} s"
    yield from (str(report[key]) for key in ("machine", "date") if key in report)


def open_goals_table(scenarios: Path = SCENARIOS) -> str:
    """Every goal without a scenario, and what covers it."""
    programs = find_scenarios(scenarios)
    rows = [
        (f"{goal.number} {goal.name}", goal.must_hold, goal.instead or "nothing yet")
        for goal in read_goals()
        if goal.number not in programs
    ]
    return markdown_table(("goal", "must hold", "what covers it instead"), rows)


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 4]} ..."
