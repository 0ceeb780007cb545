"""A toy to steal: a small network on 8x8 digits behind any map of its answers, and everything to know about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from queen.attacks.base import CountedOracle, Knowledge, Sizes
from queen.attacks.strategies.heads import encoder_of
from queen.defenses.base import MappedEndpoint, Victim
from queen.errors import RefusedError
from queen.training import Schedule, probabilities, train
from queen.types import Reply, Verdict
from queen.zoo import build, seeded
from tests.support.guards import digits, images

QUICK = Schedule(epochs=1, batch=32)
SMALL = Sizes(
    table=400,
    shadows=2,
    shadow_epochs=1,
    shadow_steps=2,
    shadow_network="small_cnn",
    generator_widths=(16, 8),
    generator_epochs=2,
    generator_batch=64,
    jbda_seeds=10,
    jbda_min_steps=2,
    active_rounds=3,
    data_free_batch=32,
    data_free_replay=100,
    data_free_width=4,
    accounts=5,
    true_labels=20,
    warm_up=30,
    provoking=5,
    honest_anchors=5,
    labelled_anchors=5,
    path_steps=2,
    small_steps=4,
    ask_batch=64,
)


def seed(number: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def new_network(generator: torch.Generator) -> nn.Module:
    with seeded(generator):
        return build("small_cnn", classes=10, width=4, hidden=32)


@cache
def victim_network() -> nn.Module:
    x, y = digits()
    model = train(new_network(seed()), images(x[:1000]), y[:1000], Schedule(epochs=6, lr=0.1, batch=32), seed())
    return model.requires_grad_(False)


def clean(x: Tensor) -> Tensor:
    return probabilities(victim_network(), x)


def squeezed(y: Tensor) -> Tensor:
    """A map that can be undone: flat, but in the same order."""
    return (2 * y).softmax(1)


def endpoint(perturb: Callable[[Tensor], Tensor] = squeezed) -> MappedEndpoint:
    x, y = digits()
    victim = Victim(victim_network(), (images(x[:1000]), y[:1000]), new_network)
    return MappedEndpoint(victim, lambda answers, x: perturb(answers))


def counted_oracle(budget: int, perturb: Callable[[Tensor], Tensor] = squeezed) -> CountedOracle:
    return CountedOracle(endpoint(perturb).client, budget, 64)


def refusing_oracle(budget: int, refuses: Callable[[Tensor], Tensor]) -> CountedOracle:
    """An oracle that answers as the model does, but refuses the rows of x for which `refuses` holds."""

    def oracle(x: Tensor) -> Tensor:
        refused, answers = refuses(x), clean(x)
        if not refused.any():
            return answers
        flat = torch.where(refused[:, None], 1 / answers.shape[1], answers)
        mask = refused.cpu().numpy()
        raise RefusedError("no", Reply(flat, (Verdict.OUTSIDE,) * len(x), np.zeros(len(x), np.bool_), mask, ~mask))

    return CountedOracle(lambda _: oracle, budget, 64)


def recording_oracle(budget: int) -> tuple[CountedOracle, list[tuple[str, Tensor]]]:
    """An oracle that answers as the model does, and the list of (account, images) that it was asked."""
    asked: list[tuple[str, Tensor]] = []

    def account(name: str) -> Callable[[Tensor], Tensor]:
        return lambda x: asked.append((name, x)) or clean(x)

    return CountedOracle(account, budget, 64), asked


def knowledge(sizes: Sizes = SMALL, device: str = "cpu", **changes: object) -> Knowledge:
    """Everything there is to know; the pool's own labels are five, and say nothing about digits."""
    victim_network().to(device)
    x, y = (part.to(device) for part in digits())
    pool = images(x[1000:1400])
    everything = Knowledge(
        classes=10,
        pool=pool,
        make_thief=new_network,
        schedule=QUICK,
        sizes=sizes,
        pool_labels=torch.arange(len(pool), device=device) % 5,
        simulate=endpoint().simulate,
        clean=clean,
        benign=(images(x[1400:1600]), y[1400:1600]),
        rebuild=lambda model, x, labels, _: MappedEndpoint(
            Victim(model, (x, labels), new_network), lambda answers, x: squeezed(answers)
        ),
        encoder=encoder_of(victim_network(), pool[:2]),
    )
    return replace(everything, **changes)


def held_out() -> tuple[Tensor, Tensor]:
    x, y = digits()
    return images(x[1600:]), y[1600:]


def rows_in(pool: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Which row of the pool each image is; there must be one."""
    same = (x.flatten(1)[:, None] == pool.flatten(1)).all(2)
    assert same.any(1).all()
    return same.int().argmax(1)
