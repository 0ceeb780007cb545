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
from queen.attacks.base import Attack, CountedOracle, Sizes, Transcript
from queen.attacks.queries.knockoff import knockoff
from queen.attacks.strategies import cleaning, disguise, informed, rotation
from queen.attacks.strategies.needs import on_simplex
from queen.defenses import emdp
from queen.errors import ShapeError
from queen.training import Schedule, train
from tests.attacks.test_queries import rows_in
from tests.support.attackers import SMALL, clean, desk, held_out, knowledge, new_network, seed, stubborn_desk

LONG = Schedule(epochs=12, lr=0.1, batch=32)


def honest(y):
    return y


def stolen(name: str, budget: int, known=None, perturb=honest) -> Transcript:
    return knockoff(desk(budget, perturb), ATTACKS[name], known or knowledge(), budget, seed())


# Labels.


def test_label_only_believes_the_highest_answer():
    found = stolen("direct", 50)
    believed = ATTACKS["label_only"].believe(found, knowledge(), seed()).answers
    assert torch.equal(believed, F.one_hot(found.answers.argmax(1), 10).float())


# S4L.


def test_the_rotation_head_and_the_thief_both_learn():
    known = knowledge()
    x = known.pool[:100]
    both = rotation.TurnTeller(new_network(seed()), x[:2], seed())
    before = both.turn_head.weight.clone()
    pool, losses = rotation.batches(known.pool, 32, seed()), []

    def loss(model):
        assert model is both
        assert both.thief.training
        value = rotation.turn_loss(both, next(pool))
        losses.append(value.item())
        return value

    train(both, x, clean(x), LONG, seed(), extra_loss=loss)
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    assert not torch.equal(both.turn_head.weight, before)
    assert (both(x).argmax(1) == clean(x).argmax(1)).double().mean() > 0.5


def test_s4l_uses_the_whole_pool_and_trains_another_thief_than_direct():
    known, seen = knowledge(), []
    found = stolen("direct", 64)
    watched = replace(known, on_epoch=lambda model: seen.append(type(model)))
    thief, plain = (ATTACKS[name].steal(found, watched, seed()) for name in ("s4l", "direct"))
    assert seen == [type(plain)] * 2 == [type(thief)] * 2
    assert list(thief.state_dict()) == list(plain.state_dict())
    assert all(not module._forward_pre_hooks for module in thief.modules())
    other = ATTACKS["s4l"].steal(found, replace(known, pool=known.pool.flip(3)), seed())
    assert not torch.equal(thief.head.weight, plain.head.weight)
    assert not torch.equal(thief.head.weight, other.head.weight)


def test_images_are_turned_by_the_angle_that_is_learned():
    x = torch.zeros(8, 1, 4, 4)
    x[:, 0, 0, 1] = 1  # on the upper edge
    told = []

    class Oracle(nn.Module):
        def turns(self, turned):
            places = [tuple(image[0].nonzero()[0].tolist()) for image in turned]
            told.extend(places)
            return 50 * F.one_hot(torch.tensor([[(0, 1), (2, 0), (3, 2), (1, 3)].index(p) for p in places]), 4).float()

    assert rotation.turn_loss(Oracle(), x) < 1e-6
    assert {place: told.count(place) for place in told} == {(0, 1): 2, (2, 0): 2, (3, 2): 2, (1, 3): 2}


def test_what_cannot_be_turned_is_said():
    both = rotation.TurnTeller(new_network(seed()), torch.zeros(2, 1, 8, 8), seed())
    with pytest.raises(ShapeError, match="square images can be turned, got 8 x 6"):
        rotation.turn_loss(both, torch.zeros(4, 1, 8, 6))
    found = Transcript(torch.zeros(4, 64), torch.full((4, 10), 0.1))
    with pytest.raises(ShapeError, match=r"needs images .* got \(4, 64\)"):
        ATTACKS["s4l"].steal(found, knowledge(), seed())


def test_batches_of_the_pool_come_round_and_round():
    x = torch.arange(10.0)[:, None]
    source = rotation.batches(x, 4, seed())
    for _ in range(3):
        epoch = torch.cat([next(source), next(source)]).flatten()
        assert epoch.sort().values.tolist() == list(range(10))


# Several queries an image.


def remember(perturb=honest):
    """A desk that notes which images were asked, and from which accounts."""
    asked: list[tuple[str, torch.Tensor]] = []

    def account(name):
        return lambda x: asked.append((name, x)) or perturb(clean(x))

    return asked, lambda budget: CountedOracle(account, budget, 64)


