"""ActiveThief: which images a round takes, and that each is asked once, to the end of the budget."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from queen.attacks import ATTACKS
from queen.attacks.base import Attack, BudgetError, Sizes, ask_from_one_account
from queen.attacks.queries.active import active_thief, choose, k_center, rounds
from tests.support.attackers import SMALL, counted_oracle, knowledge, refusing_oracle, rows_in, seed, victim_network


def k_center_by_loops(points, centres, count):
    """Straight from the definition: every distance anew for every row."""
    chosen = []
    for _ in range(count):
        everything = torch.cat([centres, points[chosen]])
        distances = [(point - everything).norm(dim=1).min().item() for point in points]
        left = [row for row in range(len(points)) if row not in chosen]
        chosen.append(max(left, key=distances.__getitem__))
    return chosen


@given(st.integers(1, 25), st.integers(1, 8), st.integers(1, 5), st.integers(0, 1000), st.data())
def test_k_center_is_the_greedy_one(n, m, width, number, data):
    count = data.draw(st.integers(1, n))
    drawn = torch.rand(n + m, width, generator=seed(number), dtype=torch.float64)
    points, centres = drawn[:n], drawn[n:]
    assert k_center(points, centres, count).tolist() == k_center_by_loops(points, centres, count)


def test_equal_points_are_each_taken_once():
    points = torch.ones(6, 3)
    assert sorted(k_center(points, points[:2], 6).tolist()) == list(range(6))


def test_a_round_spreads_over_the_most_unsure_images_that_were_not_asked():
    guesses = torch.rand(60, 4, generator=seed()).softmax(1)
    asked = torch.arange(60) % 3 == 0
    entropy = -(guesses * guesses.log()).sum(1)
    left = [row for row in range(60) if not asked[row]]
    unsure = sorted(left, key=lambda row: -entropy[row])[:20]
    rows = choose(guesses, asked, 7, 20)
    expected = k_center_by_loops(guesses[unsure], guesses[asked], 7)
    assert rows.tolist() == [unsure[row] for row in expected]
    assert set(choose(guesses, asked, 7, 0).tolist()) == set(unsure[:7])
    assert set(choose(guesses, asked, 40, 1000).tolist()) == set(left)


@given(st.integers(1, 60_000), st.integers(1, 30), st.floats(0, 1))
def test_rounds_spend_the_budget_in_parts_as_equal_as_can_be(budget, number, first):
    counts = rounds(budget, Sizes(active_rounds=number, active_first=first))
    assert sum(counts) == budget
    assert min(counts) >= 1
    assert len(counts) <= 1 + number
    assert abs(counts[0] - first * budget) <= 1
    assert not counts[1:] or max(counts[1:]) - min(counts[1:]) <= 1


def test_published_rounds():
    assert rounds(50_000, Sizes()) == [5000] + [4500] * 10


class Watcher:
    """An attack whose thieves are the victim itself, and that notes what they were trained on."""

    def __init__(self) -> None:
        self.asked, self.tables = [], []
        self.attack = Attack(ask=self.ask, learn=self.learn)

    def ask(self, oracle, x, knowledge, generator):
        self.asked.append(x)
        return ask_from_one_account(oracle, x, knowledge, generator)

    def learn(self, transcript, knowledge, generator):
        assert knowledge.on_epoch is None
        self.tables.append(knowledge.sizes.table)
        return victim_network()


def test_every_image_is_asked_once_and_the_first_are_random():
    watcher, oracle, known = Watcher(), counted_oracle(300), knowledge(on_epoch=print)
    transcript = active_thief(oracle, watcher.attack, known, 300, seed())
    rows = rows_in(known.pool, transcript.x)
    assert rows.unique().numel() == 300 == oracle.used
    assert [len(x) for x in watcher.asked] == rounds(300, SMALL)
    assert watcher.tables == [SMALL.table * n // 300 for n in torch.tensor(rounds(300, SMALL)).cumsum(0)[:-1].tolist()]
    assert 100 < rows[: len(watcher.asked[0])].double().mean() < 300


def test_later_rounds_ask_for_images_the_thief_is_unsure_of():
    watcher, known = Watcher(), knowledge(replace(SMALL, active_candidates=0.2))
    active_thief(counted_oracle(100), watcher.attack, known, 100, seed())

    def unsureness(x):
        return torch.special.entr(victim_network()(x).softmax(1)).sum(1).mean()

    assert unsureness(torch.cat(watcher.asked[1:])) > 2 * unsureness(known.pool)


def test_a_service_that_refuses_everything_is_still_asked_to_the_end():
    watcher, oracle = Watcher(), refusing_oracle(50, lambda x: torch.ones(len(x), dtype=torch.bool))
    assert len(active_thief(oracle, watcher.attack, knowledge(), 50, seed())) == 0
    assert oracle.used == 50
    assert rows_in(knowledge().pool, torch.cat(watcher.asked)).unique().numel() == 50


@pytest.mark.parametrize(("budget", "cost"), [(401, 1), (0, 1), (50, 3)])
def test_what_the_pool_cannot_fill_and_attacks_that_ask_several_times_are_refused(budget, cost):
    with pytest.raises(BudgetError, match=rf"all 400 images .* got a budget of {budget} and {cost} queries an image"):
        active_thief(counted_oracle(budget), Attack(cost=lambda _: cost), knowledge(), budget, seed())


def test_the_whole_pool_may_be_asked():
    oracle = counted_oracle(400)
    transcript = active_thief(oracle, ATTACKS["direct"], knowledge(), 400, seed())
    assert rows_in(knowledge().pool, transcript.x).unique().numel() == 400 == oracle.used
