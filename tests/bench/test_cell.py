"""One run: all its figures, and flags on those that prove nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from queen.attacks import ATTACKS
from queen.attacks.base import Attack, Believe, BudgetError, Knowledge, Sizes, Transcript, train_thief
from queen.attacks.strategies.labels import top_label
from queen.bench.spec import Utility
from queen.bench.trials.cell import run_trial
from queen.bench.trials.flags import AT_CHANCE, COLLAPSED, LOST_LABELS, NO_THIEF, explain_flags, should_learn
from queen.bench.trials.trial import Trial
from queen.cache import Cache
from queen.defenses import DEFENSES
from queen.defenses.base import Defense, MappedEndpoint, Victim
from queen.errors import RefusedError
from queen.training import Schedule, predict
from queen.types import Reply, Verdict
from tests.support.benchmarks import tiny_protectee, tiny_spec

FIELDS = {
    "version", "protectee", "column", "defense", "query", "attack", "seed", "oracle_prior", "knows", "queries",
    "verdicts", "answers", "believed", "recovery", "utility", "thief", "flags", "explained", "sizes", "seconds",
    "reused", "versions", "hardware",
}  # fmt: skip
SIZES = Sizes(mirror=False, ask_batch=64)
UTILITY = Utility(clients=3, queries=20)


def run(tmp_path, defense="none", attack="direct", *, budget=300, around=None, **changes: Any) -> dict[str, Any]:
    wanted = Trial(
        column="mine", defense=defense, query="knockoff", attack=attack, budget=budget, sizes=SIZES, utility=UTILITY
    )
    return run_trial(replace(wanted, **changes), around or tiny_protectee(), Cache(tmp_path))


@pytest.fixture
def plant(monkeypatch) -> Callable[..., None]:
    """Register a map of answers as the defense "planted", and attacks by name."""

    def put(perturb: Callable[[Tensor, Tensor], Tensor] | None = None, *, attacks: Mapping[str, Attack] | None = None):
        def build(victim: Victim, generator: torch.Generator) -> MappedEndpoint:
            return MappedEndpoint(victim, perturb)

        if perturb is not None:
            defense = Defense(build, keeps_label="no")
            monkeypatch.setitem(DEFENSES, "planted", defense)
        for name, attack in (attacks or {}).items():
            monkeypatch.setitem(ATTACKS, name, attack)

    return put


# What a result holds


def test_answers_that_a_data_free_attack_has_forgotten_count(tmp_path):
    """And its budget may be larger than the pool, from which it takes nothing but the shape of an image."""
    sizes = replace(SIZES, data_free_batch=64, data_free_replay=100, data_free_width=2, data_free_steps=1)
    result = run(tmp_path, query="data_free", budget=700, sizes=sizes)
    assert len(tiny_protectee().pool) < 700
    assert result["queries"] == {"budget": 700, "sent": 700, "answered": 700}
    assert result["answers"]["honest"] == 1
    assert json.loads(json.dumps(result, allow_nan=False)) == result


@pytest.mark.parametrize("defense", ["none", "rounding", "queen-sentinel"])
def test_a_result_has_all_its_fields_and_json_can_say_them(tmp_path, defense):
    result = run(tmp_path, defense, options={"map_epochs": 5} if defense.startswith("queen") else {})
    assert set(result) == FIELDS
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["flags"] == []
    assert result["defense"]["name"] == defense
    assert set(result["defense"]["options"]) == set(DEFENSES[defense].options)
    assert result["queries"] == {"budget": 300, "sent": 300, "answered": 300}
    assert set(result["seconds"]) == {"victim", "fit", "utility", "ask", "recover", "train", "other"}
    assert result["reused"] == []
    assert set(result["versions"]) == {"python", "torch", "code", "commit"}
    assert result["thief"]["best_accuracy"] >= result["thief"]["accuracy"] > 0.5
    assert result["thief"]["best_agreement"] >= result["thief"]["agreement"] > 0.5
    assert result["thief"]["epochs"]["epoch"][-1] == 10
    assert result["sizes"]["ask_batch"] == 64
    letters = {"queen-sentinel": {"A", "B", "C", "D"}}.get(defense, set())
    assert set(result["verdicts"]) - {"alarmed", "refused", "honest"} <= letters
    shares = [share for name, share in result["verdicts"].items() if len(name) == 1]
    assert math.isclose(sum(shares), 1) if letters else not shares


def test_the_victim_is_described_by_what_it_is(tmp_path):
    x, y = tiny_protectee().test
    facts = run(tmp_path)["protectee"]
    assert facts["accuracy"] == (predict(tiny_protectee().victim.model, x) == y).double().mean().item()
    assert facts["chance"] == max(y.tolist().count(k) for k in range(10)) / len(y)
    assert facts["images"] == {"train": 900, "test": 200, "pool": 600, "calibration": 400}
    assert facts["sources"] == ["scikit-learn digits"]


def numbers(result: dict[str, Any]) -> str:
    return json.dumps({**result, "seconds": 0, "thief": {**result["thief"], "training_seconds": 0,
                       "images_per_second": 0}})  # fmt: skip


@pytest.mark.slow
def test_an_equal_run_gives_equal_numbers_and_another_seed_others(tmp_path):
    first, again = (numbers(run(tmp_path / str(i), "rounding")) for i in range(2))
    assert first == again
    assert numbers(run(tmp_path / "other", "rounding", seed=1)) != first


def test_a_run_of_a_cell_is_what_the_spec_says():
    spec = tiny_spec(defenses={"coarse": {"defense": "rounding", "decimals": 0}}, seeds=[4])
    wanted = Trial.of(next(spec.cells()))
    assert (wanted.column, wanted.defense, wanted.options) == ("coarse", "rounding", {"decimals": 0})
    assert (wanted.query, wanted.attack, wanted.budget, wanted.seed) == ("knockoff", "direct", 300, 4)
    assert (wanted.sizes, wanted.utility) == (spec.sizes, spec.utility)


def test_purposes_and_seeds_have_random_numbers_of_their_own_but_defenses_do_not(tmp_path):
    wanted = Trial(column="a", defense="none", query="knockoff", attack="direct", budget=1)

    def first(run: Trial, purpose: str) -> int:
        return int(torch.randint(2**62, (1,), generator=run.generator(purpose)))

    others = [first(wanted, "query"), first(wanted, "thief"), first(replace(wanted, seed=1), "query")]
    assert len(set(others)) == 3
    assert first(replace(wanted, defense="queen", column="b"), "query") == others[0]


def test_answers_are_compared_with_the_clean_ones(tmp_path, plant):
    plant(lambda y, x: 0.5 * y + 0.05)
    result = run(tmp_path, "planted")
    assert result["answers"]["honest"] == 0
    assert result["answers"]["label_kept"] == result["believed"]["label_right"] == 1
    assert 0 < result["answers"]["l2"] < result["answers"]["l1"] < 2
    undefended = run(tmp_path)["answers"]
    assert undefended == {"honest": 1.0, "label_kept": 1.0, "l1": 0.0, "l2": 0.0, "kl": 0.0}


# Honest is what the service left alone


def test_an_answer_near_the_models_own_is_not_honest(tmp_path, plant):
    plant(lambda y, x: y.lerp(y.roll(1, 1), 1e-5))
    assert run(tmp_path, "planted")["answers"]["honest"] == 0


def test_honest_answers_stay_honest_when_the_attacker_averages_them(tmp_path, plant):
    plant(attacks={"smoothing": replace(ATTACKS["smoothing"], learn=clueless)})
    result = run(tmp_path, attack="smoothing")
    assert result["answers"]["honest"] == result["verdicts"]["honest"] == 1
    assert result["answers"]["l1"] > 0.01  # the means are not the model's answer to any image


def test_a_map_that_leaves_some_answers_alone_is_honest_there(tmp_path, plant):
    def squeeze_the_unsure(y: Tensor, x: Tensor) -> Tensor:
        return torch.where(y.amax(1, keepdim=True) > 0.9, y, y.square() / y.square().sum(1, keepdim=True))

    plant(squeeze_the_unsure)
    result = run(tmp_path, "planted")
    assert 0.2 < result["answers"]["honest"] < 0.98
    assert result["answers"]["l1"] > 0


@pytest.mark.parametrize("after_alarm", [0, None])
def test_rounded_answers_of_the_sentinel_are_honest_until_the_alarm_and_refused_ones_are_no_answers(
    tmp_path, after_alarm, plant
):
    noise = replace(tiny_protectee(), key="noise", pool=torch.rand(600, 1, 8, 8, generator=torch.Generator()))
    plant(attacks={"clueless": Attack(learn=clueless)})
    options = {"map_epochs": 5, "on_alarm": "decoy", "after_alarm": after_alarm}
    result = run(tmp_path, "queen-sentinel", "clueless", around=noise, options=options)
    shares, honest = result["verdicts"], result["answers"]["honest"]
    assert 0 < shares["honest"] < 0.9
    assert shares["refused"] > 0.1 or after_alarm is None
    assert honest == pytest.approx(shares["honest"] / (1 - shares["refused"]))
    assert honest == 1 or after_alarm is None


# Flags


def off_the_simplex(y: Tensor, x: Tensor) -> Tensor:
    return y * 1.5


def negative(y: Tensor, x: Tensor) -> Tensor:
    moved = y.clone()
    moved[:, 0] -= 0.1
    moved[:, 1] += 0.1
    return torch.where(y[:, :1] < 0.05, moved, y)


def constant(y: Tensor, x: Tensor) -> Tensor:
    return torch.zeros_like(y).index_fill(1, torch.tensor(3), 1.0)


def shaken(y: Tensor, x: Tensor) -> Tensor:
    weights = y + 0.01 * torch.rand_like(y)
    return weights / weights.sum(1, keepdim=True)


@pytest.mark.slow
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_answers_that_are_no_numbers_are_flagged_and_their_result_is_json(tmp_path, plant, bad):
    plant(lambda y, x: torch.where(torch.arange(len(y))[:, None] % 2 == 0, bad, y))
    result = run(tmp_path, "planted")
    assert "answers are NaN or infinite" in result["flags"]
    assert "the thief's answers are NaN" in result["flags"]
    assert json.dumps(result, allow_nan=False)


@pytest.mark.parametrize("perturb", [off_the_simplex, negative])
def test_answers_off_the_simplex_are_flagged(tmp_path, plant, perturb):
    plant(perturb)
    flags = run(tmp_path, "planted")["flags"]
    assert any("of the answers are off the simplex" in flag for flag in flags)


def test_answers_off_the_simplex_are_fine_where_they_are_declared(tmp_path):
    result = run(tmp_path, "rounding")
    assert result["flags"] == []
    assert "kl" not in result["answers"]  # or the check would say nothing: the answers do not sum to 1


def test_random_answers_to_a_repeated_query_are_flagged(tmp_path, plant):
    plant(shaken)
    flags = run(tmp_path, "planted")["flags"]
    assert flags == ["a query repeated in the same client state gets another answer"]


@pytest.mark.parametrize("stateful", [False, True])
def test_noise_that_goes_on_from_answer_to_answer_is_flagged_whatever_its_seed(tmp_path, monkeypatch, stateful):
    def build(victim: Victim, generator: torch.Generator) -> MappedEndpoint:
        return MappedEndpoint(
            victim, lambda y, x: torch.lerp(y, torch.rand(y.shape, generator=generator).softmax(1), 0.1)
        )

    noisy = Defense(build, keeps_label="no", stateful=stateful)
    monkeypatch.setitem(DEFENSES, "noisy", noisy)
    assert run(tmp_path, "noisy")["flags"] == ["a query repeated in the same client state gets another answer"]


@pytest.mark.slow
def test_a_thief_of_constant_answers_is_flagged_as_collapsed(tmp_path, plant):
    plant(constant)
    result = run(tmp_path, "planted")
    assert result["flags"] == ["the thief collapsed to one class"]
    assert result["thief"]["collapsed"]
    assert result["thief"]["retried"]


def untaught(found: Transcript, knowledge: Knowledge, generator: torch.Generator) -> nn.Module:
    thief = knowledge.make_thief(generator)
    for _ in range(knowledge.schedule.plan(len(found))[0]):
        knowledge.on_epoch(thief.eval())
    return thief


class Random(nn.Module):
    """Knows nothing, but says many classes."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.rand(len(x), 10, generator=torch.Generator().manual_seed(1))


