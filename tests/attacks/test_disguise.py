"""Attackers who hide: which images are asked, from which account, and what is believed of the answers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from queen.attacks import ATTACKS
from queen.attacks.base import Attack, Transcript
from queen.attacks.queries.knockoff import knockoff
from queen.attacks.strategies import disguise
from queen.training import Schedule
from tests.support.attackers import SMALL, clean, counted_oracle, held_out, knowledge, recording_oracle, rows_in, seed

LONG = Schedule(epochs=12, lr=0.1, batch=32)


@pytest.mark.slow
def test_a_look_alike_sends_what_its_own_network_knows():
    x, _ = held_out()
    noise = 0.4 * torch.rand(len(x), 1, 8, 8, generator=seed())
    known = knowledge(pool=torch.cat([noise, x]), schedule=LONG)
    rows = ATTACKS["look_alike"].choose(known, 100, seed())
    assert rows.unique().numel() == 100
    assert (rows >= len(x)).double().mean() > 0.9
    oracle = counted_oracle(100)
    transcript = knockoff(oracle, ATTACKS["look_alike"], known, 100, seed())
    assert torch.equal(transcript.x, known.pool[rows])


def sent(name: str, budget: int, known=None) -> tuple[torch.Tensor, Transcript]:
    oracle, asked = recording_oracle(budget)
    transcript = knockoff(oracle, ATTACKS[name], known or knowledge(), budget, seed())
    return torch.cat([x for _, x in asked]), transcript


@pytest.mark.parametrize(("budget", "warm"), [(200, 30), (40, 20)])
def test_warm_up_is_part_of_the_budget_and_at_most_half_of_it(budget, warm):
    known = knowledge()
    x, transcript = sent("warm_up", budget)
    assert torch.equal(x[:warm], known.benign[0][:warm])
    assert rows_in(known.pool, x[warm:]).unique().numel() == budget - warm
    assert torch.equal(transcript.x, x)


@pytest.mark.parametrize(("name", "ratio", "budget"), [("cover_1", 1, 100), ("cover_3", 3, 400), ("cover_10", 10, 110)])
def test_cover_goes_before_every_attack_query_and_then_shifted(name, ratio, budget):
    known = knowledge()
    x, _ = sent(name, budget)
    rounds = x.view(-1, ratio + 1, 1, 8, 8)
    assert len(rounds) == budget // (ratio + 1)
    assert rows_in(known.pool, rounds[:, -1]).unique().numel() == len(rounds)
    cover, benign = rounds[:, :-1].flatten(0, 1), known.benign[0]
    assert torch.equal(x[disguise.is_cover(len(x), ratio)], cover)
    assert torch.equal(cover[: len(benign)], benign[: len(cover)])
    for row, image in enumerate(cover[len(benign) :]):  # by one pixel, up and to the left
        assert torch.equal(image[0, 1:, 1:], benign[row % len(benign), 0, :-1, :-1])


@pytest.mark.parametrize("name", ["own_kind", "drop_after_alarm_own_kind"])
def test_a_thief_of_the_victims_kind_asks_for_nothing_else_and_then_shifted(name):
    benign = knowledge().benign[0]
    few, _ = sent(name, 20)
    assert torch.equal(few, benign[:20])
    many, _ = sent(name, len(benign) + 1)
    assert torch.equal(many[:-1], benign)
    assert torch.equal(many[-1][0, 1:, 1:], benign[0, 0, :-1, :-1])


def test_cover_never_runs_out():
    known = knowledge(benign=tuple(part[:2] for part in knowledge().benign))
    x, _ = sent("cover_10", 110, known)
    cover = x.view(10, 11, 1, 8, 8)[:, :-1].flatten(0, 1)
    assert len({tuple(image.flatten().tolist()) for image in cover}) <= 18
    assert torch.equal(cover[:18], cover[18:36])


def test_accounts_are_dealt_to_in_turn_and_the_order_stays():
    oracle, asked = recording_oracle(50)
    known = knowledge(replace(SMALL, ask_batch=4))
    transcript = knockoff(oracle, ATTACKS["many_accounts"], known, 50, seed())
    plain = knockoff(counted_oracle(50), Attack(), known, 50, seed())
    assert torch.equal(transcript.x, plain.x)
    assert torch.allclose(transcript.answers, clean(transcript.x), atol=1e-6)
    order = [name for name, _ in asked]
    assert order[:6] == ["thief 0", "thief 1", "thief 2", "thief 3", "thief 4", "thief 0"]  # turn by turn
    for i in range(5):
        own = torch.cat([x for name, x in asked if name == f"thief {i}"])
        assert torch.equal(own, transcript.x[i::5])


def test_more_accounts_than_queries_are_fine():
    oracle, asked = recording_oracle(3)
    knockoff(oracle, ATTACKS["many_accounts"], knowledge(), 3, seed())
    assert [name for name, _ in asked] == ["thief 0", "thief 1", "thief 2"]


def test_near_records_are_asked_right_after_their_image():
    known = knowledge()
    x, transcript = sent("near_record", 40)
    groups = x.view(10, 4, 1, 8, 8)
    rows_in(known.pool, groups[:, 0])
    distance = (groups[:, 1:] - groups[:, :1]).abs().amax((2, 3, 4))
    assert 0 < distance.min() <= distance.max() < 0.12
    assert torch.equal(transcript.x, x)


def test_a_fixed_exchange_of_classes_is_learned_from_few_true_labels():
    order = torch.randperm(10, generator=seed(1))
    known = knowledge(replace(SMALL, true_labels=100))
    oracle = counted_oracle(300, lambda y: y[:, order])
    transcript = knockoff(oracle, ATTACKS["remap"], known, 300, seed())
    assert oracle.used == len(transcript) == 300
    honest = clean(transcript.x)
    exchanged = honest[:, order]
    assert (transcript.answers.argmax(1) == honest.argmax(1)).double().mean() > 0.9
    assert (exchanged.argmax(1) == honest.argmax(1)).double().mean() < 0.3
    assert torch.allclose(transcript.answers.sum(1), torch.ones(300), atol=1e-5)


def test_bought_labels_are_believed_and_spread_over_the_whole_stream():
    known = knowledge()
    x, transcript = sent("remap", 100)
    benign = [any(torch.equal(image, other) for other in known.benign[0][:20]) for image in x]
    assert sum(benign) == 20
    assert [sum(benign[i : i + 25]) for i in range(0, 100, 25)] == [5, 5, 5, 5]
    bought = transcript.answers[torch.tensor(benign)]
    assert torch.equal(bought, F.one_hot(known.benign[1][:20], 10).float())


def test_a_class_without_votes_stays_itself_and_so_does_one_in_a_draw():
    answered, truth = torch.tensor([0, 0, 1, 1, 2]), torch.tensor([3, 3, 1, 0, 0])
    assert disguise.find_exchange(answered, truth, 4).tolist() == [3, 1, 0, 3]
    [answer] = disguise.apply_exchange(torch.tensor([[0.5, 0.3, 0.15, 0.05]]), torch.tensor([3, 1, 0, 3])).tolist()
    assert answer == pytest.approx([0.15, 0.3, 0, 0.55])
