"""Who shares a network prefix or a group with the accused is refused, never deceived, and operators are told so."""

from __future__ import annotations

import asyncio

import pytest

from qa.serving import neighbours
from qa.serving.scenario import failed
from queen.cli import serve as command
from queen.options import Group, Limits
from queen.serve.neighbours import refuse_neighbours
from queen.serve.run import Ports
from queen.serve.unprotected import Unprotected
from tests.support.server import running_service
from tests.support.serving import small_guard

ENFORCING = {"tenant": Group(limits=Limits(), enforce_alarm=True), "everyone": Group(limits=Limits())}


@pytest.mark.parametrize("name", ["on_alarm", "on_spent"])
@pytest.mark.parametrize("choice", ["decoy", "reverse"])
def test_without_keys_wrong_answers_become_refusals(name, choice):
    guard, advice = refuse_neighbours(small_guard(**{name: choice}), anonymous=True)
    assert getattr(guard.bundle.sentinel, name) == "refuse"
    [sentence] = advice
    assert sentence.startswith(f"{name} is refuse, not {choice}")
    with_keys = small_guard(**{name: choice})
    assert refuse_neighbours(with_keys, anonymous=False) == (with_keys, [])


@pytest.mark.parametrize("on_alarm", ["refuse", "observe", "label-only"])
def test_what_is_not_wrong_stays_as_it_is(on_alarm):
    guard = small_guard(on_alarm=on_alarm)
    assert refuse_neighbours(guard, anonymous=True) == (guard, [])


def test_who_gives_no_decoys_is_left_alone():
    guard = small_guard(on_alarm="decoy", groups=ENFORCING, observe=True)
    assert refuse_neighbours(guard, anonymous=True) == (guard, [])
    unprotected = Unprotected(small_guard(on_alarm="decoy").bundle)
    assert refuse_neighbours(unprotected, anonymous=True) == (unprotected, [])


@pytest.mark.parametrize("policy", ["paper", "strict", "artifact"])
def test_policies_whose_answers_are_wrong_by_design_are_named_where_clients_share_them(policy):
    alone, pooled = small_guard(policy=policy), small_guard(policy=policy, groups=ENFORCING)
    assert refuse_neighbours(alone, anonymous=False) == (alone, [])
    for guard, anonymous, shared in ((alone, True, "network prefixes"), (pooled, False, "groups")):
        found, [sentence] = refuse_neighbours(guard, anonymous=anonymous)
        assert found is guard
        assert sentence.startswith(f"policy {policy} gives wrong answers")
        assert f"{shared} share" in sentence


@pytest.mark.long
@pytest.mark.slow
def test_the_scenario_holds_for_a_network_prefix_and_its_control_fails(tmp_path):
    assert failed(neighbours.prefixes(tmp_path / "real", 10)) == []
    wrong = failed(neighbours.prefixes(tmp_path / "broken", 10, neighbours.MODULE))
    assert [check.name for check in wrong] == ["network prefix: the neighbour gets no wrong label"]


@pytest.mark.parametrize(("on_alarm", "told"), [("decoy", 1), ("label-only", 1), ("refuse", 0), ("observe", 0)])
def test_groups_whose_alarm_is_enforced_are_named(on_alarm, told):
    guard = small_guard(on_alarm=on_alarm, groups=ENFORCING)
    found, advice = refuse_neighbours(guard, anonymous=False)
    assert found is guard
    assert len(advice) == told
    assert all("members of an accused group (tenant) are refused" in sentence for sentence in advice)
    assert (
        refuse_neighbours(small_guard(on_alarm=on_alarm, groups={"everyone": ENFORCING["everyone"]}), anonymous=False)[
            1
        ]
        == []
    )


def test_a_server_says_so_in_its_log_and_to_whoever_starts_it(tmp_path, caplog, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)

    async def look() -> str:
        async with running_service(tmp_path, on_alarm="decoy", anonymous=True) as (service, ports):
            command._print_addresses(service, Ports(ports.rest, 0, 0))
            return service.guard.bundle.sentinel.on_alarm

    with caplog.at_level("WARNING"):
        assert asyncio.run(look()) == "refuse"
    [line] = [record for record in caplog.records if record.message == "neighbours"]
    assert line.fields["why"].startswith("on_alarm is refuse, not decoy")
    assert "on_alarm is refuse, not decoy" in capsys.readouterr().err