def clueless(found: Transcript, knowledge: Knowledge, generator: torch.Generator) -> nn.Module:
    for _ in range(knowledge.schedule.plan(len(found))[0]):
        knowledge.on_epoch(Random())
    return Random()


def with_wrong_labels(share: float) -> Believe:
    """Believe the answers, but this share of them with their classes turned on."""

    def believe(found: Transcript, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
        wrong = torch.arange(len(found)) < share * len(found)
        return found.with_answers(torch.where(wrong[:, None], found.answers.roll(1, 1), found.answers))

    return believe


@pytest.mark.parametrize("wrong", [0.0, 0.4])
def test_a_thief_at_chance_where_most_labels_are_right_is_tried_again_and_flagged(tmp_path, plant, wrong):
    """Such a thief is no success of the defense, even where some labels are wrong: others would learn from the rest."""
    plant(attacks={"clueless": Attack(believe=with_wrong_labels(wrong), learn=clueless)})
    result = run(tmp_path, attack="clueless")
    assert AT_CHANCE in result["flags"]
    assert result["explained"] == {}
    assert len(result["thief"]["tries"]) == 3


@pytest.mark.parametrize(
    ("labels", "enough"),
    [([0, 1], 0.75), ([0, 0, 0, 1], 0.875), (list(range(10)), 0.55), (list(range(100)), 0.505)],
    ids=["two classes", "two, one rare", "ten", "hundred"],
)
def test_right_labels_count_beyond_those_that_a_constant_guess_has(labels, enough):
    """Of two classes half the labels are right by chance, and a thief cannot learn from them."""
    y = torch.tensor(labels)
    protectee = replace(tiny_protectee(), test=(torch.rand(len(y), 1, 8, 8), y))
    assert not should_learn(enough - 1e-6, protectee)
    assert should_learn(enough + 1e-6, protectee)


def test_a_thief_at_chance_where_most_labels_are_wrong_is_a_success_of_the_defense(tmp_path, plant):
    plant(attacks={"clueless": Attack(believe=with_wrong_labels(0.6), learn=clueless)})
    result = run(tmp_path, attack="clueless")
    assert AT_CHANCE not in result["flags"]
    assert len(result["thief"]["tries"]) == 1


def scrambled(found: Transcript, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    return found.with_answers(found.answers[torch.randperm(len(found), generator=generator)])


def test_a_recovery_that_loses_the_labels_is_flagged_and_its_thief_is_not_blamed(tmp_path, plant):
    plant(attacks={"scrambled": Attack(believe=scrambled)})
    result = run(tmp_path, attack="scrambled")
    right = result["believed"]["label_right"]
    lost = f"recovery lost right labels (100.00% of the answers had them, {right:.2%} have now)"
    assert set(result["flags"]) - {"the thief collapsed to one class"} == {lost}  # on some processors it does
    assert right < 0.3 < result["answers"]["label_kept"]


@pytest.mark.parametrize(("wrong", "flagged"), [(5, False), (7, True)])
def test_a_loss_of_labels_is_flagged_from_two_percent_on(tmp_path, plant, wrong, flagged):
    def forgetful(transcript: Transcript, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
        answers = transcript.answers.clone()
        answers[:wrong] = answers[:wrong].roll(1, 1)
        return transcript.with_answers(answers)

    plant(attacks={"forgetful": Attack(believe=forgetful, learn=clueless)})
    flags = run(tmp_path, attack="forgetful")["flags"]
    assert any("recovery lost right labels" in flag for flag in flags) == flagged


@pytest.mark.parametrize(("accuracy", "flagged"), [(0.15, True), (0.9, False)])
def test_shadows_that_did_not_learn_are_flagged_with_their_figures(tmp_path, plant, accuracy, flagged):
    shadows = {"accuracy": accuracy, "chance": 0.1, "top_probability": 0.12}

    def report(transcript: Transcript, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
        knowledge.findings["shadows"] = shadows
        return transcript

    plant(attacks={"shadowed": Attack(believe=report)})
    result = run(tmp_path, attack="shadowed")
    assert result["recovery"] == {"shadows": shadows}
    lazy = "the attack's shadow networks did not learn (training accuracy 0.15, chance 0.10)"
    assert result["flags"] == ([lazy] if flagged else [])


def test_a_thief_at_chance_on_wrong_labels_is_a_success_of_the_defense(tmp_path, plant):
    plant(lambda y, x: y.roll(1, 1), attacks={"clueless": Attack(learn=clueless)})
    assert run(tmp_path, "planted", "clueless")["flags"] == []


def test_nothing_answered_is_no_thief(tmp_path, plant):
    def refuse(y: Tensor, x: Tensor) -> Tensor:
        none, rows = torch.zeros(len(x), dtype=torch.bool).numpy(), torch.full_like(y, 0.1)
        raise RefusedError("no", Reply(rows, (Verdict.OUTSIDE,) * len(x), none, ~none, none))

    plant(refuse)
    result = run(tmp_path, "planted")
    assert result["thief"]["accuracy"] is None
    assert result["queries"] == {"budget": 300, "sent": 300, "answered": 0}
    assert result["flags"] == ["no thief: nothing was answered"]
    assert result["utility"]["one_client"]["accuracy"] == 0
    assert result["utility"]["one_client"]["refused"] == 1
    assert json.dumps(result, allow_nan=False)


# Second chances, budgets, and what is trained once


def test_a_collapsed_thief_gets_a_second_careful_chance(tmp_path, plant):
    rates: list[tuple[float, float | None, float]] = []

    def fragile(found: Transcript, knowledge: Knowledge, generator: torch.Generator) -> nn.Module:
        rates.append((knowledge.schedule.lr, knowledge.schedule.clip, found.answers.sum(1).mean().item()))
        if len(rates) > 1:
            return train_thief(found, replace(knowledge, schedule=tiny_protectee().thief_schedule), generator)
        return untaught(found.take(torch.arange(1)), knowledge, generator) and one_class(found, knowledge)

    def one_class(found: Transcript, knowledge: Knowledge) -> nn.Module:
        stuck = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        nn.init.zeros_(stuck[1].weight)
        nn.init.zeros_(stuck[1].bias)
        knowledge.on_epoch(stuck)
        return stuck

    plant(lambda y, x: 2 * y, attacks={"fragile": Attack(learn=fragile)})
    result = run(tmp_path, "planted", "fragile")
    lr = tiny_protectee().thief_schedule.lr
    assert rates == [(lr, 2.0, pytest.approx(2)), (lr / 10, 1.0, pytest.approx(1))]  # renormalised the second time
    assert result["thief"]["retried"]
    assert result["thief"]["tries"] == [pytest.approx(0.1, abs=0.06), result["thief"]["accuracy"]]
    assert result["thief"]["accuracy"] > 0.5
    assert not any("collapsed" in flag for flag in result["flags"])


@pytest.mark.slow
def test_an_honest_thief_is_not_trained_twice(tmp_path, plant):
    calls: list[int] = []

    def counted(found: Transcript, knowledge: Knowledge, generator: torch.Generator) -> nn.Module:
        calls.append(len(found))
        return train_thief(found, knowledge, generator)

    plant(attacks={"counted": Attack(learn=counted), "labels": Attack(believe=top_label, learn=counted)})
    first = run(tmp_path, attack="labels")
    assert calls == [300]
    assert not first["thief"]["retried"]
    same = run(tmp_path, "label_only", "counted")  # the same beliefs, by another way
    assert calls == [300]
    assert same["thief"] == first["thief"]
    run(tmp_path, "none", "counted")
    run(tmp_path, "label_only", "counted", seed=1)
    other = replace(tiny_protectee(), thief_schedule=Schedule(epochs=5, lr=0.1, batch=16))
    run(tmp_path, "label_only", "counted", around=other)
    assert calls == [300] * 4


@pytest.mark.parametrize("budget", [1, 7, 64, 65, 600])
def test_budgets_are_spent_exactly(tmp_path, budget, plant):
    plant(attacks={"clueless": Attack(learn=clueless)})
    assert run(tmp_path, attack="clueless", budget=budget)["queries"] == dict.fromkeys(
        ("budget", "sent", "answered"), budget
    )


@pytest.mark.parametrize("budget", [0, 601, -1])
def test_a_budget_larger_than_the_pool_is_an_error(tmp_path, budget):
    with pytest.raises(BudgetError, match=f"a budget of {budget} queries.*the pool has 600"):
        run(tmp_path, budget=budget)


def test_a_published_count_that_exceeds_the_budget_is_flagged(tmp_path, plant):
    smoothing = replace(ATTACKS["smoothing"], learn=train_thief)
    plant(attacks={"smoothing": smoothing})
    within = run(tmp_path, attack="smoothing")
    assert within["flags"] == []
    assert within["queries"] == {"budget": 300, "sent": 300, "answered": 100}
    beyond = run(tmp_path, attack="smoothing", sizes=replace(SIZES, peer_smoothing=True))
    assert beyond["flags"] == ["budget exceeded, as published"]
    assert beyond["queries"]["sent"] == 900


def test_an_oracle_prior_is_declared(tmp_path):
    plain = run(tmp_path)
    assert (plain["oracle_prior"], plain["knows"]) == (False, [])
    small = replace(SIZES, table=600)
    informed = run(tmp_path, attack="pbayes", sizes=small)
    assert (informed["oracle_prior"], informed["knows"]) == (True, ["prior"])
    assert not run(tmp_path, attack="pbayes_answers", sizes=small)["oracle_prior"]


# Flags that a measurement explains


def explained(flag: str, thief=None, recovery=None) -> dict[str, str]:
    """The explanation of a flag, of a thief that sent 50,000 queries and learnt from 15 answers."""
    result = {"thief": thief or {"accuracy": None}, "recovery": recovery or {}, "queries": {"sent": 50_000}}
    return explain_flags([flag], result, 15)


@pytest.mark.parametrize("flag", [AT_CHANCE, COLLAPSED])
def test_a_thief_that_knows_its_few_answers_was_not_trained_badly(flag):
    assert "100% of the 15 answers" in explained(flag, {"accuracy": 0.1, "fits": 1.0})[flag]
    assert explained(flag, {"accuracy": 0.1, "fits": 0.5}) == {}


def test_without_answers_there_can_be_no_thief():
    assert explained(NO_THIEF) == {NO_THIEF: "none of 50,000 queries was answered"}


def test_a_recovery_that_corrects_labels_in_its_own_pairs_could_not_know_better():
    flag = f"{LOST_LABELS} (78.00% of the answers had them, 76.00% have now)"
    thief = {"accuracy": 0.4, "fits": 1.0}
    better = explained(flag, thief, {"label_kept": 0.7, "label_restored": 0.8})
    assert "from 70.00% to 80.00%" in better[flag]
    assert explained(flag, thief, {"label_kept": 0.7, "label_restored": 0.6}) == {}
    assert explained(flag, thief, {"label_kept": 0.7}) == explained(flag, thief) == {}


def test_a_result_says_how_many_of_its_answers_the_thief_knows(tmp_path):
    result = run(tmp_path)
    assert 0.9 < result["thief"]["fits"] <= 1
    assert result["explained"] == {}
