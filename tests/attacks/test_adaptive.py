from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from queen.attacks.adaptive import (
    Loot,
    Plan,
    carry_out,
    cover,
    jittered,
    look_alike,
    many_accounts,
    plain,
    remap,
    shifted,
    warm_up,
)
from queen.errors import OptionError
from queen.options import Group, Limits
from tests.support.guards import fitted, queries

NUMBERED = torch.arange(60.0).view(60, 1, 1, 1)  # images that are their own number
BENIGN = 1000 + torch.arange(200.0).view(200, 1, 1, 1)


def sentinel(**options):
    return fitted("head", policy="sentinel", limits=Limits(radius=0.05), **options)


def noise(count: int, seed: int = 0) -> torch.Tensor:
    return 0.4 * torch.rand(count, 64, generator=torch.Generator().manual_seed(seed))  # grey fog: no class fits


def test_a_plain_plan_sends_everything_in_order_from_one_account():
    plan = plain(NUMBERED)
    assert torch.equal(plan.images, NUMBERED)
    assert plan.attack.all()
    assert set(plan.accounts) == {0}


def test_a_look_alike_attacker_sends_the_most_usual_images_first():
    scores = [(7 * i) % 60 for i in range(60)]
    sent = look_alike(NUMBERED, scores, 10).images.flatten().long().tolist()
    assert [scores[i] for i in sent] == list(range(10))


def test_warm_up_comes_first_and_is_no_attack():
    plan = warm_up(NUMBERED, BENIGN[:30])
    assert torch.equal(plan.images, torch.cat([BENIGN[:30], NUMBERED]))
    assert plan.attack.tolist() == [False] * 30 + [True] * 60


@given(st.integers(1, 12))
def test_cover_hides_every_attack_query_behind_its_ratio_of_benign_ones(ratio):
    plan = cover(NUMBERED, BENIGN, ratio)
    sent = plan.images.flatten().tolist()
    assert [v < 1000 for v in sent] == plan.attack.tolist()
    rounds = np.flatnonzero(plan.attack)
    assert rounds.tolist() == [(ratio + 1) * i + ratio for i in range(len(rounds))]
    assert len(rounds) == min(60, 200 // ratio)
    hidden = [v for v in sent if v >= 1000]
    assert hidden == sorted(set(hidden))  # distinct, in order


@pytest.mark.parametrize("ratio", [0, -1, 201])
def test_cover_without_enough_images_is_said(ratio):
    with pytest.raises(OptionError, match=r"ratio|too few"):
        cover(NUMBERED, BENIGN, ratio)


def test_accounts_take_turns_and_the_order_stays():
    plan = many_accounts(plain(NUMBERED), 7)
    assert torch.equal(plan.images, NUMBERED)
    assert plan.accounts.tolist() == [i % 7 for i in range(60)]


def test_jittered_copies_are_near_their_originals_and_all_different():
    few = torch.rand(3, 1, 8, 8)
    copies = jittered(few, 10, 0.01, torch.Generator().manual_seed(0))
    assert len(copies) == 10
    assert 0 <= copies.min() <= copies.max() <= 1
    distance = (copies - few[torch.arange(10) % 3]).abs().flatten(1).amax(1)
    assert (distance > 0).all()
    assert distance.max() < 0.1


def test_shifts_move_every_image_by_one_pixel_in_eight_directions():
    x = torch.zeros(2, 1, 5, 5)
    x[0, 0, 2, 2] = x[1, 0, 0, 0] = 1
    moved = shifted(x)
    assert len(moved) == 18
    assert torch.equal(moved[:2], x)
    places = {tuple(image[0].nonzero()[0].tolist()) for image in moved[::2]}
    assert places == {(i, j) for i in (1, 2, 3) for j in (1, 2, 3)}


def test_what_was_honest_is_told_from_decoys_and_refusals():
    guard = sentinel()
    loot = carry_out(warm_up(noise(200), queries()[:40]), guard)
    assert loot.alarmed.any()
    first = int(loot.alarmed.argmax())
    assert loot.honest[:first].all()
    assert loot.honest[first:].mean() < 0.2  # a decoy may, seldom, keep every number in its place
    assert not loot.refused.any()
    assert loot.honest_answers == int(loot.honest[40:].sum())
    assert loot.alarm_at == first - 40 + 1
    x, answers = loot.training_set(loot.honest)
    assert len(x) == len(answers) == int(loot.honest.sum())
    assert len(loot.letters) == 240


def test_refused_rows_bring_nothing():
    guard = sentinel(on_alarm="refuse")
    loot = carry_out(plain(noise(200)), guard)
    assert loot.refused.any()
    assert not (loot.refused & loot.honest).any()
    assert len(loot.training_set(~loot.honest)[0]) == 0
    assert torch.allclose(loot.answers[np.flatnonzero(loot.refused)], torch.tensor(0.1))


def test_a_plan_without_alarm_has_none_to_report():
    loot = carry_out(plain(queries()[:20]), sentinel())
    assert loot.alarm_at is None
    assert loot.honest_answers == 20


def test_each_account_is_a_client_of_its_own_and_a_group_pools_them():
    plan = many_accounts(plain(noise(60)), 30)
    alone = sentinel()
    loot = carry_out(plan, alone)
    assert set(alone.ledger.clients()) == {f"account {i}" for i in range(30)}
    assert loot.honest_answers == 60
    pooled = sentinel(groups={"all": Group(limits=Limits(radius=0.05), enforce_alarm=True)})
    together = carry_out(plan, pooled, groups=["all"])
    one = carry_out(plain(noise(60)), pooled.fresh(), groups=["all"])
    assert 0 < together.honest_answers < 60
    assert together.honest_answers <= 1.1 * one.honest_answers


def test_the_best_exchange_of_classes_undoes_a_fixed_one():
    truth = torch.arange(200) % 10
    order = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    answers = torch.nn.functional.one_hot(order[truth], 10).float()
    none = np.zeros(200, np.bool_)
    loot = Loot(Plan(torch.zeros(200, 1), np.zeros(200, np.int64), ~none), answers, none, none, none)
    rows = np.arange(100)
    assert torch.equal(remap(loot, rows, truth[:100]), truth)
