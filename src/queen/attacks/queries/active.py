"""ActiveThief: round by round, the images of the pool that the thief so far is least sure of and knows nothing like.

The first round asks for random images. Every round after it trains a fresh thief on the answers so far and looks at
what it says of the whole pool: of the images not asked yet, those with the highest entropy are candidates, and the
greedy k-center algorithm takes those of them whose probabilities are farthest from all that was asked.
"""

from __future__ import annotations

import torch
from torch import Tensor

from queen.attacks.base import Attack, BudgetError, CountedOracle, Knowledge, Sizes, Transcript, join
from queen.attacks.queries.rounds import train_round
from queen.training import probabilities

BATCH = 2048
EXACT = "donot_use_mm_for_euclid_dist"  # of torch.cdist: the other mode loses small distances


def active_thief(
    oracle: CountedOracle, attack: Attack, knowledge: Knowledge, budget: int, generator: torch.Generator
) -> Transcript:
    """Ask for random images, then for rounds of chosen ones, each image once, until the budget is spent."""
    pool, sizes = knowledge.pool, knowledge.sizes
    if not 1 <= budget <= len(pool) or attack.cost(sizes) != 1:
        raise BudgetError(
            f"ActiveThief needs a budget of 1 to all {len(pool)} images of the pool and an attack that asks once an "
            f"image, got a budget of {budget} and {attack.cost(sizes)} queries an image"
        )
    asked = torch.zeros(len(pool), dtype=torch.bool, device=pool.device)
    transcript = Transcript(pool[:0], pool.new_zeros(0, knowledge.classes))
    for count in rounds(budget, sizes):
        if len(transcript) > 1:
            thief = train_round(attack, transcript, knowledge, budget, generator)
            with torch.autocast("cuda", torch.bfloat16, enabled=pool.is_cuda):
                guesses = probabilities(thief, pool, BATCH)
            rows = choose(guesses, asked, count, round(sizes.active_candidates * budget))
        else:  # the first round, or everything was refused: nothing to train on
            unasked = (~asked).nonzero().squeeze(1)
            rows = unasked[torch.randperm(len(unasked), generator=generator)[:count].to(pool.device)]
        asked[rows] = True
        transcript = join([transcript, attack.ask(oracle, pool[rows], knowledge, generator)])
    return transcript


def rounds(budget: int, sizes: Sizes) -> list[int]:
    """How many images each round asks for: `active_first` of the budget, then equal parts of the rest."""
    first = min(budget, max(1, round(sizes.active_first * budget)))
    share, more = divmod(budget - first, sizes.active_rounds)
    later = [share + (number < more) for number in range(sizes.active_rounds)]
    return [first, *(count for count in later if count)]


def choose(guesses: Tensor, asked: Tensor, count: int, candidates: int) -> Tensor:
    """`count` rows of the pool that were not asked yet, given a thief's guesses (N, K) and which were asked (N,).

    They are spread over the `candidates` rows of highest entropy, or over `count` rows where that is more.
    """
    entropy = torch.special.entr(guesses).sum(1).masked_fill(asked, -1.0)
    unasked = len(asked) - int(asked.sum())
    unsure: Tensor = entropy.topk(min(max(count, candidates), unasked)).indices
    return unsure[k_center(guesses[unsure], guesses[asked], count)]


def k_center(points: Tensor, centres: Tensor, count: int) -> Tensor:
    """Rows (count,) of points (n, d), each the farthest from all centres (m, d) and from the rows before it."""
    parts = points.split(BATCH)  # type: ignore[no-untyped-call]
    distance = torch.cat([torch.cdist(part, centres, compute_mode=EXACT).amin(1) for part in parts])
    rows = torch.empty(count, dtype=torch.long, device=points.device)
    for number in range(count):  # on a GPU without waiting for it: the row stays there
        row = rows[number : number + 1]
        row.copy_(distance.argmax())
        distance = distance.minimum(torch.linalg.vector_norm(points - points.index_select(0, row), dim=1))
        distance.index_fill_(0, row, -1.0)  # never again, even where all others are as near
    return rows
