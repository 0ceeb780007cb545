"""D-DAE: a small network, the restorer, learns from pairs to turn defended answers back into clean ones.

`ddae` takes its clean answers from shadow networks that the attacker trains on random classes of its own pool;
`ddae_plus` draws them as pBayes does. Where nearly all pairs keep the label, the label of an answer is put back on top
of what the restorer made of it: left alone, the restorer changed more labels than such a defense.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import TypedDict

import torch
from torch import Tensor, nn

from queen.attacks.base import Believe, Knowledge, Sizes, Transcript
from queen.attacks.strategies.pairs import Pairs, Prior, believes_labels, draw_part, pairs_around, simulate_pairs
from queen.attacks.strategies.requirements import require
from queen.cache import code_version, fingerprint
from queen.training import Schedule, predict, probabilities, train
from queen.training.compiled import Loss, compile_if_worth_it
from queen.training.repeated_step import RepeatedStep
from queen.zoo import arguments_for, build, seeded

RATE, HALVE_EVERY = 0.01, 100  # the restorer's learning rate, and the epochs after which it is halved
CHECKED = 50_000  # pairs at most on which the attacker sees how many labels the restorer gets right
MOST_NUMBERS = 3 * 10**8  # of the shadows' answers: 50,000 queries of 300 classes to 20 shadows
CODE = "queen.attacks.strategies.ddae", "queen.training", "queen.zoo"  # what made a shadow


class Lesson(TypedDict):
    """What came of teaching a shadow: the share of its own training images it gets right, and by a constant guess."""

    accuracy: float
    chance: float


def ddae(transcript: Transcript, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Recovery in which the answers of shadow networks to the images asked stand in for the clean ones.

    Where that is more than `sizes.table` pairs, or than fits into memory, a random part of the images is taken.
    """
    simulate, sizes, x = require(knowledge.simulate, "simulate"), knowledge.sizes, transcript.x
    most = max(1, min(sizes.table, MOST_NUMBERS // knowledge.classes) // sizes.shadows)
    if len(x) > most:
        x = x[draw_part(x, most, generator)]
    lessons: list[Lesson] = []

    def answers_of_shadows() -> Iterator[Tensor]:
        for network, lesson in shadows(knowledge):
            lessons.append(lesson)
            yield probabilities(network, x).to(transcript.answers)

    pairs = simulate_pairs(answers_of_shadows(), x, simulate, generator)
    knowledge.findings["shadows"] = {
        "accuracy": fmean(lesson["accuracy"] for lesson in lessons),
        "chance": fmean(lesson["chance"] for lesson in lessons),
        "top_probability": pairs.clean.amax(1).double().mean().item(),
    }
    return _restore(transcript, pairs, knowledge, generator)


def ddae_plus(prior: Prior) -> Believe:
    """Recovery with clean answers drawn around a prior."""

    def believe(transcript: Transcript, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
        pairs = pairs_around(prior, transcript, knowledge, generator)
        return _restore(transcript, pairs, knowledge, generator)

    return believe


def shadows(knowledge: Knowledge) -> Iterator[tuple[nn.Module, Lesson]]:
    """Networks with K outputs, each trained on K random classes of the pool, and what came of it, one after the other.

    They depend on `knowledge.seed` alone, so that the same shadows serve every defense and every round of queries.
    """
    pool = knowledge.pool
    mean, std = pool.mean((0, 2, 3)), pool.std((0, 2, 3)).clamp(min=1e-6)
    normalise = {"mean": mean.tolist(), "std": std.tolist()}
    return (_make_shadow(knowledge, number, normalise) for number in range(knowledge.sizes.shadows))


def _make_shadow(
    knowledge: Knowledge, number: int, normalise: Mapping[str, Sequence[float]]
) -> tuple[nn.Module, Lesson]:
    """One shadow, from the cache if it is there."""
    sizes, pool, cache = knowledge.sizes, knowledge.pool, knowledge.cache
    labels = require(knowledge.pool_labels, "pool_labels")
    own = torch.Generator().manual_seed(int(fingerprint(f"shadow {knowledge.seed} {number}".encode())[:15], 16))
    rows, outputs = random_classes(labels, knowledge.classes, own)
    with seeded(own):
        arguments = arguments_for(sizes.shadow_network, pool.shape)
        blank = build(sizes.shadow_network, classes=knowledge.classes, **arguments, **normalise)
    # Published: SGD at .01 with momentum .5, from ImageNet weights. From scratch such networks stay at chance.
    half = knowledge.schedule.bfloat16
    schedule = Schedule(epochs=sizes.shadow_epochs, lr=0.05, batch=64, min_steps=sizes.shadow_steps, bfloat16=half)

    def teach(network: nn.Module) -> nn.Module:
        return train(network, pool[rows], outputs, schedule, own)

    def examine(network: nn.Module) -> Lesson:
        right = predict(network, pool[rows]) == outputs
        return {
            "accuracy": right.double().mean().item(),
            "chance": outputs.bincount().max().item() / len(outputs),
        }

    if cache is None:
        network = teach(blank)
        return network, examine(network)
    recipe = (knowledge.key, knowledge.seed, number, schedule, sizes.shadow_network, knowledge.classes)
    name = f"shadow-{fingerprint(repr(recipe).encode(), code_version(*CODE).encode())}"
    network = cache.network(name, blank, teach).to(pool.device)
    return network, cache.facts(f"{name}-lesson", lambda: examine(network))


def random_classes(labels: Tensor, classes: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The rows whose label (n,) is one of K random classes, and for each row which of K outputs its class became.

    Where there are fewer than K classes, all are taken and each gets a random output; the other outputs stay unused.
    """
    kinds = labels.bincount().nonzero().flatten()
    taken = kinds[torch.randperm(len(kinds), generator=generator)[:classes].to(kinds.device)]
    outputs = torch.randperm(classes, generator=generator)[: len(taken)].to(labels.device)
    matches = labels[:, None] == taken
    rows = matches.any(1).nonzero().flatten()
    return rows, outputs[matches[rows].int().argmax(1)]


def restorer(classes: int, widths: tuple[int, ...]) -> nn.Sequential:
    """A network K -> widths -> K, with batch norm and a leaky ReLU after each layer, and a softmax at the end."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise((classes, *widths, classes)):
        layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Softmax(1))


def train_restorer(pairs: Pairs, sizes: Sizes, generator: torch.Generator) -> nn.Module:
    """Learn clean from defended answers by the mean l1 distance; an epoch drops the rows that do not fill a batch."""
    (count, classes), device = pairs.clean.shape, pairs.clean.device
    with seeded(generator):
        network = restorer(classes, sizes.widths_for(classes)).to(device)
    on_gpu = device.type == "cuda"
    optimiser = torch.optim.SGD(
        network.parameters(),
        lr=torch.tensor(RATE, device=device) if on_gpu else RATE,
        momentum=0.9,
        weight_decay=1e-4,
        fused=on_gpu or None,
    )
    rates = torch.optim.lr_scheduler.StepLR(optimiser, HALVE_EVERY, 0.5)
    batch = min(sizes.generator_batch, count)

    def distance(defended: Tensor, clean: Tensor) -> Tensor:
        restored: Tensor = network(defended)
        return (restored - clean).abs().sum(1).mean()

    loss: Loss = distance
    if on_gpu:
        loss = compile_if_worth_it(distance, network, (batch, classes), sizes.generator_epochs * (count // batch))

    def step(rows: Tensor) -> None:
        optimiser.zero_grad(set_to_none=True)
        loss(pairs.defended[rows], pairs.clean[rows]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    repeated_step = RepeatedStep(step)
    for _ in range(sizes.generator_epochs):
        order = torch.randperm(count, generator=generator).to(device, non_blocking=True)
        for rows in order[: count - count % batch].view(-1, batch):
            repeated_step(rows)
        rates.step()
    return network


def _restore(transcript: Transcript, pairs: Pairs, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    knowledge.findings["generator_widths"] = list(knowledge.sizes.widths_for(knowledge.classes))
    network = train_restorer(pairs, knowledge.sizes, generator)
    restored = apply_restorer(network, transcript.answers)
    if believes_labels(pairs, knowledge):
        restored = put_on_top(restored, transcript.answers.argmax(1))
    else:
        part = slice(None, None, -(-len(pairs.clean) // CHECKED))
        right = apply_restorer(network, pairs.defended[part]).argmax(1) == pairs.clean[part].argmax(1)
        knowledge.findings["label_restored"] = right.double().mean().item()
    return transcript.with_answers(restored)


def apply_restorer(network: nn.Module, answers: Tensor) -> Tensor:
    """Answers (n, K) restored; as published, batch norm goes by the statistics of all of them at once."""
    network.train(len(answers) > 1)
    with torch.no_grad():
        restored: Tensor = network(answers)
    return restored


def put_on_top(rows: Tensor, labels: Tensor) -> Tensor:
    """The rows (n, K), in each of which the largest number and that of its label (n,) have changed places."""
    tops, labels = rows.argmax(1, keepdim=True), labels[:, None]
    return rows.scatter(1, tops, rows.gather(1, labels)).scatter(1, labels, rows.gather(1, tops))
