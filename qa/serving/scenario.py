"""A goal as a program: checks on the real server, the same on a broken one, and one last line with the figure."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

SKIPPED = 77  # the exit code of a goal that cannot be run here, as other test programs have it


@dataclass(frozen=True)
class Check:
    """One thing that must hold, and what was measured."""

    name: str
    holds: bool
    found: str = ""

    def __str__(self) -> str:
        """One line for people."""
        return f"{'ok    ' if self.holds else 'FAILED'} {self.name}{': ' if self.found else ''}{self.found}"


Scenario = Callable[[Path, bool], Sequence[Check]]


def failed(checks: Sequence[Check]) -> list[Check]:
    """Those that do not hold."""
    return [check for check in checks if not check.holds]


def none_of(name: str, wrong: Sequence[object], among: int) -> Check:
    """A check that holds if nothing is wrong; otherwise it shows the first few."""
    shown = f"; {', '.join(map(str, wrong[:5]))}"[:500] if wrong else ""
    return Check(name, not wrong, f"{len(wrong)} of {among}{shown}")


def main(goal: str, run: Scenario, control: Scenario, arguments: Sequence[str] | None = None) -> None:
    """Run a goal and its control from the command line; `run` and `control` take a folder and whether to be quick.

    `arguments` are those of the command line, unless the goal has taken some itself.
    """
    parser = argparse.ArgumentParser(description=goal)
    parser.add_argument("--quick", action="store_true", help="small numbers, for continuous integration")
    parser.add_argument("--out", type=Path, help="file to write the checks to, as JSON")
    options = parser.parse_args(arguments)
    quick = options.quick
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="queen-qa-") as folder:
        try:
            checks = list(run(_make(Path(folder) / "run"), quick))
            caught = failed(control(_make(Path(folder) / "control"), quick))
        except pytest.skip.Exception as reason:  # raised where a program is missing that the tests need too
            _print(f"{goal}: SKIPPED: {reason}")
            sys.exit(SKIPPED)
        checks, caught = ([_without(folder, check) for check in part] for part in (checks, caught))
    _print(*checks, *(f"       control, caught: {check.name}: {check.found}" for check in caught))
    checks.append(Check("the control fails", bool(caught)))
    wrong, seconds = failed(checks), time.monotonic() - start
    if options.out:
        report = {
            "goal": goal,
            "quick": quick,
            "seconds": round(seconds, 1),
            "machine": f"{os.cpu_count()} cores",
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "checks": [asdict(check) for check in checks],
            "control": [asdict(check) for check in caught],
        }
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    what = f"{len(checks)} checks hold" if not wrong else f"{len(wrong)} of {len(checks)} checks FAILED"
    _print(f"{goal} ({'quick' if quick else 'long'}, {seconds:.0f} s): {what}")
    sys.exit(bool(wrong))


def _without(folder: str, check: Check) -> Check:
    """The same without the name of a folder that is gone."""
    found = check.found.replace(folder, "FOLDER").replace(str(Path(__file__).parents[2]), "REPOSITORY")
    return replace(check, found=found)


def _make(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _print(*lines: object) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
