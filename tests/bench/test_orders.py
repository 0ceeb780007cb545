from __future__ import annotations

import numpy as np
import pytest
import torch

from queen.bench.orders import OrderReplay
from queen.errors import OptionError, RefusedError
from queen.options import Limits
from tests.support.guards import fitted, queries


def sentinel(**options):
    return fitted("head", policy="sentinel", limits=Limits(radius=0.05), **options)


def mixed() -> torch.Tensor:
    noise = 0.4 * torch.rand(120, 64, generator=torch.Generator().manual_seed(0))  # grey fog: no class fits
    return torch.cat([queries()[:100], noise])


def answered(guard, x) -> list[bool]:
    alarmed = []
    for part in x.split(16):
        try:
            reply = guard.answer(part, client="c")
        except RefusedError as refusal:
            reply = refusal.reply
        alarmed += reply.alarmed.tolist()
    return alarmed


@pytest.mark.parametrize("seed", range(3))
def test_a_replayed_client_is_accused_exactly_where_a_real_one_is(seed):
    guard, x = sentinel(), mixed()
    order = np.random.default_rng(seed).permutation(len(x))
    alarmed = answered(guard.fresh(), x[order])
    expected = alarmed.index(True) + 1 if any(alarmed) else None
    assert expected is not None
    assert OrderReplay(guard, x).alarm_at(order) == expected


def test_replays_count_the_accused_and_do_not_disturb_each_other():
    replay = OrderReplay(sentinel(), mixed())
    benign, noise = np.arange(100), np.arange(100, 220)
    assert replay.accused([benign, noise, benign, noise]) == 2
    assert replay.alarm_at(benign) is None


def test_the_oddest_images_are_those_whose_bets_win_most():
    replay = OrderReplay(sentinel(), mixed())
    assert set(replay.oddest(30)) <= set(range(100, 220))
    bets = replay.bets
    gains = [
        sum(q * n / total for q, n, total in zip(bets.bet[i], bets.size[i], bets.total[i], strict=True))
        for i in replay.oddest(50)
    ]
    assert gains == pytest.approx(sorted(gains, reverse=True))


def test_without_evidence_there_is_nothing_to_replay():
    with pytest.raises(OptionError, match="sentinel"):
        OrderReplay(fitted("head"), queries())
