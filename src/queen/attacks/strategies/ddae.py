"""D-DAE: a small network learns to turn defended answers back into clean ones, from pairs of both.

`ddae` takes its clean answers from shadow networks of the attacker, trained on random classes of its own pool;
`ddae_plus` draws them as pBayes does.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn

from queen.attacks.base import Believe, Knowledge, Sizes, Transcript
from queen.attacks.strategies.pairs import Pairs, Prior, draw_pairs, simulated, simulator
from queen.attacks.strategies.repeated_step import RepeatedStep
from queen.attacks.strategies.requirements import known
from queen.cache import fingerprint
from queen.training import Schedule, probabilities, train
from queen.zoo import build, seeded

RATE, HALVE_EVERY = 0.01, 100  # of the restorer
SHADOW_STEPS = 200  # at least, however few images there are


def ddae(found: Transcript, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Recovery with the answers of shadow networks to the images asked as clean ones."""
    simulate = simulator(knowledge)
    clean = (probabilities(network, found.x).to(found.answers) for network in shadows(knowledge, generator))
    return _recovered(found, simulated(clean, found.x, simulate, generator), knowledge.sizes, generator)


def ddae_plus(prior: Prior) -> Believe:
    """Recovery with clean answers drawn around a prior."""

    def believe(found: Transcript, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
        pairs = draw_pairs(found, prior(found, knowledge), simulator(knowledge), knowledge.sizes, generator)
        return _recovered(found, pairs, knowledge.sizes, generator)

    return believe


def shadows(knowledge: Knowledge, generator: torch.Generator) -> Iterator[nn.Module]:
    """Networks of K outputs, each trained on K random classes of the pool, one after the other."""
    sizes, pool = knowledge.sizes, knowledge.pool
    labels = known(knowledge.pool_labels, "pool_labels")
    # Published: SGD at .01 with momentum .5, from ImageNet weights. From scratch such networks stay at chance.
    schedule = Schedule(epochs=sizes.shadow_epochs, lr=0.05, batch=64, min_steps=SHADOW_STEPS)
    for number in range(sizes.shadows):
        # Not from `generator`: the same shadows serve every defense and every round of queries.
        told = f"shadow {knowledge.seed} {number}".encode()
        own = torch.Generator().manual_seed(int(fingerprint(told)[:15], 16))
        with seeded(own):
            blank = build(sizes.shadow_network, classes=knowledge.classes, channels=pool.shape[1])

        def teach(network: nn.Module, own: torch.Generator = own) -> nn.Module:
            rows, outputs = random_classes(labels, knowledge.classes, own)
            return train(network, pool[rows], outputs, schedule, own)

        if knowledge.cache is None:
            yield teach(blank)
        else:
            what = (knowledge.key, knowledge.seed, number, schedule, sizes.shadow_network, knowledge.classes)
            recipe = repr(what).encode()
            yield knowledge.cache.network(f"shadow-{fingerprint(recipe)}", blank, teach).to(pool.device)


def random_classes(labels: Tensor, classes: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The rows of K random classes among labels (n,), and which of K outputs each class became.

    Where there are fewer than K classes all are taken, and each becomes a random output of its own; the others
    never occur.
    """
    kinds = labels.bincount().nonzero().flatten()
    taken = kinds[torch.randperm(len(kinds), generator=generator)[:classes].to(kinds.device)]
    outputs = torch.randperm(classes, generator=generator)[: len(taken)].to(labels.device)
    where = labels[:, None] == taken
    rows = where.any(1).nonzero().flatten()
    return rows, outputs[where[rows].int().argmax(1)]


def restorer(classes: int, widths: tuple[int, ...]) -> nn.Sequential:
    """K -> widths -> K, each layer with batch norm and a leaky ReLU, the last one too; then a softmax."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise((classes, *widths, classes)):
        layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Softmax(1))


def train_restorer(pairs: Pairs, sizes: Sizes, generator: torch.Generator) -> nn.Module:
    """Learn clean from told by the l1 distance, summed over classes; an epoch drops what fills no batch."""
    count, device = len(pairs.clean), pairs.clean.device
    with seeded(generator):
        network = restorer(pairs.clean.shape[1], sizes.generator_widths).to(device)
    on_gpu = device.type == "cuda"
    optimiser = torch.optim.SGD(
        network.parameters(),
        lr=torch.tensor(RATE, device=device) if on_gpu else RATE,
        momentum=0.9,
        weight_decay=1e-4,
        fused=on_gpu or None,
    )
    rates = torch.optim.lr_scheduler.StepLR(optimiser, HALVE_EVERY, 0.5)

    def step(rows: Tensor) -> None:
        optimiser.zero_grad(set_to_none=True)
        (network(pairs.told[rows]) - pairs.clean[rows]).abs().sum(1).mean().backward()
        optimiser.step()

    replay, batch = RepeatedStep(step), min(sizes.generator_batch, count)
    for _ in range(sizes.generator_epochs):
        order = torch.randperm(count, generator=generator).to(device, non_blocking=True)
        for rows in order[: count - count % batch].view(-1, batch):
            replay(rows)
        rates.step()
    return network


def _recovered(found: Transcript, pairs: Pairs, sizes: Sizes, generator: torch.Generator) -> Transcript:
    network = train_restorer(pairs, sizes, generator)
    network.train(len(found) > 1)  # as published: batch norm by the statistics of all answers at once
    with torch.no_grad():
        return found.believing(network(found.answers))
