"""What must hold for every attack with every query strategy it goes with, whatever it is called."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from queen.attacks import ATTACKS, QUERIES, find_attack, find_queries
from queen.attacks.base import Attack, Knowledge, Sizes, Transcript
from queen.attacks.strategies import heads
from queen.errors import OptionError
from tests.support.attackers import QUICK, SMALL, counted_oracle, knowledge, new_network, refusing_oracle, seed

PAIRS = [(query, name) for query in QUERIES for name, attack in ATTACKS.items() if query in attack.queries]
BUDGET = 132  # can be divided by what every attack takes for an image
SOLVED = ("greybox_head", "own_encoder_head")  # thieves in which nothing is left to chance


@pytest.fixture(autouse=True)
def _hasty_helpers(monkeypatch):
    """What holds here does not depend on how well an attacker's own classifier is trained."""
    monkeypatch.setattr(heads, "OWN_EPOCHS", 1)
    monkeypatch.setattr(heads, "OWN_STEPS", 2)


def run(query: str, attack: Attack, known: Knowledge, budget: int = BUDGET, oracle=None) -> tuple[Transcript, int]:
    oracle = oracle or counted_oracle(budget * attack.overspend(known.sizes))
    transcript = QUERIES[query](oracle, attack, known, budget, seed(7))
    return transcript, oracle.used


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_the_names_are_those_of_the_specification():
    published = "direct label_only s4l s4l_average smoothing ddae ddae_plus ddae_plus_answers pbayes pbayes_answers"
    adaptive = """informed_oracle informed_proxy sanitiser emdp_inverse repeat_average many_accounts near_record
        agreement_filter look_alike warm_up cover_1 cover_3 cover_10 own_kind drop_after_alarm drop_after_alarm_own_kind
        remap path path_changes path_labelled path_labelled_changes provoked_alarm two_accounts two_accounts_differ
        small_steps label_on_top greybox_head own_encoder_head few_label few_label_own_kind evade_score
        evade_score_own_kind"""
    assert {name for name, attack in ATTACKS.items() if not attack.adaptive} == set(published.split())
    assert {name for name, attack in ATTACKS.items() if attack.adaptive} == set(adaptive.split())
    assert set(QUERIES) == {"knockoff", "jbda_tr", "active_thief", "data_free"}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_names_query_strategies_that_exist(name):
    attack = ATTACKS[name]
    assert attack.queries
    assert set(attack.queries) <= set(QUERIES)
    assert not attack.adaptive or attack.queries == ("knockoff",)
    assert set(attack.knows) <= {"prior", "defense", "encoder", "benign"}
    assert attack.cost(Sizes()) >= 1
    assert find_attack(name) is attack


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(OptionError, match=r"no attack 'pbays'; known: direct, .*; did you mean 'pbayes'\?"):
        find_attack("pbays")
    with pytest.raises(OptionError, match=r"no query strategy 'knockof'; known: knockoff, .*; did you mean"):
        find_queries("knockof")
    assert find_queries("jbda_tr") is QUERIES["jbda_tr"]


@pytest.mark.parametrize(("query", "name"), PAIRS)
def test_the_budget_is_spent_to_the_last_query_and_the_thief_repeats(query, name):
    attack, watched = ATTACKS[name], []
    known = knowledge(on_epoch=lambda model: watched.append(model.training))
    thieves = []
    for _ in range(2):
        transcript, used = run(query, attack, known)
        assert used == BUDGET
        assert len(transcript.x) == len(transcript.answers) <= BUDGET
        assert transcript.answers.shape[1:] == (10,)
        assert transcript.answers.isfinite().all()
        assert transcript.x.shape[1:] == known.pool.shape[1:]
        assert 0 <= transcript.x.min() <= transcript.x.max() <= 1
        assert not watched  # thieves on the way are nobody's business
        thieves.append(attack.steal(transcript, known, seed(8)))
        assert watched == [False] * QUICK.epochs
        watched.clear()
    first, second = map(weights, thieves)
    assert torch.equal(first, second)
    other = weights(attack.steal(transcript, known, seed(9)))
    assert torch.equal(first, other) == (name in SOLVED)  # or the comparison above would say nothing
    assert not thieves[0].training
    assert len(first) == len(weights(new_network(seed())))  # the thief alone, whatever it was trained with


@pytest.mark.parametrize(("query", "name"), PAIRS)
def test_a_budget_that_does_not_divide_leaves_less_than_one_image(query, name):
    attack = ATTACKS[name]
    _, used = run(query, attack, knowledge(), BUDGET + 5)
    assert BUDGET + 5 - attack.cost(SMALL) < used <= BUDGET + 5


@pytest.mark.parametrize(("query", "name"), PAIRS)
def test_refused_rows_cost_and_bring_nothing(query, name):
    attack, known = ATTACKS[name], knowledge()

    def unlucky(x):
        return x.flatten(1).double().sum(1) * 1000 % 2 < 1

    transcript, used = run(query, attack, known, oracle=refusing_oracle(BUDGET, unlucky))
    assert used == BUDGET
    assert 1 < len(transcript) < BUDGET
    assert transcript.answers.isfinite().all()
    assert (transcript.answers - 0.1).abs().amax(1).min() > 1e-3  # no refusal is taken for an answer
    assert attack.steal(transcript, known, seed(8)) is not None


@pytest.mark.parametrize(("query", "name"), PAIRS)
def test_nobody_asks_for_clean_answers_without_saying_so(query, name):
    attack, asked = ATTACKS[name], []
    known = knowledge()
    spied = replace(known, clean=lambda x: asked.append(len(x)) or known.clean(x))
    attack.steal(run(query, attack, spied)[0], spied, seed(8))
    assert bool(asked) == ("prior" in attack.knows)


@pytest.mark.parametrize(("query", "name"), PAIRS)
def test_what_an_attack_must_know_and_does_not_is_named(query, name):
    attack, full = ATTACKS[name], knowledge()
    optional = "pool_labels", "simulate", "clean", "benign", "rebuild", "encoder"
    declared = {"prior": "clean", "benign": "benign", "encoder": "encoder"}
    for field in optional:
        known = replace(full, **{field: None})
        try:
            attack.steal(run(query, attack, known)[0], known, seed(8))
        except OptionError as error:
            assert f"Knowledge.{field}" in str(error)  # noqa: PT017
        else:
            assert field not in [declared.get(name) for name in attack.knows]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("query", "name"), PAIRS)
def test_the_same_on_a_gpu(query, name):
    attack, known = ATTACKS[name], knowledge(device="cuda")
    transcript, used = run(query, attack, known)
    assert used == BUDGET
    assert transcript.x.is_cuda
    assert transcript.answers.is_cuda
    assert weights(attack.steal(transcript, known, seed(8))).isfinite().all()
