"""Attackers who make the most of a few answers: what each of them must get right before its failure means anything."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from queen.attacks.base import Transcript
from queen.attacks.strategies import cleaning, consistency, evasion, heads
from queen.cache import Cache
from queen.errors import ShapeError
from queen.training import Schedule, predict, train
from tests.support.attackers import (
    SMALL,
    clean,
    held_out,
    knowledge,
    new_network,
    recording_oracle,
    seed,
    victim_network,
)
from tests.support.guards import digits, images


def rounded(answers: torch.Tensor, digits: int) -> torch.Tensor:
    """Whole units that sum to 1, by largest remainders, one number at a time."""
    result = torch.empty_like(answers)
    for row, answer in enumerate(answers.double().numpy()):
        units = np.floor(answer * 10**digits).astype(int)
        order = np.argsort(units - answer * 10**digits)
        units[order[: 10**digits - units.sum()]] += 1
        result[row] = torch.from_numpy(units / 10**digits)
    return result


def asked(count: int) -> Transcript:
    x = knowledge().pool[:count]
    return Transcript(x, clean(x))


def accuracy(thief: nn.Module) -> float:
    x, y = held_out()
    return (predict(thief, x) == y).double().mean().item()


# Rounding, as an attacker sees it.


@given(st.integers(1, 6), st.integers(0, 2**30))
def test_an_attacker_sees_to_how_many_decimals_answers_are_rounded(digits, number):
    answers = torch.rand(20, 10, generator=seed(number)).softmax(1)
    assert cleaning.rounding_unit(rounded(answers, digits)) == pytest.approx(10.0**-digits)
    assert cleaning.rounding_unit(answers) == 0
    assert cleaning.rounding_unit(nn.functional.one_hot(answers.argmax(1), 10).float()) == 1


@pytest.mark.parametrize("decimals", [2, 3, 6])
def test_honest_answers_are_kept_however_they_are_rounded(decimals):
    transcript, known = asked(60), knowledge()
    answers = rounded(transcript.answers, decimals)
    answers[40:] = answers[40:].roll(1, 1)  # as of an accused client
    kept = cleaning.keep_honest(transcript.with_answers(answers), known, seed())
    assert torch.equal(kept.x, transcript.x[:40])


def test_of_bare_labels_the_right_ones_are_kept():
    transcript, known = asked(60), knowledge()
    answers = nn.functional.one_hot(transcript.answers.argmax(1), 10).float()
    answers[40:] = answers[40:].roll(1, 1)
    kept = cleaning.keep_honest(transcript.with_answers(answers), known, seed())
    assert torch.equal(kept.x, transcript.x[:40])
    assert torch.equal(kept.answers, answers[:40])


def test_where_the_accused_are_refused_all_answers_are_kept():
    transcript = asked(12)
    kept = cleaning.keep_honest(transcript.with_answers(rounded(transcript.answers, 3)), knowledge(), seed())
    assert torch.equal(kept.x, transcript.x)


# Heads.


def test_an_encoder_is_the_network_without_its_head_and_holds_nothing_of_it():
    x = knowledge().pool[:5]
    encoder = heads.encoder_of(victim_network(), x)
    features = heads.features_of(encoder, x)
    assert torch.equal(victim_network().head(features), victim_network()(x))
    shapes = {name: tuple(value.shape) for name, value in encoder.named_parameters()}
    assert not any(name.startswith("head") for name in shapes)
    assert not any(p.requires_grad for p in encoder.parameters())
    assert "head.weight" in dict(victim_network().named_parameters())  # the victim keeps its own


def test_the_encoder_of_a_bare_head_gives_its_input():
    x = torch.rand(4, 7)
    assert torch.equal(heads.encoder_of(nn.Linear(7, 3), x)(x), x)


@given(st.integers(2, 8), st.integers(2, 6), st.integers(0, 2**30))
def test_exact_answers_to_enough_queries_give_the_head_away(width, classes, number):
    generator = seed(number)
    features = torch.randn(4 * width + 8, width, generator=generator)
    truth = torch.randn(classes, width, generator=generator)
    offset = torch.randn(classes, generator=generator)
    head = heads.solve_head(features, (features @ truth.T + offset).softmax(1), features)
    fresh = torch.randn(50, width, generator=generator)
    assert torch.allclose(head(fresh).softmax(1), (fresh @ truth.T + offset).softmax(1), atol=0.01)


@pytest.mark.parametrize("decimals", [1, 2, 3])
def test_rounded_answers_give_the_head_away_to_some_units(decimals):
    features, fresh = torch.randn(30, 6, generator=seed(1)), torch.randn(200, 6, generator=seed(3))
    truth = 3 * torch.randn(6, 4, generator=seed(2))
    head = heads.solve_head(features, rounded((features @ truth).softmax(1), decimals), features)
    assert (head(fresh).softmax(1) - (fresh @ truth).softmax(1)).abs().mean() < 5 * 10.0**-decimals


@pytest.mark.parametrize("decimals", [2, 3])
def test_intervals_beat_a_floor_under_the_zeros(decimals):
    known, transcript = knowledge(), asked(40)
    answers = rounded(transcript.answers, decimals)
    solved = heads.solve_on_victims_encoder(transcript.with_answers(answers), known, seed())
    floored = answers.clamp(min=10.0**-decimals / 2 + 1e-6)  # no rounding is seen in these: plain regression
    plain = heads.solve_on_victims_encoder(transcript.with_answers(floored), known, seed())
    assert accuracy(solved) > accuracy(plain)


def test_finer_answers_are_worth_more_to_who_owns_the_encoder():
    """A solver that loses by more decimals is a poor attacker, and makes rounding look safe."""
    transcript = asked(20)
    answers = [rounded(transcript.answers, decimals) for decimals in (1, 2, 3, 5)] + [transcript.answers]
    got = [accuracy(heads.solve_on_victims_encoder(transcript.with_answers(a), knowledge(), seed())) for a in answers]
    for coarse, fine in pairwise(got):
        assert fine >= coarse - 0.03
    assert got[-1] > got[0]


def test_who_owns_the_encoder_needs_few_answers():
    solved = heads.solve_on_victims_encoder(asked(40), knowledge(), seed())
    assert accuracy(solved) > accuracy(victim_network()) - 0.1


def test_an_own_classifier_learns_the_pools_labels_and_is_the_same_for_all(monkeypatch):
    monkeypatch.setattr(heads, "OWN_STEPS", 150)
    monkeypatch.setattr(heads, "OWN_EPOCHS", 1)
    x, y = digits()
    known = knowledge(pool=images(x[1000:1400]), pool_labels=y[1000:1400] % 3)
    first, again = heads.own_classifier(known), heads.own_classifier(replace(known, schedule=Schedule(epochs=7)))
    assert (predict(first, known.pool) == known.pool_labels).double().mean() > 0.9
    for a, b in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


# Consistency.


@pytest.mark.parametrize("shape", [(6, 1, 28, 28), (6, 3, 32, 32), (2, 1, 8, 8)])
def test_strongly_changed_images_are_images_and_repeat(shape):
    x = torch.rand(shape, generator=seed())
    changed = consistency.strongly_augmented(x, seed(1))
    assert changed.shape == x.shape
    assert 0 <= changed.min() <= changed.max() <= 1
    assert torch.equal(changed, consistency.strongly_augmented(x, seed(1)))
    assert (changed != x).flatten(1).any(1).all()


def test_only_labels_that_the_thief_is_sure_of_count():
    views, model = consistency.weak_and_strong(knowledge().pool[:32], seed()), victim_network()
    assert consistency.consistency_loss(model, *views, 1.1) == 0
    every, some = (consistency.consistency_loss(model, *views, sure).item() for sure in (0.0, 0.9))
    assert 0 < some < every


def test_a_consistent_thief_says_the_same_of_changed_images():
    transcript = asked(30)
    long = Schedule(epochs=1, lr=0.1, batch=32, min_steps=150)
    known = knowledge(replace(SMALL, mirror=False), schedule=long)
    alone = train(new_network(seed(8)), transcript.x, transcript.answers, long, seed(8))
    x = known.benign[0]
    changed = consistency.strongly_augmented(x, seed(9), mirror=False)

    def agreement(thief: nn.Module) -> float:
        return (predict(thief, x) == predict(thief, changed)).double().mean().item()

    for learn in (consistency.learn_from_pool, consistency.learn_from_own_kind):
        assert agreement(learn(transcript, known, seed(8))) > agreement(alone)


@given(st.integers(1, 200_000))
def test_few_answered_images_count_often_and_many_once(answered):
    views = consistency.count_views(answered)
    assert 1 <= views <= consistency.VIEWS
    assert views * answered <= max(answered, consistency.VIEWED)
    assert views == consistency.VIEWS or (views + 1) * answered > consistency.VIEWED


def test_only_images_can_be_changed():
    flat = Transcript(torch.rand(8, 64), torch.full((8, 10), 0.1))
    with pytest.raises(ShapeError, match="needs images"):
        consistency.learn_from_pool(flat, knowledge(), seed())


# Evasion.


def test_images_are_changed_until_no_score_looks_odd():
    known = knowledge()
    surrogate = evasion.make_surrogate(victim_network(), known.benign[0])
    odd = torch.rand(20, *known.pool.shape[1:], generator=seed())
    changed = evasion.make_usual(surrogate, odd)
    assert 0 <= changed.min() <= changed.max() <= 1
    before, after = surrogate.excess(odd).sum(1), surrogate.excess(changed).sum(1)
    assert (after < before).all()
    assert (after == 0).any()
    assert after.mean() < 0.2 * before.mean()


def test_usual_images_are_left_alone():
    known = knowledge()
    surrogate = evasion.make_surrogate(victim_network(), known.benign[0])
    usual = known.benign[0][(surrogate.excess(known.benign[0]) == 0).all(1)]
    assert len(usual)
    assert torch.equal(evasion.make_usual(surrogate, usual), usual)


def test_only_odd_images_are_changed_further(monkeypatch):
    """Each step changes what the scores say, and nothing that is usual already: so all images beside each other come
    out as each of them alone."""
    surrogate = evasion.make_surrogate(victim_network(), knowledge().benign[0])
    odd = torch.rand(12, *knowledge().pool.shape[1:], generator=seed())
    together = evasion.make_usual(surrogate, odd)
    for row in range(len(odd)):
        changed = odd[row : row + 1].clone()
        for _ in range(evasion.STEPS):
            given_image = changed.clone().requires_grad_(True)
            excess = surrogate.excess(given_image).sum()
            if excess == 0:
                break
            (slope,) = torch.autograd.grad(excess, given_image)
            changed = (given_image.detach() - evasion.STEP * slope.sign()).clamp(0, 1)
        assert torch.allclose(together[row], changed[0], atol=2.5 * evasion.STEP)  # a slope of almost 0 may turn
        assert (together[row] - changed[0]).abs().mean() < evasion.STEP / 10


def test_images_are_made_usual_once_for_all_defenses(tmp_path, monkeypatch):
    monkeypatch.setattr(heads, "OWN_STEPS", 2)
    monkeypatch.setattr(heads, "OWN_EPOCHS", 1)
    calls, make_usual = [], evasion.make_usual
    monkeypatch.setattr(evasion, "make_usual", lambda *given: calls.append(given) or make_usual(*given))
    known, x = replace(knowledge(), cache=Cache(tmp_path)), knowledge().pool[:16]

    def asked_for(images: torch.Tensor) -> torch.Tensor:
        return evasion.ask_usual_to_pool(recording_oracle(16)[0], images, known, seed()).x

    first = asked_for(x)
    assert torch.equal(asked_for(x), first)
    assert len(calls) == 1
    assert torch.equal(first, evasion.ask_usual_to_pool(recording_oracle(16)[0], x, knowledge(), seed()).x)
    asked_for(knowledge().pool[16:32])
    assert len(calls) == 3  # without a cache, and for other images


def test_the_scores_of_a_surrogate_are_those_of_their_definitions():
    known = knowledge()
    surrogate = evasion.make_surrogate(victim_network(), known.benign[0])
    x = known.pool[:4]
    features, logits = (part.detach() for part in surrogate.split(x))
    reference = surrogate.split(known.benign[0][::2])[0].detach()
    for row, score in enumerate(surrogate.scores(x).detach()):
        members = reference[surrogate.split(known.benign[0][::2])[1].argmax(1) == logits[row].argmax()]
        cosines = sorted(torch.cosine_similarity(features[row], other, dim=0).item() for other in reference)
        expected = [
            -logits[row].exp().sum().log().item(),
            (features[row] - members.mean(0)).norm().log().item(),
            np.log(1 - cosines[-2]),
        ]
        assert score.tolist() == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("ask", [evasion.ask_usual_to_pool, evasion.ask_usual_to_own_kind])
def test_what_is_asked_is_what_is_learnt_from(ask, monkeypatch):
    monkeypatch.setattr(heads, "OWN_STEPS", 2)
    monkeypatch.setattr(heads, "OWN_EPOCHS", 1)
    known, x = knowledge(), knowledge().pool[:16]
    oracle, requests = recording_oracle(16)
    transcript = ask(oracle, x, known, seed())
    assert torch.equal(torch.cat([images for _, images in requests]), transcript.x)
    assert not torch.equal(transcript.x, x)