def test_smoothing_asks_views_and_believes_their_mean_of_the_image_itself():
    asked, make = remember()
    known = knowledge()
    found = knockoff(make(90), ATTACKS["smoothing"], known, 90, seed())
    rows = rows_in(known.pool, found.x)
    assert rows.unique().numel() == len(found) == 30
    views = torch.stack([x for _, x in asked])
    assert torch.allclose(found.answers, clean(views.flatten(0, 1)).view(3, 30, 10).mean(0), atol=1e-6)
    assert all(not torch.equal(a, b) for a, b in ((views[0], views[1]), (views[0], found.x)))


def test_the_published_count_of_smoothing_is_flagged_and_costs_three_budgets():
    smoothing = ATTACKS["smoothing"]
    assert smoothing.overspend(Sizes()) == 1
    published = replace(SMALL, peer_smoothing=True)
    assert smoothing.overspend(published) == 3
    assert all(attack.overspend(published) == 1 for name, attack in ATTACKS.items() if name != "smoothing")
    at = desk(3 * 40)
    assert len(knockoff(at, smoothing, knowledge(published), 40, seed())) == 40
    assert at.used == 120


def test_averaged_views_believe_the_same_of_every_view():
    found = stolen("s4l_average", 60)
    assert len(found) == 60
    views = found.answers.view(3, 20, 10)
    assert torch.equal(views[0], views[1])
    assert torch.allclose(views[0], clean(found.x).view(3, 20, 10).mean(0), atol=1e-6)


def test_repeats_average_noise_out():
    noise = seed(5)

    def noisy(y):
        return y + 0.1 * torch.randn(y.shape, generator=noise)

    many = knowledge(replace(SMALL, repeats=16))
    errors = [(found.answers - clean(found.x)).abs().mean() for found in
              (stolen("direct", 20, many, noisy), stolen("repeat_average", 320, many, noisy))]  # fmt: skip
    assert errors[1] < 0.35 * errors[0]


def test_only_answers_that_came_are_averaged():
    turn = iter(range(100))
    at = stubborn_desk(60, lambda x: torch.arange(len(x)) % 3 < next(turn))  # 0, then 1, then 2 of 3 are refused
    found = knockoff(at, ATTACKS["repeat_average"], knowledge(), 60, seed())
    assert len(found) == 20
    assert torch.allclose(found.answers, clean(found.x), atol=1e-6)


# Cleaning.


