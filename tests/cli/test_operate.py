"""Operators' commands: how clients stand, who was accused, and what was done about it."""

from __future__ import annotations

import dataclasses
import getpass
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import queen
from queen.errors import OptionError
from queen.ledger import Budget, SqliteLedger
from queen.options import SENTINEL_LIMITS, Limits
from tests.support.commands import as_json, invoke, mistake, run
from tests.support.guards import fitted, held_out, queries, train_set, trained

FOG = 0.4 * torch.rand(60, 64, generator=torch.Generator().manual_seed(0))  # looks like no class
MORE_FOG = FOG.flip(1)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sentinel")
    fitted("head", policy="sentinel", on_alarm="decoy", limits=Limits(radius=0.05)).save(folder / "bundle")
    np.save(folder / "fog.npy", FOG.numpy())
    np.save(folder / "more_fog.npy", MORE_FOG.numpy())
    np.save(folder / "digits.npy", queries()[:20].numpy())
    np.savez(folder / "held_out.npz", **dict(zip("xy", (t.numpy() for t in held_out()), strict=True)))
    return folder


@pytest.fixture
def here(bundle, tmp_path, monkeypatch) -> Path:
    """A ledger in which alice is honest and mallory stands accused."""
    monkeypatch.chdir(tmp_path)
    run("ask", bundle / "bundle", bundle / "digits.npy", "--client", "alice", "--ledger", "c.sqlite")
    run("ask", bundle / "bundle", bundle / "fog.npy", "--client", "mallory", "--ledger", "c.sqlite")
    return tmp_path


def test_clients_are_listed_with_the_most_suspicious_first(here):
    mallory, alice = as_json("clients", "--ledger", "c.sqlite")
    assert (mallory["name"], alice["name"]) == ("mallory", "alice")
    assert (mallory["alarmed"], alice["alarmed"]) == (True, False)
    assert mallory["wealth"] >= 1000 > alice["wealth"]
    assert mallory["queries"] == 60
    shown = run("clients", "--ledger", "c.sqlite").stdout
    [alarm] = as_json("alarms", "--ledger", "c.sqlite")
    assert (mallory["after_alarm"], alice["after_alarm"]) == (60 - alarm["queries"] + 1, 0)  # the accusing one included
    assert f"accused, {mallory['after_alarm']} since" in shown
    assert shown.index("mallory") < shown.index("alice")


def test_a_client_that_is_out_of_budget_is_listed_so_until_it_gets_another(here, bundle):
    run("budget", "bob", "--threshold", 0, "--ledger", "c.sqlite")
    invoke("ask", bundle / "bundle", bundle / "digits.npy", "--client", "bob", "--ledger", "c.sqlite")
    assert "class spent" in next(
        line for line in run("clients", "--ledger", "c.sqlite").stdout.splitlines() if "bob" in line
    )
    assert [e["what"] for e in as_json("alarms", "--ledger", "c.sqlite") if e["name"] == "bob"] == ["class spent"]
    run("budget", "bob", "--threshold", 1, "--ledger", "c.sqlite")
    assert "class spent" not in run("clients", "--ledger", "c.sqlite").stdout


def test_a_class_is_spent_until_its_coverage_is_forgotten(here, bundle):
    run("budget", "bob", "--threshold", 0, "--ledger", "c.sqlite")
    invoke("ask", bundle / "bundle", bundle / "digits.npy", "--client", "bob", "--ledger", "c.sqlite")
    for forget in (False, True):
        with closing(SqliteLedger("c.sqlite")) as ledger:
            ledger.rebind("[]", "olga", name="bundle", forget_coverage=forget)
        assert ("class spent" in run("clients", "--ledger", "c.sqlite").stdout) != forget


def test_alarms_tell_who_when_and_on_what_evidence(here):
    [alarm] = as_json("alarms", "--ledger", "c.sqlite")
    assert (alarm["what"], alarm["name"], alarm["client"]) == ("alarm", "mallory", "mallory")
    assert alarm["wealth"] >= 1000
    assert 1 < alarm["queries"] < 60
    assert alarm["acknowledged"] is None
    assert "mallory" in run("alarms", "--ledger", "c.sqlite").stdout


def test_an_acknowledged_alarm_is_not_shown_again_unless_asked_for(here):
    assert as_json("alarms", "--ledger", "c.sqlite", "--acknowledge", 1, "--actor", "eve") == []
    [alarm] = as_json("alarms", "--ledger", "c.sqlite", "--all")
    assert alarm["acknowledged"] == "eve"
    assert "no event 9" in mistake("alarms", "--ledger", "c.sqlite", "--acknowledge", 9)


