"""All reliability scenarios, one after the other: `python -m tools.qa`, or `make qa`.

Each is a program of its own (`qa/NN-name/run.py`), run here in quick mode unless `--long` is given. Its output goes to
a log beside its report, in `--out`. A table at the end says what was found; the exit code is 1 if something does not
hold, or if a control was not caught. Ctrl-C stops the one that runs and shows what was done.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tools.reliability import ROOT, describe_control, describe_outcome, find_figures, find_scenarios, read_goals

SKIPPED = 77  # as in qa/serving/scenario.py
PATIENCE = {True: 1200, False: 7200}  # seconds after which a quick or a long scenario counts as hung
GRACE = 20  # seconds to end in
LAST_LINES = 15


@dataclass(frozen=True)
class Outcome:
    """What one scenario did."""

    scenario: str
    status: str  # "holds", "FAILED", "skipped" or "stopped"
    seconds: float
    found: str = ""
    figure: str = ""
    control: str = ""


def choose(only: Sequence[str]) -> list[Path]:
    """The programs to run: all, or those with these numbers or names."""
    scenarios = find_scenarios()
    if not only:
        return list(scenarios.values())
    known = {name: path for path in scenarios.values() for name in (path.parent.name, path.parent.name[3:])}
    known |= {spelling: path for number, path in scenarios.items() for spelling in (str(number), f"{number:02}")}
    unknown = [name for name in only if name not in known]
    if unknown:
        names = ", ".join(path.parent.name for path in scenarios.values())
        raise ValueError(f"expected numbers or names of scenarios, got {', '.join(unknown)}; there are {names}")
    return sorted({known[name] for name in only})


def run_one(program: Path, out: Path, quick: bool) -> Outcome:
    """Run a scenario to its end, with its report and its log in `out`."""
    name, start = program.parent.name, time.monotonic()
    report = out / f"{name}.json"
    report.unlink(missing_ok=True)  # of an earlier run
    command = [sys.executable, str(program), "--out", str(report), *(["--quick"] if quick else [])]
    with (out / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT)  # noqa: S603  our own
        try:
            code = process.wait(PATIENCE[quick])
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    seconds = round(time.monotonic() - start, 1)
    if code is None:
        return Outcome(name, "FAILED", seconds, f"hung: no end within {PATIENCE[quick]} s")
    return judge(name, code, seconds, report, (out / f"{name}.log").read_text())


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a scenario as Ctrl-C does, so that it ends its own servers; or as nobody can resist."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def judge(name: str, code: int, seconds: float, report: Path, log: str) -> Outcome:
    """What an exit code and a report mean; without a report, the last line of the log says why."""
    last = (log.strip().splitlines() or [""])[-1]
    if code == SKIPPED:
        return Outcome(name, "skipped", seconds, last)
    if not report.exists():
        return Outcome(name, "FAILED", seconds, f"no report, exit code {code}: {last}")
    checks = json.loads(report.read_text())
    figures = {goal.number: goal.figures for goal in read_goals()}.get(int(name[:2]), ())
    missing = [check["name"] for check in checks["checks"] if "is not installed" in check["name"]]
    return Outcome(
        scenario=name,
        status="holds" if code == 0 else "FAILED",
        seconds=seconds,
        found="; ".join([describe_outcome(checks), *(f"PARTLY SKIPPED: {what}" for what in missing)]),
        figure=find_figures(checks, figures),
        control=describe_control(checks),
    )


def run_all(programs: Sequence[Path], out: Path, quick: bool, console: Console) -> list[Outcome]:
    """Run them in turn and say how far it is; after Ctrl-C, those that were done."""
    outcomes: list[Outcome] = []
    try:
        for number, program in enumerate(programs, 1):
            console.print(f"[{number}/{len(programs)}] {program.parent.name} ...", markup=False)
            outcomes.append(run_one(program, out, quick))
            done = outcomes[-1]
            console.print(f"      {done.status}, {done.seconds:.0f} s: {done.found}", markup=False, highlight=False)
            if done.status == "FAILED":
                lines = (out / f"{done.scenario}.log").read_text().splitlines()
                wrong = [line for line in lines if line.startswith("FAILED")] or lines[-LAST_LINES:]
                console.print("\n".join(f"      | {line}" for line in wrong), markup=False, highlight=False)
    except KeyboardInterrupt:
        outcomes.append(Outcome(programs[len(outcomes)].parent.name, "stopped", 0.0, "by Ctrl-C"))
    return outcomes


def to_table(outcomes: Sequence[Outcome]) -> Table:
    """What was found, for people."""
    table = Table("goal", "", "figure", "control", "seconds", title="Reliability scenarios")
    for done in outcomes:
        table.add_row(done.scenario, done.status, done.figure or done.found, done.control, f"{done.seconds:.0f}")
    return table


def main(arguments: Sequence[str]) -> int:
    """Run scenarios from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="GOAL", help="numbers or names: 9 21 going-back")
    parser.add_argument("--long", action="store_true", help="with the numbers of the goals")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "qa", help="folder for reports and logs")
    parser.add_argument("--json", action="store_true", help="outcomes as JSON, progress on standard error")
    options = parser.parse_args(arguments)
    try:
        programs = choose(options.only)
    except ValueError as error:
        parser.error(str(error))
    console = Console(stderr=options.json, soft_wrap=True)
    options.out.mkdir(parents=True, exist_ok=True)
    if not shutil.which("redis-server"):
        console.print("redis-server is NOT INSTALLED (Debian: apt install redis-server): what needs it is skipped")
    outcomes = run_all(programs, options.out.resolve(), not options.long, console)
    if options.json:
        print(json.dumps([asdict(done) for done in outcomes], indent=1))
    else:
        Console().print(to_table(outcomes))
    return 130 if outcomes[-1].status == "stopped" else int(any(done.status == "FAILED" for done in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
