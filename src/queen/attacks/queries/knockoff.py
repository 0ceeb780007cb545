"""KnockoffNet with random selection: as many images of the pool as the budget buys, each once, in a random order."""

from __future__ import annotations

import torch

from queen.attacks.base import Attack, BudgetError, CountedOracle, Knowledge, Transcript


def knockoff(
    oracle: CountedOracle, attack: Attack, knowledge: Knowledge, budget: int, generator: torch.Generator
) -> Transcript:
    """Ask for budget // cost images of the pool: random ones, unless the attack chooses them itself."""
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
    return attack.ask(oracle, pool[rows.to(pool.device)], knowledge, generator)
