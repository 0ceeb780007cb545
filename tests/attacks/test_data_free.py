"""The data-free attack: what the generator looks for, what the thieves remember, and that the game is worth it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from queen.attacks import ATTACKS
from queen.attacks.base import Attack, BudgetError, Transcript, train_thief
from queen.attacks.queries.data_free import NOISE, Duel, Painter, Replay, data_free, painter_loss
from queen.errors import ShapeError
from queen.training import Schedule, predict
from tests.support.attackers import (
    SMALL,
    clean,
    counted_oracle,
    held_out,
    knowledge,
    recording_oracle,
    refusing_oracle,
    seed,
    victim_network,
)

KNOWN = knowledge()


def rows_of(numbers: torch.Tensor) -> Transcript:
    """Answered images that can be told apart: number n is an image full of n."""
    return Transcript(numbers.float().view(-1, 1, 1, 1).expand(-1, 1, 8, 8), numbers[:, None].expand(-1, 10).float())


@given(st.integers(1, 12), st.lists(st.integers(0, 12), max_size=8))
def test_the_replay_holds_the_last_answers_in_their_order(room, counts):
    replay, total = Replay(room, KNOWN), 0
    for count in (min(count, room) for count in counts):
        new = rows_of(torch.arange(total, total + count))
        replay.add(new, 2 * new.answers)
        total += count
        assert replay.x[replay.newest(count), 0, 0, 0].tolist() == list(range(total - count, total))
    transcript = replay.transcript(victim_network())
    last = list(range(total))[-room:]
    assert transcript.x[:, 0, 0, 0].tolist() == transcript.answers[:, 0].tolist() == last
    assert len(replay) + transcript.forgotten == total
    assert torch.equal(replay.beliefs, 2 * replay.answers)


def test_the_painters_loss_is_that_of_the_formula():
    """The less the thieves agree and the more alike often they name all classes, the better."""
    guesses = torch.randn(2, 5, 4, generator=seed()).softmax(2)
    apart = sum(guesses[:, i, k].std().item() for i in range(5) for k in range(4)) / 20
    means = [guesses[:, :, k].mean().item() for k in range(4)]
    assert painter_loss(guesses).item() == pytest.approx(-apart + 0.2 * sum(m * math.log(m) for m in means), abs=1e-6)
    same = torch.eye(4).expand(2, 4, 4)
    one_class = torch.eye(4)[:1].expand(2, 4, 4)
    differ = torch.stack([torch.eye(4), torch.eye(4).flip(0)])
    assert painter_loss(differ) < painter_loss(same) < painter_loss(one_class)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (2, 7, 10)])
def test_painted_images_have_the_shape_of_the_pool_and_are_in_0_to_1(shape):
    images = Painter(torch.Size(shape), 2)(torch.randn(6, NOISE, generator=seed()))
    assert images.shape == (6, *shape)
    assert 0 < images.min() < 0.4
    assert 0.6 < images.max() < 1


def test_the_painter_learns_to_set_thieves_apart():
    known = knowledge(replace(SMALL, data_free_rate=1e-2))
    duel = Duel(known, Replay(32, known), 1, seed())
    duel.thieves[0].load_state_dict(victim_network().state_dict())  # one that has opinions
    torch.manual_seed(0)

    def apart(images):
        return (duel.thieves[0](images).softmax(1) - duel.thieves[1](images).softmax(1)).abs().mean().item()

    before = apart(duel.make_images())
    for _ in range(100):
        duel.make_images()
    assert apart(duel.make_images()) > 1.05 * before


def test_new_images_every_time_and_the_thief_and_the_count_come_with_the_last_answers():
    known = knowledge(replace(SMALL, data_free_replay=50))
    oracle, asked = recording_oracle(200)
    transcript = data_free(oracle, ATTACKS["direct"], known, 200, seed())
    images = torch.cat([x for _, x in asked])
    assert len(images.flatten(1).unique(dim=0)) == 200 == oracle.used
    assert torch.equal(transcript.x, images[-50:])
    assert torch.allclose(transcript.answers, clean(images[-50:]), atol=1e-6)
    assert transcript.forgotten == 150
    thief = train_thief(transcript, replace(known, schedule=Schedule(epochs=1, lr=0.0, weight_decay=0)), seed())
    assert torch.allclose(
        thief(known.pool), transcript.thief(known.pool), atol=1e-5
    )  # it goes on from where the other stands
    assert thief is not transcript.thief


def test_labels_are_all_that_the_label_only_thief_learns_from():
    """Its transcript has the answers as they came; what it learns from does not depend on more than their labels."""
    known = knowledge()
    plain, sharp = (
        data_free(counted_oracle(64, change), ATTACKS["label_only"], known, 64, seed())
        for change in (lambda y: y, lambda y: (3 * y).softmax(1))
    )
    assert not torch.allclose(plain.answers, sharp.answers)
    assert torch.equal(plain.thief(known.pool), sharp.thief(known.pool))


def test_it_stops_when_a_whole_batch_is_refused():
    oracle = refusing_oracle(500, lambda x: torch.full((len(x),), oracle.used > 96))
    transcript = data_free(oracle, ATTACKS["direct"], knowledge(), 500, seed())
    assert oracle.used == 128
    assert len(transcript) == 96
    nothing = refusing_oracle(500, lambda x: torch.ones(len(x), dtype=torch.bool))
    assert len(data_free(nothing, ATTACKS["direct"], knowledge(), 500, seed())) == 0
    assert nothing.used == 32


def test_what_it_cannot_do_is_said():
    with pytest.raises(BudgetError, match="got a budget of 50 and 3 queries an image"):
        data_free(counted_oracle(50), Attack(cost=lambda _: 3), knowledge(), 50, seed())
    with pytest.raises(ShapeError, match=r"got a pool of \(400, 64\)"):
        data_free(counted_oracle(50), Attack(), knowledge(pool=KNOWN.pool.flatten(1)), 50, seed())


@pytest.mark.slow
def test_a_thief_without_images_gets_far_beyond_chance():
    sizes = replace(SMALL, data_free_batch=64, data_free_replay=6000, data_free_width=8, data_free_rate=1e-3)
    known = knowledge(sizes, schedule=Schedule(epochs=5, lr=0.1))
    transcript = data_free(counted_oracle(6000, lambda y: y), ATTACKS["direct"], known, 6000, seed(2))
    x, _ = held_out()
    labels = predict(victim_network(), x)
    chance = labels.bincount().max() / len(labels)
    assert (predict(train_thief(transcript, known, seed()), x) == labels).float().mean() > chance + 0.2
