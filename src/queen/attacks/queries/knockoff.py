"""KnockoffNet with random selection: as many images of the pool as the budget buys, each once, in a random order."""

from __future__ import annotations

import torch
from torch import Tensor

from queen.attacks.base import Attack, BudgetError, CountedOracle, Knowledge, Transcript


def knockoff(
    oracle: CountedOracle, attack: Attack, knowledge: Knowledge, budget: int, generator: torch.Generator
) -> Transcript:
    """Ask for budget // cost images of the pool: random ones, unless the attack chooses them itself."""
    rows = draw_rows(attack, knowledge, budget, generator)
    return attack.ask(oracle, knowledge.pool[rows], knowledge, generator)


def draw_rows(attack: Attack, knowledge: Knowledge, budget: int, generator: torch.Generator) -> Tensor:
    """The rows of the pool that the attack asks for, on the pool's device."""
    pool, cost = knowledge.pool, attack.cost(knowledge.sizes)
    count = budget // cost
    if not 1 <= count <= len(pool):
        raise BudgetError(
            f"a budget of {budget} queries at {cost} an image buys {count} images, the pool has {len(pool)}; "
            "expected from 1 image to all of them"
        )
    if attack.choose is not None:
        rows = attack.choose(knowledge, count, generator)
    else:
        rows = torch.randperm(len(pool), generator=generator)[:count]
    return rows.to(pool.device)
