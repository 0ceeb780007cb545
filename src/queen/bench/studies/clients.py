"""Benign clients of several kinds: which test images each of them sends, and what its camera does to them.

- `mixed`: random images;
- `one_class`: images of one true class, another one for the next client;
- `cascade`: what a client forwards because it is unsure, here the fifth that the victim itself is least sure of;
- `camera CONDITION`: random images, all under a condition of `queen.sentinel.conditions`, such as "noise:0.06";
- `drift CONDITION`: random images, the first one as it is, then more and more of the condition, the last one under it.

No client sends an image twice, since detectors take repeats for signs of an attack. One whose kind has too few images
sends all there are, in a shorter life.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from queen.bench.protectee import Protectee
from queen.defenses.base import nearest
from queen.errors import OptionError
from queen.sentinel.conditions import CLEAN, apply, check_condition

CHANGING = ("camera", "drift")
KINDS = ("mixed", "one_class", "cascade", *CHANGING)
UNSURE = 5  # a cascade forwards one in so many images


@dataclass(frozen=True)
class Traffic:
    """What one client sends: the rows (n,) of the images, in this order. Clients may share their images."""

    images: Tensor
    rows: Tensor

    @property
    def x(self) -> Tensor:
        """The images (n, ...) that are sent."""
        return self.images[self.rows.to(self.images.device)]


def parse_kind(name: str) -> tuple[str, str]:
    """The kind of a client and the condition of its images, or an error that says what is wrong with the name."""
    kind, _, condition = name.partition(" ")
    if kind not in KINDS:
        raise OptionError(f"no kind of client '{kind}'{nearest(kind, dict.fromkeys(KINDS))}")
    if kind not in CHANGING:
        if condition:
            raise OptionError(f"only {' and '.join(CHANGING)} take a condition, got '{name}': say '{kind}'")
        return kind, CLEAN
    if not condition:
        raise OptionError(f"expected a condition of images after '{kind}', as in '{kind} noise:0.06', got none")
    return kind, check_condition(condition)


def simulate_clients(
    protectee: Protectee, name: str, *, clients: int, life: int, generator: torch.Generator
) -> Iterator[Traffic]:
    """The traffic of so many clients of a kind, each of at most `life` queries."""
    kind, condition = parse_kind(name)
    x = protectee.test[0]
    changed = apply(condition, x, generator)
    choose = _chooser(kind, protectee)
    for client in range(clients):
        own = choose(client)
        rows = own[torch.randperm(len(own), generator=generator)[:life]]
        if kind != "drift":
            yield Traffic(changed, rows)
            continue
        places = rows.to(x.device)
        part = torch.linspace(0, 1, len(rows), device=x.device).view(-1, *[1] * (x.ndim - 1))
        yield Traffic(torch.lerp(x[places], changed[places], part), torch.arange(len(rows)))


def _chooser(kind: str, protectee: Protectee) -> Callable[[int], Tensor]:
    """Gives the rows of the test images that a client, by its number, draws from."""
    x, y = protectee.test
    if kind == "one_class":
        labels = y.cpu()
        classes = sorted(set(labels.tolist()))
        return lambda client: (labels == classes[client % len(classes)]).nonzero().flatten()
    if kind == "cascade":
        surest_last = protectee.victim.clean(x).amax(1).cpu().argsort(stable=True)
        unsure = surest_last[: max(1, len(x) // UNSURE)].sort().values
        return lambda _: unsure
    return lambda _: torch.arange(len(x))
