"""Attacks that send the same queries get the same answers, asked for once."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from queen.attacks import ATTACKS
from queen.attacks.base import Sizes
from queen.bench.code import DEFENDING, describe_code
from queen.bench.spec import Utility
from queen.bench.trials.asking import interrogate, sends_plain_images
from queen.bench.trials.cell import run_trial
from queen.bench.trials.trial import Trial
from queen.cache import Cache
from queen.defenses.base import MappedEndpoint
from tests.support.benchmarks import tiny_protectee

QUEEN = {"map_epochs": 5, "radius": 0.2}
PLAIN = Trial(
    column="mine",
    defense="none",
    query="knockoff",
    attack="direct",
    budget=300,
    sizes=Sizes(mirror=False, ask_batch=64),
    utility=Utility(clients=3, queries=20),
)


@pytest.mark.parametrize("defense", ["rounding", "queen", "queen-sentinel"])
def test_shared_answers_are_those_that_the_attack_would_get_itself(tmp_path, defense):
    options = QUEEN if defense.startswith("queen") else {}
    trial = replace(PLAIN, defense=defense, options=options)
    alone = interrogate(trial, tiny_protectee())
    cache = Cache(tmp_path)
    first, second = (interrogate(replace(trial, attack=a), tiny_protectee(), cache) for a in ("direct", "label_only"))
    assert (alone.reused, first.reused, second.reused) == (False, False, True)
    for shared in (first, second):
        assert torch.equal(shared.transcript.x, alone.transcript.x)
        assert torch.equal(shared.transcript.answers, alone.transcript.answers)
        assert (shared.sent, shared.verdicts) == (alone.sent, alone.verdicts)
    assert first.seconds == second.seconds


def test_the_service_is_asked_once_for_all_attacks_that_send_the_same(tmp_path, monkeypatch):
    asked = []
    plain = MappedEndpoint.client

    def counting(self, name):
        oracle = plain(self, name)
        return lambda x: (asked.append(len(x)), oracle(x))[1]

    cache, trial = Cache(tmp_path), PLAIN
    monkeypatch.setattr(MappedEndpoint, "client", counting)
    for attack in ("direct", "label_only", "sanitiser"):
        interrogate(replace(trial, attack=attack), tiny_protectee(), cache)
    assert sum(asked) == trial.budget
    interrogate(replace(trial, seed=1), tiny_protectee(), cache)  # other images
    interrogate(replace(trial, defense="rounding"), tiny_protectee(), cache)
    interrogate(replace(trial, budget=100), tiny_protectee(), cache)
    assert sum(asked) == 3 * trial.budget + 100


def test_attacks_that_ask_in_their_own_way_share_nothing():
    own_way = {a for a in ATTACKS if not sends_plain_images(replace(PLAIN, attack=a))}
    assert {"smoothing", "many_accounts", "look_alike", "path", "warm_up"} <= own_way
    assert not {"direct", "label_only", "ddae_plus", "pbayes", "drop_after_alarm"} & own_way
    assert not sends_plain_images(replace(PLAIN, query="jbda_tr"))


def test_a_result_says_which_phases_others_had_done(tmp_path):
    cache, trial = Cache(tmp_path), PLAIN
    first, second, third = (
        run_trial(replace(trial, attack=a), tiny_protectee(), cache)
        for a in ("direct", "label_only", "drop_after_alarm")
    )
    assert first["reused"] == []
    assert second["reused"] == ["fit", "utility", "ask"]
    assert third["reused"] == ["fit", "utility", "ask", "train"]  # its beliefs are those of direct
    assert third["seconds"]["train"] == first["seconds"]["train"] > 0


def test_the_code_that_made_a_result_has_a_name():
    code = describe_code()
    assert len(code["code"]) == 16
    assert code["commit"] is None or len(code["commit"].rstrip("+")) == 40


def test_answers_and_what_the_service_counted_come_together_or_not_at_all(tmp_path):
    trial = replace(PLAIN, defense="rounding")
    first = interrogate(trial, tiny_protectee(), Cache(tmp_path))
    for path in tmp_path.glob("answers-*.json"):
        path.unlink()  # what a killed process may not have written
    second = interrogate(trial, tiny_protectee(), Cache(tmp_path))
    assert second.reused
    assert second.verdicts == first.verdicts
    assert second.seconds == first.seconds


def test_what_defenses_import_is_what_their_answers_are_filed_under():
    command = "import sys, queen.defenses; print(*(name for name in sys.modules if name.startswith('queen.')))"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    imported = {".".join(name.split(".")[:2]) for name in done.stdout.split()}
    # They only write, show, complain and start processes.
    silent = {"queen.atomic", "queen.cache", "queen.errors", "queen.extras", "queen.parallel", "queen.progress"}
    assert imported - silent == set(DEFENDING)
