"""The audit: among recorded queries a thief is found, at the query where a live sentinel would have accused it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner, Result

from queen import cli
from queen.core import inputs
from queen.errors import CalibrationError, OptionError, QueenError, RefusedError
from queen.options import Group, Limits
from queen.policy import Action, find_policy
from queen.progress import Progress
from queen.serve.querylog import audit as module
from queen.serve.querylog.audit import AuditReport, audit
from queen.serve.querylog.folder import read_log
from queen.serve.querylog.format import LoggedRequest
from queen.serve.querylog.writer import QueryLog
from tests.support.guards import fitted, queries
from tests.support.paths import ROOT
from tests.support.serving import WIDE, digits, noise, small_bundle, small_guard

START = datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()
TIGHT = Limits(radius=0.3, threshold=0.1, extra_answers=25)


def requests(
    client: str, x: Tensor, *, rows: int = 1, start: float = START, groups: tuple[str, ...] = ()
) -> list[LoggedRequest]:
    """One request a second."""
    return [LoggedRequest(start + i, client, groups, part) for i, part in enumerate(x.split(rows))]


def mixed(*streams: list[LoggedRequest]) -> list[LoggedRequest]:
    return sorted((entry for stream in streams for entry in stream), key=lambda entry: entry.at)


@pytest.fixture(scope="module")
def traffic() -> list[LoggedRequest]:
    """Alice sends digits, mallory noise, bob two digits a request; all at the same time."""
    alice, bob = requests("alice", digits()[:150]), requests("bob", digits()[150:250], rows=2, start=START + 0.3)
    return mixed(alice, bob, requests("mallory", noise(), start=START + 0.6))


@pytest.fixture(scope="module")
def report(traffic) -> AuditReport:
    return audit(small_guard(), traffic)


@pytest.fixture(scope="module")
def log(traffic, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("audit") / "log"
    recorder = QueryLog(folder)
    for entry in traffic:
        recorder.write(entry.client, entry.groups, entry.inputs, entry.at)
    recorder.close()
    return folder


def test_the_thief_is_found_and_nobody_else(report):
    assert [one.name for one in report.accused] == ["mallory"]
    assert report.accounts[0].name == "mallory"
    assert {one.name: one.queries for one in report.accounts} == {"alice": 150, "bob": 100, "mallory": 150}
    assert (report.requests, report.queries, report.skipped) == (350, 400, 0)
    assert (report.first, report.last) == (START, START + 149.6)
    assert "at most 0.001" in report.statement
    mallory, alice = report.accounts[0], next(one for one in report.accounts if one.name == "alice")
    assert mallory.wealth >= 1000 > alice.wealth
    assert (alice.accused_at, alice.accused_at_query) == (None, None)
    assert alice.honest_answers == 150


def test_it_is_what_the_live_sentinel_would_have_said(report, traffic):
    """Accused at the same query, with the same wealth, coverage and honest answers before."""
    guard = small_guard(on_alarm="decoy")
    asked: dict[str, int] = {}
    accused: dict[str, tuple[int, float]] = {}
    for entry in traffic:
        alarmed = guard.answer(entry.inputs, client=entry.client).alarmed
        for row in alarmed.tolist():
            asked[entry.client] = asked.get(entry.client, 0) + 1
            if row and entry.client not in accused:
                accused[entry.client] = asked[entry.client], entry.at
    assert set(accused) == {"mallory"}
    for one in report.accounts:
        standing = guard.ledger.standing(one.name)
        assert (one.accused_at_query, one.accused_at) == accused.get(one.name, (None, None))
        assert one.wealth == pytest.approx(standing.wealth, rel=1e-3)
        assert one.extra_answers == standing.extra_answers
        assert one.coverage == pytest.approx(max(standing.coverage.values(), default=0.0), rel=1e-3)
    mallory = report.accounts[0]
    assert mallory.honest_answers == mallory.accused_at_query - 1  # WIDE limits: all were honest until then
    assert 1 < mallory.accused_at_query < 60


@pytest.mark.parametrize("batch", [1, 7, 10_000])
def test_the_size_of_batches_changes_nothing(report, traffic, batch):
    result = audit(small_guard(), traffic, batch=batch)
    key = [(one.name, one.queries, one.accused, one.accused_at_query, one.honest_answers) for one in result.accounts]
    assert key == [
        (one.name, one.queries, one.accused, one.accused_at_query, one.honest_answers) for one in report.accounts
    ]
    assert [one.wealth for one in result.accounts] == pytest.approx([one.wealth for one in report.accounts], rel=1e-3)


def test_honest_answers_are_those_that_the_policy_would_have_given():
    stream = requests("mallory", torch.cat([digits()[:60], noise(60)]))
    guard = small_guard(limits=TIGHT)
    policy = find_policy("sentinel", guard.bundle.sentinel)
    honest, alarm = 0, None
    for i, entry in enumerate(stream):
        judgement = guard.judge(guard.measure(entry.inputs), "mallory")
        alarm = i + 1 if alarm is None and judgement.alarmed[0] else alarm
        honest += alarm is None and policy.actions(judgement)[0] == Action.HONEST
    [one] = audit(small_guard(limits=TIGHT), stream).accounts
    assert (one.honest_answers, one.accused_at_query) == (honest, alarm)
    assert one.honest_answers < one.accused_at_query - 1  # some were refused before


def test_the_policy_and_mode_of_the_server_do_not_matter(report, traffic):
    for options in ({"policy": "paper"}, {"observe": True}):
        result = audit(small_guard(**options), traffic)
        assert [one.name for one in result.accused] == ["mallory"]
        assert result.accounts[0].accused_at_query == report.accounts[0].accused_at_query
    observed = audit(small_guard(on_alarm="observe"), traffic).accounts[0]
    assert observed.honest_answers == report.accounts[0].honest_answers  # only those before the alarm count


def test_the_guard_that_is_audited_keeps_its_own_ledger(traffic):
    guard = small_guard()
    audit(guard, traffic[:20])
    assert list(guard.ledger.clients()) == []


def test_a_bundle_will_do(traffic):
    assert [one.name for one in audit(small_guard().bundle, traffic).accused] == ["mallory"]


def test_without_calibration_nobody_can_be_accused(traffic):
    with pytest.raises(CalibrationError, match="calibration"):
        audit(fitted("network"), requests("a", queries("network")[:3]))
    with pytest.raises(OptionError, match="batch"):
        audit(small_guard(), traffic, batch=0)


def test_groups_with_limits_are_judged_and_others_named():
    group = Group(limits=WIDE)
    guard = small_guard(groups={"tenant": group})
    names = ("tenant:7", "net:10.0.0.0/24")
    thieves = [requests(f"m{k}", noise(5, seed=k), start=START + k / 18, groups=names) for k in range(16)]
    result = audit(guard, mixed(*thieves, requests("alice", digits()[:50])))
    assert result.unpooled == ("net",)
    [first, *_] = result.accounts
    assert (first.name, first.group, first.accused) == ("tenant:7", True, True)
    assert first.queries == 80
    assert START < first.accused_at < START + 10
    exact = [entry.at for entry in mixed(*thieves)][first.accused_at_query - 1]
    assert first.accused_at == exact
    assert not any(one.accused for one in result.accounts if one.name == "alice")


def test_queries_that_do_not_fit_are_skipped_with_the_reason(traffic):
    odd = [
        LoggedRequest(START, "odd", (), torch.zeros(2, 1, 9, 9)),
        LoggedRequest(START + 1, "odd", (), torch.full((1, 1, 8, 8), 1e6)),
        LoggedRequest(START + 2, "odd", (), torch.full((1, 1, 8, 8), float("nan"))),
        LoggedRequest(START + 3, "odd", (), torch.zeros(1, 64)),
    ]
    result = audit(small_guard(), mixed(odd, traffic))
    assert result.skipped == 5
    assert len(result.reasons) == 3  # enough to understand
    assert "shape" in result.reasons[0]
    assert [one.name for one in result.accused] == ["mallory"]
    assert "odd" not in [one.name for one in result.accounts]


def test_a_log_of_another_model_is_an_error():
    with pytest.raises(OptionError, match=r"not one of 3 recorded queries fits.*shape"):
        audit(small_guard(), requests("a", torch.zeros(3, 64)))
    assert audit(small_guard(), []).accounts == ()


def test_other_precisions_and_double_images_mix(traffic):
    double = [LoggedRequest(e.at, e.client, e.groups, e.inputs.double()) for e in traffic[::2]]
    result = audit(small_guard(), mixed(double, traffic[1::2]))
    assert result.queries == 400
    assert [one.name for one in result.accused] == ["mallory"]


def test_named_tensors_are_joined_by_name_if_they_have_one_length():
    def text(rows: int, length: int) -> dict[str, Tensor]:
        ids = torch.arange(rows * length).view(rows, length)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    stream = [LoggedRequest(0.0, "a", (), text(*size)) for size in ((2, 5), (1, 5), (3, 7), (1, 5))]
    batches = list(module.joinable_batches(stream, 100))
    assert [len(batch) for batch in batches] == [2, 1, 1]
    joined = inputs.join([entry.inputs for entry in batches[0]])
    assert {name: tuple(t.shape) for name, t in joined.items()} == {"input_ids": (3, 5), "attention_mask": (3, 5)}
    assert joined["input_ids"][2].equal(torch.arange(5))


def test_rows_are_measured_together_not_one_by_one(traffic, monkeypatch):
    sizes = []
    real = module.Guard.measure
    monkeypatch.setattr(module.Guard, "measure", lambda self, x: sizes.append(len(x)) or real(self, x))
    audit(small_guard(), traffic, batch=64)
    assert sum(sizes) == 400
    assert len(sizes) <= 7


def test_progress_is_shown_per_request(traffic):
    counted = []

    class Counting(Progress):
        def each(self, name, items, total=None):
            for item in items:
                counted.append(name)
                yield item

    audit(small_guard(), traffic, progress=Counting(shown=False))
    assert counted == ["replay"] * 350


def test_what_was_refused_live_is_judged_all_the_same():
    """The log holds what was asked; a live guard that refuses raises, the replay goes on."""
    stream = requests("greedy", digits()[:200])
    guard = small_guard(limits=TIGHT)
    with pytest.raises(RefusedError):
        guard.answer(digits()[:200], client="greedy")
    [one] = audit(guard, stream).accounts
    assert one.queries == 200
    assert one.honest_answers < 200


# The command.


def run(*args: object) -> Result:
    return CliRunner().invoke(cli.app, [str(a) for a in args], env={"COLUMNS": "120", "TZ": "UTC"})


def test_the_command_prints_a_table_with_the_thief_first(log, report):
    done = run("audit", small_bundle(), log)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    names = [line.split()[0] for line in lines if line.split() and line.split()[0] in ("alice", "bob", "mallory")]
    assert names[0] == "mallory"
    assert sorted(names) == ["alice", "bob", "mallory"]
    assert "400 queries in 350 requests" in done.stdout
    assert "1 accused" in done.stdout
    assert str(report.accounts[0].accused_at_query) in next(line for line in lines if "mallory" in line)
    assert "note" not in done.output


def test_the_command_prints_json_and_can_fail(log, report):
    done = run("audit", small_bundle(), log, "--json", "--fail")
    assert done.exit_code == 1
    printed = json.loads(done.stdout)
    assert [one["name"] for one in printed["found"] if one["accused"]] == ["mallory"]
    assert printed["found"][0]["accused_at_query"] == report.accounts[0].accused_at_query
    assert printed["damaged"] == 0
    before = datetime.fromtimestamp(START + 3, UTC).isoformat()
    quiet = run("audit", small_bundle(), log, "--json", "--fail", "--until", before)
    assert quiet.exit_code == 0, quiet.output
    assert json.loads(quiet.stdout)["requests"] == 9


def test_the_command_reads_a_span_of_time(log):
    since, until = (datetime.fromtimestamp(START + s, UTC).isoformat() for s in (10, 20))
    printed = json.loads(run("audit", small_bundle(), log, "--json", "--since", since, "--until", until).stdout)
    assert START + 10 <= printed["first"] < printed["last"] < START + 20
    assert printed["requests"] == 30
    local = datetime.fromtimestamp(START + 10).isoformat()  # without an offset it is local time
    assert json.loads(run("audit", small_bundle(), log, "--json", "--since", local).stdout)["first"] == START + 10


def test_the_command_notes_what_it_could_not_read(log, tmp_path):
    recorder = QueryLog(tmp_path / "log")
    for entry in [*read_log(log), LoggedRequest(START, "odd", ("net:1",), torch.zeros(1, 1, 9, 9))]:
        recorder.write(entry.client, ("net:1",), entry.inputs, entry.at)
    recorder.close()
    [path] = (tmp_path / "log").glob("*.queries")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    done = run("audit", small_bundle(), tmp_path / "log", "--top", "1")
    assert done.exit_code == 0, done.output
    assert "1 queries do not fit this bundle" in done.stderr
    assert "no limits for groups of these kinds: net" in done.stderr
    assert "1 damaged places were skipped" in done.stderr
    assert "2 more are not shown; nobody of them is accused" in done.stdout
    assert "alice" not in done.stdout


def test_a_time_without_queries_is_no_mistake(log):
    done = run("audit", small_bundle(), log, "--since", "2100-01-01", "--fail")
    assert done.exit_code == 0, done.output
    assert "0 queries in 0 requests: 0 accused" in done.stdout


@pytest.mark.parametrize("options", [["--since", "yesterday"], ["--until", "99"], ["--batch", "0"]])
def test_mistakes_are_named(log, options):
    done = run("audit", small_bundle(), log, *options)
    assert isinstance(done.exception, QueenError), done.output
    assert isinstance(run("audit", small_bundle(), log.parent / "none").exception, OptionError)


def test_names_cannot_write_to_the_terminal(tmp_path):
    recorder = QueryLog(tmp_path / "log")
    recorder.write("evil\x1b[2J\nname", (), digits()[:3], START)
    recorder.close()
    done = run("audit", small_bundle(), tmp_path / "log")
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.stdout
    assert "evil<U+001B>[2J<U+000A>name" in done.stdout


@pytest.mark.slow
def test_the_command_needs_no_package_of_the_server(log):
    blocked = ["prometheus_client", "starlette", "uvicorn", "grpc", "orjson", "pydantic_settings", "redis"]
    script = (
        f"import sys\nfor name in {blocked}: sys.modules[name] = None\n"
        "from queen.cli import main\n"
        f"sys.argv = ['queen', 'audit', {str(small_bundle())!r}, {str(log)!r}, '--json', '--fail']\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT, timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["found"][0]["name"] == "mallory"


def test_wealth_is_a_plain_number(report):
    assert all(type(one.wealth) is float and np.isfinite(one.wealth) for one in report.accounts)
    assert all(type(one.honest_answers) is int for one in report.accounts)