def test_a_pardon_clears_the_alarm_and_is_logged_with_its_actor(here):
    run("pardon", "mallory", "--ledger", "c.sqlite")
    [mallory] = [line for line in as_json("clients", "--ledger", "c.sqlite") if line["name"] == "mallory"]
    assert not mallory["alarmed"]
    assert mallory["wealth"] == 0
    assert mallory["extra_answers"] > 0
    last = as_json("alarms", "--ledger", "c.sqlite", "--all")[-1]
    assert (last["what"], last["name"], last["actor"]) == ("pardon", "mallory", getpass.getuser())
    assert "no client 'nobody'" in mistake("pardon", "nobody", "--ledger", "c.sqlite")


def test_the_allow_list_has_a_way_in_and_out(here, bundle):
    run("allow", "mallory", "--ledger", "c.sqlite")
    ask = ["ask", bundle / "bundle", bundle / "fog.npy", "--client", "mallory", "--ledger", "c.sqlite"]
    honest = torch.tensor(as_json(*ask)["probabilities"])
    assert torch.allclose(honest, queen.load(bundle / "bundle").measure(FOG).honest, rtol=0, atol=2e-2)  # rounded
    assert "allowed" in run("clients", "--ledger", "c.sqlite").stdout
    run("allow", "mallory", "--off", "--ledger", "c.sqlite")
    assert torch.allclose(torch.tensor(as_json(*ask)["probabilities"]), honest)  # what it was answered stays so
    ask[2] = bundle / "more_fog.npy"
    asked = queen.load(bundle / "bundle").measure(MORE_FOG)
    assert not torch.allclose(torch.tensor(as_json(*ask)["probabilities"]), asked.honest, atol=1e-2)


def test_a_client_may_have_a_budget_of_its_own(here, bundle):
    run("budget", "alice", "--extra-answers", 0, "--threshold", 0.0, "--ledger", "c.sqlite")
    with_ledger = SqliteLedger("c.sqlite")
    assert with_ledger.standing("alice").budget == Budget(extra_answers=0, threshold=0.0)
    with_ledger.close()
    np.save("new.npy", queries()[100:120].numpy())
    ask = ["ask", bundle / "bundle", "new.npy", "--client", "alice", "--ledger", "c.sqlite"]
    asked = invoke(*ask)
    assert asked.exit_code == 1
    assert "budget of honest answers is spent" in asked.stderr
    run("budget", "alice", "--off", "--ledger", "c.sqlite")
    assert run(*ask)


def test_a_budget_of_its_own_may_renew_and_the_list_says_what_is_left_and_until_when(here, bundle):
    run("budget", "alice", "--extra-answers", "20/day", "--threshold", "0.5/week", "--ledger", "c.sqlite")
    (alice,) = [line for line in as_json("clients", "--ledger", "c.sqlite") if line["name"] == "alice"]
    assert alice["budget"] == {"extra_answers": "20/day", "threshold": "0.5/week"}
    listed = " ".join(run("clients", "--ledger", "c.sqlite").output.split())
    assert "alice has a budget of its own: 20/day extra answers, 0 used, 20 left, renews 20" in listed
    assert "threshold 0.5/week, renews 20" in listed


def test_a_budget_per_period_that_nobody_knows_is_refused_with_a_right_one(here, bundle):
    wrong = mistake("budget", "alice", "--extra-answers", "20/year", "--ledger", "c.sqlite")
    assert "such as \"2000/day\"; got '20/year'" in " ".join(wrong.split())


@pytest.mark.parametrize("options", [[], ["--off", "--extra-answers", "5"]], ids=["nothing", "both"])
def test_a_budget_must_say_what_it_is(here, options):
    assert "--extra-answers, --threshold or both" in mistake("budget", "alice", "--ledger", "c.sqlite", *options)


def test_the_ledger_that_a_server_keeps_here_needs_no_name(here, monkeypatch):
    assert "say which clients" in mistake("clients")
    run("allow", "monitoring", "--ledger", "c.sqlite")
    for home in (Path(".queen"), Path("home")):
        home.mkdir()
        with closing(SqliteLedger(home / "ledger.sqlite")) as ledger:
            ledger.allow(f"of {home}", "boss")
    assert [line["name"] for line in as_json("clients")] == ["of .queen"]
    monkeypatch.setenv("QUEEN_HOME", "home")
    assert [line["name"] for line in as_json("clients")] == ["of home"]
    assert len(as_json("clients", "--ledger", "c.sqlite")) == 3
    monkeypatch.setenv("QUEEN_LEDGER", "c.sqlite")
    assert len(as_json("clients")) == 3


