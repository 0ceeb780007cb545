"""`make qa`: every scenario is run and judged by what it says, missing programs are named, Ctrl-C loses nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from tests.support.waiting import wait_for
from tools import qa

HEAD = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
import pytest
from qa.serving.scenario import Check, main
"""
GOOD = "main('9 good', lambda folder, quick: [Check('speed', True, '7')], lambda *_: [Check('speed', False, '900')])"
BAD = "main('10 bad', lambda folder, quick: [Check('speed', False, '70')], lambda *_: [Check('speed', False)])"
BLIND = "main('21 blind', lambda folder, quick: [Check('speed', True)], lambda *_: [Check('speed', True)])"
ABSENT = "main('22 absent', lambda folder, quick: pytest.skip('redis-server is not installed'), lambda *_: [])"
PARTIAL = (
    "main('23 part', lambda *_: [Check('redis-server is not installed: x', True)], lambda *_: [Check('y', False)])"
)
BROKEN = "raise RuntimeError('no such model')"
ENDLESS = "import time\nprint('at work', flush=True)\ntime.sleep(1000)"


@pytest.fixture
def scenarios(tmp_path, monkeypatch):
    """Makes scenarios of these programs, by the names of their folders, instead of the real ones."""

    def make(**programs):
        found = {}
        for name, code in programs.items():
            path = tmp_path / name.replace("_", "-").removeprefix("goal-") / "run.py"
            path.parent.mkdir()
            path.write_text(HEAD.format(root=str(ROOT)) + code)
            found[int(path.parent.name[:2])] = path
        monkeypatch.setattr(qa, "find_scenarios", lambda: found)
        return tmp_path / "out"

    return make


def outcomes_of(capsys):
    return {row["scenario"]: row for row in json.loads(capsys.readouterr().out)}


def test_good_ones_pass_with_figure_and_control(scenarios, capsys):
    out = scenarios(goal_61_good=GOOD)
    assert qa.main(["--out", str(out), "--json"]) == 0
    [done] = outcomes_of(capsys).values()
    assert done["status"] == "holds"
    assert done["figure"] == "speed: 7"
    assert done["control"] == "caught: speed: 900"
    assert json.loads((out / "61-good.json").read_text())["quick"]
    assert "2 checks hold" in (out / "61-good.log").read_text()


def test_every_way_to_fail_is_a_failure_and_the_others_go_on(scenarios, capsys):
    out = scenarios(goal_61_bad=BAD, goal_62_blind=BLIND, goal_63_broken=BROKEN, goal_64_good=GOOD)
    assert qa.main(["--out", str(out), "--json"]) == 1
    done = outcomes_of(capsys)
    assert {name: row["status"] for name, row in done.items()} == {
        "61-bad": "FAILED",
        "62-blind": "FAILED",
        "63-broken": "FAILED",
        "64-good": "holds",
    }
    assert done["62-blind"]["control"] == "NOT caught"
    assert "no such model" in done["63-broken"]["found"]


def test_what_a_missing_program_prevents_is_said_and_fails_nothing(scenarios, capsys, monkeypatch):
    out = scenarios(goal_61_absent=ABSENT, goal_62_part=PARTIAL)
    monkeypatch.setattr(qa.shutil, "which", lambda name: None)
    assert qa.main(["--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "redis-server is NOT INSTALLED" in shown
    assert "skipped" in shown
    assert "PARTLY SKIPPED" in shown


def test_a_hung_one_is_ended_and_named(scenarios, capsys, monkeypatch):
    out = scenarios(goal_61_hung=ENDLESS)
    monkeypatch.setattr(qa, "PATIENCE", {True: 0.01, False: 0.01})
    assert qa.main(["--out", str(out), "--json"]) == 1
    assert "hung" in outcomes_of(capsys)["61-hung"]["found"]


def test_some_may_be_chosen_by_number_or_name(scenarios):
    scenarios(goal_06_good=GOOD, goal_61_bad=BAD, goal_62_going_back=BAD)
    assert [path.parent.name for path in qa.choose(["62", "6"])] == ["06-good", "62-going-back"]
    assert [path.parent.name for path in qa.choose(["going-back", "62"])] == ["62-going-back"]
    with pytest.raises(ValueError, match=r"got 63; there are 06-good, 61-bad, 62-going-back"):
        qa.choose(["63"])


@pytest.mark.slow
def test_ctrl_c_shows_what_was_done(scenarios):
    out = scenarios(goal_61_good=GOOD, goal_62_hung=ENDLESS)
    programs = {number: str(path) for number, path in qa.find_scenarios().items()}
    code = f"""
import signal
import sys
from pathlib import Path
from tools import qa
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started deaf to it
qa.find_scenarios = lambda: {{number: Path(path) for number, path in {programs!r}.items()}}
sys.exit(qa.main(["--out", {str(out)!r}]))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    log = out / "62-hung.log"
    wait_for(lambda: log.exists() and "at work" in log.read_text())
    os.killpg(process.pid, signal.SIGINT)
    shown, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "61-good" in shown
    assert "stopped" in shown