def test_the_sanitiser_undoes_logits_and_mends_what_is_nearly_a_probability():
    answers = torch.tensor([[3.0, -2.0, 0.5], [0.6, 0.5, -0.1], [0.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
    found = Transcript(torch.zeros(4, 1), answers)
    believed = ATTACKS["sanitiser"].believe(found, knowledge(), seed()).answers
    assert torch.allclose(believed[0], answers[0].softmax(0))
    assert torch.allclose(believed[1], torch.tensor([0.6, 0.5, 0.0]) / 1.1)
    assert torch.allclose(believed[2], torch.full((3,), 1 / 3))
    assert torch.allclose(believed[3], answers[3])
    assert torch.allclose(on_simplex(answers).sum(1), torch.ones(4))


def test_emdp_is_undone_exactly_and_nothing_else_is_touched():
    told = stolen("direct", 100, perturb=emdp.perturb)
    believed = ATTACKS["emdp_inverse"].believe(told, knowledge(), seed())
    assert (believed.answers - clean(told.x)).abs().max() < 1e-4
    plain = stolen("direct", 100)
    sure = plain.answers.amax(1) > 0.9
    assert torch.equal(ATTACKS["emdp_inverse"].believe(plain, knowledge(), seed()).answers[sure], plain.answers[sure])


def test_the_agreement_filter_drops_planted_wrong_answers_and_near_ties():
    known = knowledge(schedule=LONG)
    found = stolen("direct", 300)
    answers = found.answers.clone()
    answers[:30] = answers[:30].roll(1, 1)  # a wrong class
    answers[30:60] = 0.001
    answers[30:60, :2] = torch.tensor([0.5, 0.492])  # on a border
    kept = ATTACKS["agreement_filter"].believe(found.believing(answers), known, seed())
    rows = rows_in(found.x, kept.x)
    assert (rows < 30).sum() <= 6
    assert not ((rows >= 30) & (rows < 60)).any()
    assert (rows >= 60).sum() > 180


def test_the_agreement_filter_keeps_everything_rather_than_nothing():
    found = stolen("direct", 40)
    flat = found.believing(torch.full((40, 10), 0.1))
    assert len(ATTACKS["agreement_filter"].believe(flat, knowledge(), seed())) == 40


def test_exactly_the_honest_answers_are_kept():
    found = stolen("direct", 60)
    answers = found.answers.clone()
    answers[1::2] += 1e-5 * torch.randn(30, 10, generator=seed()).sign()
    answers[::2] += 2e-7
    kept = ATTACKS["drop_after_alarm"].believe(found.believing(answers), knowledge(), seed())
    assert torch.equal(kept.x, found.x[::2])
    assert torch.equal(kept.answers, answers[::2])
    none = found.believing(found.answers.flip(1))
    assert len(ATTACKS["drop_after_alarm"].believe(none, knowledge(), seed())) == 60
    assert cleaning.EQUAL["cpu"] == 1e-6


# Informed.


def test_the_proxy_builds_the_defense_around_its_own_model_with_images_of_every_class():
    built = []

    def rebuild(model, x, labels, generator):
        built.append((model, x, labels))
        return known_service

    known_service = type("Service", (), {"simulate": staticmethod(lambda y, x, generator: y[None])})()
    known = knowledge(rebuild=rebuild, simulate=None, clean=None, schedule=LONG)
    found = stolen("direct", 300)
    ATTACKS["informed_proxy"].believe(found, known, seed())
    ((model, x, labels),) = built
    assert torch.equal(x, found.x)
    assert labels.bincount(minlength=10).min() >= informed.FEW
    assert (model(x).argmax(1) == labels).double().mean() > 0.7


def test_classes_nobody_saw_get_the_images_most_like_them():
    model = nn.Linear(3, 3, bias=False)
    model.weight.data = torch.eye(3)
    x = torch.tensor([[9.0, 0.1 * i, 0.0] for i in range(20)])
    labels = informed.own_labels(model, x)
    assert labels.bincount(minlength=3).tolist() == [10, 5, 5]
    assert labels[:5].tolist() == [0] * 5  # those it is surest of stay
    assert labels[15:].tolist() == [1] * 5


@given(st.integers(3, 60), st.integers(2, 6), st.integers(0, 9))
def test_every_class_has_its_few_images_if_there_are_enough(count, classes, number):
    model = nn.Linear(classes, classes, bias=False)
    model.weight.data = torch.diag(torch.arange(1.0, classes + 1) ** 2)  # some classes are rare
    labels = informed.own_labels(model, torch.randn(count, classes, generator=seed(number)))
    assert labels.bincount(minlength=classes).min() >= min(informed.FEW, count // classes)


# Disguises.


def test_a_look_alike_sends_what_its_own_network_knows():
    x, _ = held_out()
    noise = 0.4 * torch.rand(len(x), 1, 8, 8, generator=seed())
    known = knowledge(pool=torch.cat([noise, x]), schedule=LONG)
    rows = ATTACKS["look_alike"].choose(known, 100, seed())
    assert rows.unique().numel() == 100
    assert (rows >= len(x)).double().mean() > 0.9
    at = desk(100)
    found = knockoff(at, ATTACKS["look_alike"], known, 100, seed())
    assert torch.equal(found.x, known.pool[rows])


def sent(name: str, budget: int, known=None) -> tuple[torch.Tensor, Transcript]:
    asked, make = remember()
    found = knockoff(make(budget), ATTACKS[name], known or knowledge(), budget, seed())
    return torch.cat([x for _, x in asked]), found


@pytest.mark.parametrize(("budget", "warm"), [(200, 30), (40, 20)])
def test_warm_up_is_part_of_the_budget_and_at_most_half_of_it(budget, warm):
    known = knowledge()
    x, found = sent("warm_up", budget)
    assert torch.equal(x[:warm], known.benign[0][:warm])
    assert rows_in(known.pool, x[warm:]).unique().numel() == budget - warm
    assert torch.equal(found.x, x)


@pytest.mark.parametrize(("name", "ratio", "budget"), [("cover_1", 1, 100), ("cover_3", 3, 400), ("cover_10", 10, 110)])
def test_cover_goes_before_every_attack_query_and_then_shifted(name, ratio, budget):
    known = knowledge()
    x, _ = sent(name, budget)
    rounds = x.view(-1, ratio + 1, 1, 8, 8)
    assert len(rounds) == budget // (ratio + 1)
    assert rows_in(known.pool, rounds[:, -1]).unique().numel() == len(rounds)
    cover, benign = rounds[:, :-1].flatten(0, 1), known.benign[0]
    assert torch.equal(cover[: len(benign)], benign[: len(cover)])
    for row, image in enumerate(cover[len(benign) :]):  # by one pixel, up and to the left
        assert torch.equal(image[0, 1:, 1:], benign[row % len(benign), 0, :-1, :-1])


def test_shifts_move_every_image_by_one_pixel_in_eight_directions():
    x = torch.zeros(2, 1, 5, 5)
    x[0, 0, 2, 2] = x[1, 0, 0, 0] = 1
    moved = disguise.shift_images(x)
    assert torch.equal(moved[:2], x)
    places = [tuple(image[0].nonzero()[0].tolist()) for image in moved[::2]]
    assert sorted(places) == [(i, j) for i in (1, 2, 3) for j in (1, 2, 3)]


def test_cover_never_runs_out():
    known = knowledge(benign=tuple(part[:2] for part in knowledge().benign))
    x, _ = sent("cover_10", 110, known)
    cover = x.view(10, 11, 1, 8, 8)[:, :-1].flatten(0, 1)
    assert len({tuple(image.flatten().tolist()) for image in cover}) <= 18
    assert torch.equal(cover[:18], cover[18:36])


def test_accounts_are_dealt_to_in_turn_and_the_order_stays():
    asked, make = remember()
    known = knowledge(replace(SMALL, ask_batch=4))
    found = knockoff(make(50), ATTACKS["many_accounts"], known, 50, seed())
    plain = knockoff(desk(50), Attack(), known, 50, seed())
    assert torch.equal(found.x, plain.x)
    assert torch.allclose(found.answers, clean(found.x), atol=1e-6)
    order = [name for name, _ in asked]
    assert order[:6] == ["thief 0", "thief 1", "thief 2", "thief 3", "thief 4", "thief 0"]  # turn by turn
    for i in range(5):
        own = torch.cat([x for name, x in asked if name == f"thief {i}"])
        assert torch.equal(own, found.x[i::5])


def test_more_accounts_than_queries_are_fine():
    asked, make = remember()
    knockoff(make(3), ATTACKS["many_accounts"], knowledge(), 3, seed())
    assert [name for name, _ in asked] == ["thief 0", "thief 1", "thief 2"]


def test_near_records_are_asked_right_after_their_image():
    known = knowledge()
    x, found = sent("near_record", 40)
    groups = x.view(10, 4, 1, 8, 8)
    rows_in(known.pool, groups[:, 0])
    distance = (groups[:, 1:] - groups[:, :1]).abs().amax((2, 3, 4))
    assert 0 < distance.min() <= distance.max() < 0.12
    assert torch.equal(found.x, x)


def test_a_fixed_exchange_of_classes_is_learned_from_few_true_labels():
    order = torch.randperm(10, generator=seed(1))
    known = knowledge(replace(SMALL, true_labels=100))
    at = desk(300, lambda y: y[:, order])
    found = knockoff(at, ATTACKS["remap"], known, 300, seed())
    assert at.used == len(found) == 300
    told = clean(found.x)[:, order]
    right, wrong = (
        (answers.argmax(1) == clean(found.x).argmax(1)).double().mean() for answers in (found.answers, told)
    )
    assert right > 0.9
    assert wrong < 0.3
    assert torch.allclose(found.answers.sum(1), torch.ones(300), atol=1e-5)


def test_bought_labels_are_believed_and_spread_over_the_whole_stream():
    known = knowledge()
    x, found = sent("remap", 100)
    benign = [any(torch.equal(image, other) for other in known.benign[0][:20]) for image in x]
    assert sum(benign) == 20
    assert [sum(benign[i : i + 25]) for i in range(0, 100, 25)] == [5, 5, 5, 5]
    bought = found.answers[torch.tensor(benign)]
    assert torch.equal(bought, F.one_hot(known.benign[1][:20], 10).float())


def test_a_class_without_votes_stays_itself_and_so_does_one_in_a_draw():
    told, truth = torch.tensor([0, 0, 1, 1, 2]), torch.tensor([3, 3, 1, 0, 0])
    assert disguise.exchange(told, truth, 4).tolist() == [3, 1, 0, 3]
    answers = torch.tensor([[0.5, 0.3, 0.15, 0.05]])
    assert disguise.exchanged(answers, torch.tensor([3, 1, 0, 3])).tolist() == [pytest.approx([0.15, 0.3, 0, 0.55])]
