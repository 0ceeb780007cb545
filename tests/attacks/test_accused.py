"""Attackers who go on after the alarm: what they send, from which account, and what they believe."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from queen.attacks import ATTACKS
from queen.attacks.base import CountedOracle, Transcript
from queen.attacks.queries.knockoff import knockoff
from tests.support.attackers import SMALL, clean, knowledge, recording_oracle, rows_in, seed

ALARM = 15  # honest answers of an account


def decoy(x: Tensor) -> Tensor:
    """An answer that depends on the input alone."""
    return torch.stack([clean(row[None])[0].roll(1 + int(1e6 * row.sum()) % 9) for row in x])


def alarmed_oracle(budget: int) -> CountedOracle:
    """An oracle whose accounts are answered honestly 15 times each, and with decoys from then on."""

    def account(_: str):
        answered = 0

        def ask(x: Tensor) -> Tensor:
            nonlocal answered
            honest = max(0, min(ALARM - answered, len(x)))
            answered += len(x)
            return torch.cat([clean(x[:honest]), decoy(x[honest:])]) if honest < len(x) else clean(x)

        return ask

    return CountedOracle(account, budget, 64)


def is_honest(transcript: Transcript) -> Tensor:
    return (transcript.answers - clean(transcript.x)).abs().amax(1) < 1e-5


@pytest.mark.parametrize(("budget", "noise"), [(100, 5), (6, 3)])
def test_noise_comes_first_and_is_at_most_half(budget, noise):
    known = knowledge()
    oracle, asked = recording_oracle(budget)
    transcript = knockoff(oracle, ATTACKS["provoked_alarm"], known, budget, seed())
    x = torch.cat([x for _, x in asked])
    assert len(x) == budget
    assert torch.equal(transcript.x, x[noise:])
    rows_in(known.pool, x[noise:])
    assert not (x[:noise].flatten(1)[:, None] == known.pool.flatten(1)).all(2).any()


@pytest.mark.parametrize("name", ["two_accounts", "two_accounts_differ"])
def test_both_accounts_ask_for_the_same_and_one_is_fresh_in_turn(name):
    known = knowledge(replace(SMALL, accounts=5))
    oracle, asked = recording_oracle(80)
    transcript = knockoff(oracle, ATTACKS[name], known, 80, seed())
    assert [account for account, _ in asked] == [name for i in range(4) for name in ("thief", f"thief {i}")]
    for (_, first), (_, second) in zip(asked[::2], asked[1::2], strict=True):
        assert torch.equal(first, second)
    assert torch.equal(transcript.x, torch.cat([x for _, x in asked[::2]]))  # without a defense all is believed
    assert is_honest(transcript).all()


def test_a_fresh_account_is_believed_where_two_differ():
    known = knowledge(replace(SMALL, accounts=5))
    transcript = knockoff(alarmed_oracle(400), ATTACKS["two_accounts"], known, 400, seed())
    honest = is_honest(transcript).view(4, 50)  # each of four fresh accounts asks for 50
    assert honest[:, :ALARM].all()
    assert not honest[:, ALARM:].any()


def test_what_an_accused_account_says_too_is_dropped():
    known = knowledge(replace(SMALL, accounts=5))
    transcript = knockoff(alarmed_oracle(400), ATTACKS["two_accounts_differ"], known, 400, seed())
    assert len(transcript) == 3 * ALARM  # the first two accounts are accused together, and never differ
    assert is_honest(transcript).all()


def test_small_steps_lead_from_image_to_image():
    known = knowledge()
    oracle, asked = recording_oracle(40)
    transcript = knockoff(oracle, ATTACKS["small_steps"], known, 40, seed())
    x = torch.cat([x for _, x in asked])
    assert torch.equal(transcript.x, x)
    corners = x[::4]
    assert rows_in(known.pool, corners).unique().numel() == 10
    moves = (x.roll(-1, 0) - x).view(10, 4, -1)
    assert torch.allclose(moves, moves[:, :1].expand_as(moves), atol=1e-6)  # a straight line, evenly


def test_the_label_on_top_most_often_is_believed():
    known = knowledge()
    x = known.pool[:20]
    truth = clean(x).argmax(1)
    calls = iter(range(4))

    def mostly_right(images: Tensor) -> Tensor:
        """The second of four answers is wrong."""
        shift = 1 if next(calls) == 1 else 0
        return torch.nn.functional.one_hot((truth + shift) % 10, 10).float()

    transcript = ATTACKS["label_on_top"].ask(CountedOracle(lambda _: mostly_right, 80), x, known, seed())
    assert torch.equal(transcript.x, x)
    assert torch.equal(transcript.answers, torch.nn.functional.one_hot(truth, 10).float())


def test_votes_are_asked_of_the_image_and_noisy_copies():
    known = knowledge()
    oracle, asked = recording_oracle(40)
    knockoff(oracle, ATTACKS["label_on_top"], known, 40, seed())
    first, *copies = [x for _, x in asked]
    rows_in(known.pool, first)
    assert len(copies) == SMALL.repeats
    assert all(0 < (copy - first).abs().amax() < 0.12 for copy in copies)
