"""Query strategies: which images are asked, how many, and how far from the pool."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from queen.attacks.base import (
    Attack,
    BudgetError,
    CountedOracle,
    Sizes,
    Transcript,
    ask_from_one_account,
    believe_answers,
    train_thief,
)
from queen.attacks.queries.jbda_tr import CIFAR_MEAN, CIFAR_STD, Units, jbda_tr, perturb_round, push, units_of
from queen.attacks.queries.knockoff import knockoff
from queen.attacks.strategies.labels import top_label
from queen.cache import Cache
from queen.defenses import label_only
from queen.errors import OptionError
from tests.support.attackers import (
    QUICK,
    SMALL,
    counted_oracle,
    endpoint,
    knowledge,
    refusing_oracle,
    rows_in,
    seed,
    squeezed,
    victim_network,
)

PLAIN = Units(torch.zeros(()), torch.ones(()))


class Recorder:
    """An attack that notes what is asked and what its thieves are made of; every thief is the victim itself."""

    def __init__(self) -> None:
        self.asked, self.stolen, self.tables, self.steps = [], [], [], []
        self.attack = Attack(ask=self.ask, learn=self.learn)

    def ask(self, oracle, x, knowledge, generator):
        self.asked.append(x)
        return ask_from_one_account(oracle, x, knowledge, generator)

    def learn(self, transcript, knowledge, generator):
        assert knowledge.on_epoch is None
        self.stolen.append(transcript)
        self.tables.append(knowledge.sizes.table)
        self.steps.append(knowledge.schedule.min_steps)
        return victim_network()


# Knockoff.


def test_knockoff_asks_random_images_once_each_and_from_all_over_the_pool():
    known = knowledge()
    transcript = knockoff(counted_oracle(200), Attack(), known, 200, seed())
    rows = rows_in(known.pool, transcript.x)
    assert rows.unique().numel() == 200
    assert 150 < rows.double().mean() < 250
    assert rows.tolist() != sorted(rows.tolist())
    again, other = (knockoff(counted_oracle(200), Attack(), known, 200, seed(s)).x for s in (0, 1))
    assert torch.equal(transcript.x, again)
    assert not torch.equal(transcript.x, other)


def test_an_image_that_takes_several_queries_leaves_fewer_images():
    recorder = Recorder()
    attack = replace(recorder.attack, cost=lambda sizes: sizes.views)
    knockoff(counted_oracle(100), attack, knowledge(), 100, seed())
    assert [len(x) for x in recorder.asked] == [33]


def test_an_attack_may_choose():
    known = knowledge()
    attack = Attack(choose=lambda knowledge, count, generator: torch.arange(count).flip(0))
    assert torch.equal(knockoff(counted_oracle(9), attack, known, 9, seed()).x, known.pool[:9].flip(0))


@pytest.mark.parametrize(("budget", "cost", "images"), [(401, 1, 401), (2, 3, 0)])
def test_a_budget_the_pool_cannot_fill_is_said_with_both_numbers(budget, cost, images):
    with pytest.raises(BudgetError, match=rf"budget of {budget} .* buys {images} images, the pool has 400"):
        knockoff(counted_oracle(budget), Attack(cost=lambda _: cost), knowledge(), budget, seed())


# JBDA-TR.


def test_rounds_grow_fourfold_and_the_last_is_cut_to_the_budget():
    """1000 -> 4000 -> 16000 -> 50000, in hundredths."""
    recorder = Recorder()
    known = knowledge(replace(SMALL, table=1000), on_epoch=print)
    oracle = counted_oracle(500)
    transcript = jbda_tr(oracle, recorder.attack, known, 500, seed())
    assert [len(x) for x in recorder.asked] == [10, 30, 120, 340]
    assert [len(some) for some in recorder.stolen] == [10, 40, 160]
    assert recorder.tables == [20, 80, 320]  # grows with the answers
    assert oracle.used == 500 == len(transcript)
    assert torch.equal(transcript.x, torch.cat(recorder.asked))
    rows_in(known.pool, recorder.asked[0])
    for earlier, new in zip(recorder.stolen, recorder.asked[1:], strict=True):
        distance = (new.flatten(1)[:, None] - earlier.x.flatten(1)).abs().amax(2)
        assert distance.amin(1).max() <= SMALL.jbda_epsilon + 1e-6
        assert distance.amin(1).min() > 0.01  # and none is a mere copy


def test_a_round_too_large_for_the_budget_starts_from_random_images_each_used_three_times():
    known = knowledge()
    x = known.pool[:50]
    moved = perturb_round(victim_network(), x, 100, known, PLAIN, seed())
    assert len(moved) == 100
    distance = (moved.flatten(1)[:, None] - x.flatten(1)).abs().amax(2)
    assert distance.amin(1).max() <= SMALL.jbda_epsilon + 1e-6
    parents = distance.argmin(1)
    assert parents[:34].unique().numel() == 34
    assert parents[:34].tolist() != sorted(parents[:34].tolist())
    assert torch.equal(parents[34:68], parents[:34])
    assert torch.equal(parents[68:], parents[:32])
    assert (moved[:32] - moved[68:]).abs().amax((1, 2, 3)).min() > 0  # towards other classes each time


@pytest.mark.parametrize(("budget", "seeds", "asked"), [(7, 10, [7]), (60, 50, [50, 10]), (500, 1000, [400, 100])])
def test_few_seeds_or_a_small_budget_or_pool_are_no_trouble(budget, seeds, asked):
    recorder, oracle = Recorder(), counted_oracle(budget)
    jbda_tr(oracle, recorder.attack, knowledge(replace(SMALL, jbda_seeds=seeds)), budget, seed())
    assert [len(x) for x in recorder.asked] == asked
    assert oracle.used == budget


def test_a_service_that_refuses_everything_is_still_asked_to_the_end():
    oracle = refusing_oracle(35, lambda x: torch.ones(len(x), dtype=torch.bool))
    assert len(jbda_tr(oracle, Recorder().attack, knowledge(), 35, seed())) == 0
    assert oracle.used == 35


def test_after_a_round_that_was_refused_as_a_whole_it_tries_new_images_and_trains_no_thief_twice():
    """Else a defense that refuses the accused for good is asked for three copies a time, with a thief for each."""
    recorder, known = Recorder(), knowledge()
    oracle = refusing_oracle(200, lambda x: torch.full((len(x),), 10 < oracle.used <= 100))
    transcript = jbda_tr(oracle, recorder.attack, known, 200, seed())
    assert oracle.used == 200
    # Seeds; their copies, refused; seeds, refused until 100 were asked; answered seeds, whose copies are worth a thief.
    assert [len(x) for x in recorder.asked] == [10, 30, *[10] * 7, 60, 30]
    assert [len(some) for some in recorder.stolen] == [10, 20, 80]
    assert len(transcript) == 110
    for fresh in recorder.asked[2:9]:
        rows_in(known.pool, fresh)


def test_an_attack_that_asks_several_times_does_not_fit():
    with pytest.raises(BudgetError, match="3 queries an image"):
        jbda_tr(counted_oracle(50), Attack(cost=lambda _: 3), knowledge(), 50, seed())


@pytest.mark.parametrize(("own", "least", "steps"), [(1, 50, 50), (70, 50, 50)])
def test_thieves_of_all_rounds_learn_for_the_published_number_of_steps_whatever_the_last_one_takes(own, least, steps):
    recorder = Recorder()
    known = knowledge(replace(SMALL, jbda_min_steps=least), schedule=replace(QUICK, min_steps=own))
    jbda_tr(counted_oracle(100), recorder.attack, known, 100, seed())
    assert recorder.steps == [steps, steps]
    assert Sizes().jbda_min_steps == 30 * math.ceil(Sizes().jbda_seeds / 128)  # as published


def test_equal_beliefs_about_equal_answers_train_every_rounds_thief_once(tmp_path):
    trained = []

    def counted(transcript, knowledge, generator):
        trained.append(len(transcript))
        return train_thief(transcript, knowledge, generator)

    def ask(believe, perturb=label_only.perturb, **changes):
        known = replace(knowledge(cache=Cache(tmp_path), key="digits"), **changes)
        attack = Attack(believe=believe, learn=counted)
        return jbda_tr(counted_oracle(100, perturb), attack, known, 100, seed())

    def labels(transcript, knowledge, generator):
        torch.rand(9, generator=generator)  # what a belief draws must not matter
        return top_label(transcript, knowledge, generator)

    first = ask(believe_answers)
    assert trained == [10, 40]
    second, third = ask(labels), ask(labels, squeezed)  # another belief, and another defense that keeps labels
    assert trained == [10, 40]
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.x, third.x)
    trained.clear()
    ask(believe_answers, squeezed)
    ask(believe_answers, schedule=replace(QUICK, lr=0.01))
    ask(believe_answers, key="other pool")
    assert trained == [10, 40] * 3


def push_by_loops(model, x, sizes, generator, clip=(0, 1)):
    """One image at a time, straight from the formula."""
    targets = [torch.randint(10, (len(x),), generator=generator) for _ in range(sizes.jbda_steps)]
    alpha, result = 1.85 * sizes.jbda_epsilon / sizes.jbda_steps, []
    for i, image in enumerate(x):
        delta = torch.zeros_like(image)
        for step in range(sizes.jbda_steps):
            moved = (image + delta).requires_grad_()
            F.cross_entropy(model(moved[None]), targets[step][i : i + 1]).backward()
            delta = (delta - alpha * moved.grad.sign()).clamp(-sizes.jbda_epsilon, sizes.jbda_epsilon)
        result.append((image + delta).clamp(*clip))
    return torch.stack(result)


def test_perturbed_images_are_those_of_the_formula():
    known = knowledge()
    moved = push(victim_network(), known.pool[:6], known, PLAIN, seed(3))
    expected = push_by_loops(victim_network(), known.pool[:6], SMALL, seed(3))
    # A gradient of about zero may take either sign.
    assert ((moved - expected).abs() < 1e-6).double().mean() > 0.99
    assert SMALL.jbda_epsilon == 0.1
    assert (moved - known.pool[:6]).abs().max() == pytest.approx(0.1, abs=1e-6)


def test_perturbed_images_reach_the_borders_of_the_thief():
    """More labels change than under as much noise: a negative control for the direction."""
    known = knowledge(replace(SMALL, jbda_epsilon=0.3))
    x, model = known.pool, victim_network()
    noise = (x + 0.3 * torch.randn(x.shape, generator=seed()).sign()).clamp(0, 1)
    before, after, noisy = (model(z).argmax(1) for z in (x, push(model, x, known, PLAIN, seed()), noise))
    assert (after != before).sum() > 1.5 * (noisy != before).sum()


def test_peers_clip_normalised_numbers_and_so_lose_all_that_is_dark():
    pool = torch.rand(50, 3, 8, 8, generator=seed())
    known = knowledge(replace(SMALL, jbda_clip="peer"), pool=pool)
    units = units_of(known)
    assert units.mean.flatten().tolist() == pytest.approx(CIFAR_MEAN)
    assert units.std.flatten().tolist() == pytest.approx(CIFAR_STD)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 10))
    moved = push(model, pool, known, units, seed())
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (CIFAR_MEAN, CIFAR_STD))
    assert ((moved >= mean - 1e-6) & (moved <= mean + std + 1e-6)).all()
    plain = pool.clamp(min=mean).minimum(mean + std)
    assert (moved - plain).abs().max() <= 0.1 * std.max() + 1e-6  # epsilon in units of std
    assert (moved - pool).abs().max() > 0.3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_steps_in_bfloat16_on_a_gpu_go_where_those_of_the_cpu_go():
    known = knowledge(device="cuda")
    x = known.pool[:64]
    on_gpu = (push(victim_network(), x, known, PLAIN, seed(3)) - x).cpu()
    on_cpu = push(victim_network().cpu(), x.cpu(), known, PLAIN, seed(3)) - x.cpu()
    assert on_gpu.abs().max() == pytest.approx(0.1, abs=1e-6)
    assert F.cosine_similarity(on_gpu.flatten(), on_cpu.flatten(), 0) > 0.8


def test_normalised_epsilon_is_in_units_of_std_and_pixels_stay_pixels():
    pool = torch.rand(50, 3, 8, 8, generator=seed())
    known = knowledge(replace(SMALL, jbda_clip="normalised"), pool=pool)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 10))
    moved = push(model, pool, known, units_of(known), seed())
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (CIFAR_MEAN, CIFAR_STD))

    def normalise(x):
        return (x - mean) / std

    # The same steps on normalised images, in front of a network that undoes that.
    normalised = push_by_loops(lambda z: model(z * std + mean), normalise(pool), SMALL, seed(), clip=(-9, 9))
    expected = (normalised * std + mean).clamp(0, 1)
    assert ((moved - expected).abs() < 1e-5).double().mean() > 0.99
    assert 0 <= moved.min() <= moved.max() <= 1
    reach = normalise(moved) - normalise(pool)
    assert reach.abs().max() == pytest.approx(0.1, abs=1e-5)
    assert (moved < mean - 0.1).any()  # what is dark stays dark


@pytest.mark.parametrize("clip", ["normalised", "peer"])
def test_pools_of_other_shapes_have_units_of_their_own(clip):
    grey = knowledge(replace(SMALL, jbda_clip=clip))
    assert units_of(grey).mean.item() == pytest.approx(grey.pool.mean().item())
    assert units_of(grey).std.item() == pytest.approx(grey.pool.std().item())
    flat = units_of(replace(grey, pool=grey.pool.flatten(1)))
    assert flat.mean.item() == pytest.approx(grey.pool.mean().item())
    with pytest.raises(OptionError, match="no jbda_clip 'none'; known: pixel, normalised, peer"):
        units_of(knowledge(replace(SMALL, jbda_clip="none")))


def test_a_transcript_keeps_only_answered_rows_of_every_round():
    oracle = refusing_oracle(200, lambda x: x.flatten(1).sum(1) * 1000 % 2 < 1)
    transcript = jbda_tr(oracle, Recorder().attack, knowledge(), 200, seed())
    assert oracle.used == 200
    assert isinstance(transcript, Transcript)
    assert 40 < len(transcript) < 160


# The counted oracle.


def test_queries_are_counted_over_all_accounts_and_not_one_too_many_is_sent():
    pool, opened = knowledge().pool, []
    oracle = CountedOracle(lambda name: opened.append(name) or endpoint().client(name), 10, 4)
    assert len(oracle.transcript(pool[:6], "a")) == 6
    with pytest.raises(BudgetError, match="budget is 10 queries, 6 are used, 5 more were asked"):
        oracle.ask(pool[:5], "b")
    assert oracle.used == 6
    oracle.ask(pool[:4], "b")
    assert oracle.used == 10
    assert set(opened) == {"a", "b"}
