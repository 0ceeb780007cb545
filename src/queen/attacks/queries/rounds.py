"""Thieves on the way: strategies that ask in rounds train one on the answers so far, to choose what to ask next."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from queen.attacks.base import Attack, Knowledge, Transcript
from queen.cache import code_version, fingerprint


def train_round(
    attack: Attack, transcript: Transcript, knowledge: Knowledge, budget: int, generator: torch.Generator
) -> nn.Module:
    """A round's thief, from the cache if an attack that believes the same has trained it.

    Nobody watches it, and a recovery table grows with the answers, up to its full size when the budget is spent. What
    is drawn from `generator` does not depend on the attack, so that equal beliefs meet in later rounds too.
    """
    table = max(1, knowledge.sizes.table * len(transcript) // budget)
    knowledge = replace(knowledge, on_epoch=None, findings={}, sizes=replace(knowledge.sizes, table=table))
    seeds = torch.randint(2**62, (2,), generator=generator).tolist()
    believing, learning = (torch.Generator().manual_seed(seed) for seed in seeds)
    believed = attack.believe(transcript, knowledge, believing)
    if knowledge.cache is None:
        return attack.learn(believed, knowledge, learning)
    blank = knowledge.make_thief(torch.Generator().manual_seed(0))
    learn = attack.learn
    code = code_version(learn.__module__, "queen.training", "queen.zoo")
    recipe = (learn.__qualname__, code, knowledge.key, knowledge.schedule, knowledge.sizes, seeds[1], blank)
    tensors = (*blank.state_dict().values(), believed.x, believed.answers)
    name = f"round-{fingerprint(repr(recipe).encode(), *tensors)}"
    network = knowledge.cache.network(name, blank, lambda _: learn(believed, knowledge, learning))
    return network.to(knowledge.pool.device)