def test_what_changes_nothing_says_so(here):
    ledger = ("--ledger", "c.sqlite")
    assert run("allow", "alice", *ledger).stdout == "alice is on the allow-list\n"
    assert run("allow", "alice", "--off", *ledger).stdout == "alice is no longer on the allow-list\n"
    assert run("allow", "alice", "--off", *ledger).stdout == "alice was not on the allow-list\n"


def test_an_event_that_is_marked_as_seen_is_said_to_be(here):
    assert "event 1 is marked as seen" in run("alarms", "--acknowledge", "1", "--ledger", "c.sqlite").stderr
    assert as_json("alarms", "--acknowledge", "1", "--ledger", "c.sqlite") == []


@pytest.mark.parametrize("command", [["clients"], ["alarms"], ["pardon", "a"], ["allow", "a"]], ids=lambda c: c[0])
def test_a_ledger_that_is_not_there_is_not_made(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no ledger 'none.sqlite'" in mistake(*command, "--ledger", "none.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_ask_tells_that_the_client_stands_accused(here, bundle):
    ask = ["ask", bundle / "bundle", bundle / "fog.npy", "--client", "mallory", "--ledger", "c.sqlite"]
    answer = as_json(*ask)
    assert all(answer["alarmed"])
    assert all(round(number, 3) == number for row in answer["probabilities"] for number in row)  # not 0.33700001
    assert "the client stands accused" in run(*ask, "--explain").stdout


def test_certify_prints_what_the_sentinel_promises_and_what_not(bundle):
    certificate = as_json("certify", bundle / "bundle")
    guard = queen.load(bundle / "bundle")
    assert certificate["honest_answers_per_client"] == sum(guard.report["records_per_class"]) + 2000
    assert certificate["alpha"] == 1e-3
    statements = " ".join(certificate["sentinel"])
    assert "is ever accused is at most 0.001" in statements
    assert f"at most {certificate['honest_answers_per_client']} distinct answers" in statements
    assert "does not cover" in statements
    shown = " ".join(run("certify", bundle / "bundle").stdout.split())
    assert all(statement in shown for statement in certificate["sentinel"])


def test_protect_with_the_sentinel_wants_calibration_images(bundle, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    safetensors.torch.save_file(trained("mlp").state_dict(), "mlp.safetensors")
    x, y = (t.numpy() for t in train_set())
    np.savez("train.npz", x=x, y=y)
    protect = ["protect", "tests.support.guards:make_mlp", "--weights", "mlp.safetensors", "--data", "train.npz"]
    protect += ["--policy", "sentinel", "--out", "out"]
    assert "needs held-out images" in mistake(*protect)
    run(*protect, "--calibration", "train", "--alpha", 0.01, "--on-alarm", "decoy", "--extra-answers", 77)
    guard = queen.load("out")
    found = guard.bundle.sentinel
    assert (found.alpha, found.on_alarm, found.after_alarm, found.digits) == (0.01, "decoy", 2000, 2)
    assert guard.bundle.limits == dataclasses.replace(SENTINEL_LIMITS, extra_answers=77)
    assert "No certificate" in " ".join(as_json("certify", "out")["sentinel"])
    run(*protect, "--calibration", "train", "--after-alarm", -1, "--digits", 0)
    found = queen.load("out").bundle.sentinel
    assert queen.load("out").bundle.limits == SENTINEL_LIMITS
    assert (found.on_alarm, found.after_alarm, found.digits) == ("refuse", None, None)
    with pytest.raises(OptionError, match="no on_alarm 'shout'"):
        raise invoke(*protect, "--calibration", "train", "--on-alarm", "shout").exception


def test_calibrate_rewrites_the_bundle_for_worse_cameras(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fitted("network").save("bundle")
    x, y = held_out()
    np.savez("held_out.npz", x=x.view(-1, 1, 8, 8).numpy(), y=y.numpy())
    command = ["calibrate", "bundle", "--data", "held_out.npz", "--condition", "noise", "--condition", "blur"]
    report = as_json(*command)
    assert list(report["alarm_rates"]) == ["clean", "noise", "blur"]
    loaded = queen.load("bundle", policy="sentinel")
    assert loaded.bundle.calibration.conditions == ("clean", "noise", "blur")
    assert loaded.bundle.statement == report["statement"]
    shown = " ".join(run(*command).stdout.split())
    assert "a mixture like that of clean, noise, blur" in shown
    assert "no condition 'fog'" in mistake("calibrate", "bundle", "--data", "held_out.npz", "--condition", "fog")


def test_json_of_clients_holds_own_budgets(here):
    run("budget", "alice", "--extra-answers", 5, "--ledger", "c.sqlite")
    listed = as_json("clients", "--ledger", "c.sqlite")
    assert {line["name"]: line["budget"] for line in listed}["alice"] == {"threshold": None, "extra_answers": 5}
