"""Strategies that ask, believe or learn differently, one property after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from queen.attacks import ATTACKS
from queen.attacks.base import Sizes, Transcript
from queen.attacks.queries.knockoff import knockoff
from queen.attacks.strategies import cleaning, informed, rotation
from queen.defenses import emdp
from queen.errors import ShapeError, SpreadError
from queen.training import ExtraLoss, Schedule, train
from tests.support.attackers import (
    SMALL,
    clean,
    counted_oracle,
    knowledge,
    new_network,
    recording_oracle,
    refusing_oracle,
    rows_in,
    seed,
)

LONG = Schedule(epochs=12, lr=0.1, batch=32)


def stolen(name: str, budget: int, known=None, perturb=lambda y: y) -> Transcript:
    return knockoff(counted_oracle(budget, perturb), ATTACKS[name], known or knowledge(), budget, seed())


# Labels.


def test_label_only_believes_the_highest_answer():
    transcript = stolen("direct", 50)
    believed = ATTACKS["label_only"].believe(transcript, knowledge(), seed()).answers
    assert torch.equal(believed, F.one_hot(transcript.answers.argmax(1), 10).float())


# S4L.


def test_the_rotation_head_and_the_thief_both_learn():
    known = knowledge()
    x = known.pool[:100]
    both = rotation.RotationModel(new_network(seed()), x[:2], seed())
    before = both.turn_head.weight.clone()
    pool, losses = rotation.batches(known.pool, 32, seed()), []

    def loss(images, turns):
        assert both.thief.training
        value = rotation.turn_loss(both, images, turns)
        losses.append(value.item())
        return value

    train(both, x, clean(x), LONG, seed(), extra_loss=ExtraLoss(lambda: rotation.turned(next(pool)), loss))
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    assert not torch.equal(both.turn_head.weight, before)
    assert (both(x).argmax(1) == clean(x).argmax(1)).double().mean() > 0.5


def test_s4l_uses_the_whole_pool_and_trains_another_thief_than_direct():
    known, watched_types = knowledge(), []
    transcript = stolen("direct", 64)
    watched = replace(known, on_epoch=lambda model: watched_types.append(type(model)))
    thief, plain = (ATTACKS[name].steal(transcript, watched, seed()) for name in ("s4l", "direct"))
    assert watched_types == [type(plain)] * 2 == [type(thief)] * 2
    assert list(thief.state_dict()) == list(plain.state_dict())
    assert all(not module._forward_pre_hooks for module in thief.modules())
    other = ATTACKS["s4l"].steal(transcript, replace(known, pool=known.pool.flip(3)), seed())
    assert not torch.equal(thief.head.weight, plain.head.weight)
    assert not torch.equal(thief.head.weight, other.head.weight)


def test_images_are_turned_by_the_angle_that_is_learned():
    x = torch.zeros(8, 1, 4, 4)
    x[:, 0, 0, 1] = 1  # on the upper edge
    visited = []

    class Oracle(nn.Module):
        def turns(self, turned):
            places = [tuple(image[0].nonzero()[0].tolist()) for image in turned]
            visited.extend(places)
            return 50 * F.one_hot(torch.tensor([[(0, 1), (2, 0), (3, 2), (1, 3)].index(p) for p in places]), 4).float()

    assert rotation.turn_loss(Oracle(), *rotation.turned(x)) < 1e-6
    assert {place: visited.count(place) for place in visited} == {(0, 1): 2, (2, 0): 2, (3, 2): 2, (1, 3): 2}


def test_what_cannot_be_turned_is_said():
    with pytest.raises(ShapeError, match="square images can be turned, got 8 x 6"):
        rotation.turned(torch.zeros(4, 1, 8, 6))
    transcript = Transcript(torch.zeros(4, 64), torch.full((4, 10), 0.1))
    with pytest.raises(ShapeError, match=r"needs images .* got \(4, 64\)"):
        ATTACKS["s4l"].steal(transcript, knowledge(), seed())


def test_batches_of_the_pool_come_round_and_round():
    x = torch.arange(10.0)[:, None]
    source, visited = rotation.batches(x, 4, seed()), set()
    for _ in range(6):
        epoch = torch.cat([next(source), next(source)]).flatten().tolist()  # two images wait for the next order
        assert len(set(epoch)) == 8
        visited.update(epoch)
    assert visited == set(range(10))
    assert len(next(rotation.batches(x, 64, seed()))) == 10


# Several queries an image.


def test_smoothing_asks_views_and_believes_their_mean_of_the_image_itself():
    oracle, asked = recording_oracle(90)
    known = knowledge()
    transcript = knockoff(oracle, ATTACKS["smoothing"], known, 90, seed())
    rows = rows_in(known.pool, transcript.x)
    assert rows.unique().numel() == len(transcript) == 30
    views = torch.stack([x for _, x in asked])
    assert torch.allclose(transcript.answers, clean(views.flatten(0, 1)).view(3, 30, 10).mean(0), atol=1e-6)
    assert all(not torch.equal(a, b) for a, b in ((views[0], views[1]), (views[0], transcript.x)))


def test_the_published_count_of_smoothing_is_flagged_and_costs_three_budgets():
    smoothing = ATTACKS["smoothing"]
    assert smoothing.overspend(Sizes()) == 1
    published = replace(SMALL, peer_smoothing=True)
    assert smoothing.overspend(published) == 3
    assert all(attack.overspend(published) == 1 for name, attack in ATTACKS.items() if name != "smoothing")
    oracle = counted_oracle(3 * 40)
    assert len(knockoff(oracle, smoothing, knowledge(published), 40, seed())) == 40
    assert oracle.used == 120


def test_averaged_views_believe_the_same_of_every_view():
    transcript = stolen("s4l_average", 60)
    assert len(transcript) == 60
    views = transcript.answers.view(3, 20, 10)
    assert torch.equal(views[0], views[1])
    assert torch.allclose(views[0], clean(transcript.x).view(3, 20, 10).mean(0), atol=1e-6)


def test_repeats_average_noise_out():
    noise = seed(5)

    def noisy(y):
        return y + 0.1 * torch.randn(y.shape, generator=noise)

    many = knowledge(replace(SMALL, repeats=16))
    errors = [(transcript.answers - clean(transcript.x)).abs().mean() for transcript in
              (stolen("direct", 20, many, noisy), stolen("repeat_average", 320, many, noisy))]  # fmt: skip
    assert errors[1] < 0.35 * errors[0]


def test_only_answers_that_came_are_averaged():
    turn = iter(range(100))
    oracle = refusing_oracle(60, lambda x: torch.arange(len(x)) % 3 < next(turn))  # 0, then 1, then 2 of 3 are refused
    transcript = knockoff(oracle, ATTACKS["repeat_average"], knowledge(), 60, seed())
    assert len(transcript) == 20
    assert torch.allclose(transcript.answers, clean(transcript.x), atol=1e-6)


# Cleaning.


def test_the_sanitiser_undoes_logits_and_mends_what_is_nearly_a_probability():
    answers = torch.tensor([[3.0, -2.0, 0.5], [0.6, 0.5, -0.1], [0.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
    transcript = Transcript(torch.zeros(4, 1), answers)
    believed = ATTACKS["sanitiser"].believe(transcript, knowledge(), seed()).answers
    assert torch.allclose(believed[0], answers[0].softmax(0))
    assert torch.allclose(believed[1], torch.tensor([0.6, 0.5, 0.0]) / 1.1)
    assert torch.allclose(believed[2], torch.full((3,), 1 / 3))
    assert torch.allclose(believed[3], answers[3])
    assert torch.allclose(cleaning.to_simplex(answers).sum(1), torch.ones(4))


def test_emdp_is_undone_exactly_and_nothing_else_is_touched():
    bent = stolen("direct", 100, perturb=emdp.perturb)
    believed = ATTACKS["emdp_inverse"].believe(bent, knowledge(), seed())
    assert (believed.answers - clean(bent.x)).abs().max() < 1e-4
    plain = stolen("direct", 100)
    sure = plain.answers.amax(1) > 0.9
    assert torch.equal(ATTACKS["emdp_inverse"].believe(plain, knowledge(), seed()).answers[sure], plain.answers[sure])


def test_the_agreement_filter_drops_planted_wrong_answers_and_near_ties():
    known = knowledge(schedule=LONG)
    transcript = stolen("direct", 300)
    answers = transcript.answers.clone()
    answers[:30] = answers[:30].roll(1, 1)  # a wrong class
    answers[30:60] = 0.001
    answers[30:60, :2] = torch.tensor([0.5, 0.492])  # on a border
    believed = ATTACKS["agreement_filter"].believe(transcript.with_answers(answers), known, seed())
    rows = rows_in(transcript.x, believed.x)
    assert (rows < 30).sum() <= 6
    assert not ((rows >= 30) & (rows < 60)).any()
    assert (rows >= 60).sum() > 180


def test_the_agreement_filter_keeps_everything_rather_than_nothing():
    transcript = stolen("direct", 40)
    flat = transcript.with_answers(torch.full((40, 10), 0.1))
    assert len(ATTACKS["agreement_filter"].believe(flat, knowledge(), seed())) == 40


def test_exactly_the_honest_answers_are_kept():
    transcript = stolen("direct", 60)
    answers = transcript.answers.clone()
    answers[1::2] += 1e-5 * torch.randn(30, 10, generator=seed()).sign()
    answers[::2] += 2e-7
    believed = ATTACKS["drop_after_alarm"].believe(transcript.with_answers(answers), knowledge(), seed())
    assert torch.equal(believed.x, transcript.x[::2])
    assert torch.equal(believed.answers, answers[::2])
    none = transcript.with_answers(transcript.answers.flip(1))
    assert len(ATTACKS["drop_after_alarm"].believe(none, knowledge(), seed())) == 60
    assert cleaning.EQUAL["cpu"] == 1e-6


# Informed.


def test_the_proxy_builds_the_defense_around_its_own_model_with_images_of_every_class():
    built = []

    def rebuild(model, x, labels, generator):
        built.append((model, x, labels))
        return rebuilt

    rebuilt = type("Rebuilt", (), {"simulate": staticmethod(lambda y, x, generator: y[None])})()
    known = knowledge(rebuild=rebuild, simulate=None, clean=None, schedule=LONG)
    transcript = stolen("direct", 300)
    ATTACKS["informed_proxy"].believe(transcript, known, seed())
    ((model, x, labels),) = built
    assert torch.equal(x, transcript.x)
    assert labels.bincount(minlength=10).min() >= informed.FEW
    assert (model(x).argmax(1) == labels).double().mean() > 0.7


def test_a_proxy_with_too_few_answers_to_build_a_defense_believes_those():
    def rebuild(model, x, labels, generator):
        raise SpreadError("no disc")

    known = knowledge(rebuild=rebuild, simulate=None, clean=None, schedule=LONG)
    transcript = stolen("direct", 7)
    assert ATTACKS["informed_proxy"].believe(transcript, known, seed()) is transcript


def test_classes_nobody_saw_get_the_images_most_like_them():
    model = nn.Linear(3, 3, bias=False)
    model.weight.data = torch.eye(3)
    x = torch.tensor([[9.0, 0.1 * i, 0.0] for i in range(20)])
    labels = informed.label_every_class(model, x)
    assert labels.bincount(minlength=3).tolist() == [10, 5, 5]
    assert labels[:5].tolist() == [0] * 5  # those it is surest of stay
    assert labels[15:].tolist() == [1] * 5


@given(st.integers(3, 60), st.integers(2, 6), st.integers(0, 9))
def test_every_class_has_its_few_images_if_there_are_enough(count, classes, number):
    model = nn.Linear(classes, classes, bias=False)
    model.weight.data = torch.diag(torch.arange(1.0, classes + 1) ** 2)  # some classes are rare
    labels = informed.label_every_class(model, torch.randn(count, classes, generator=seed(number)))
    assert labels.bincount(minlength=classes).min() >= min(informed.FEW, count // classes)
