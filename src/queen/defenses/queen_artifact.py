"""QUEEN as its authors released it: a reproduction of their code where it departs from their paper, not a defense.

What is reproduced: no answer is honest, and the walk takes at most 20 steps (the policy `artifact`); a moved answer is
returned as raw logits, and gradient reverse averages the shadows' raw logits; centres and spreads come from the first
1,000 training images; every shadow is one network trained for one epoch on all training images. Soft labels that do
not sum to 1 have no best thief: the loss falls without bound and a thief that believes them collapses to one class,
while one that takes the softmax of what looks like logits (the attack `sanitiser`) is told the model's labels.

What is not: the map's own training (temperature, rate, augmented images), and the function that turns moved features
into answers, which was never published; that it returns logits is what the paper's prose says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from queen.bundle.bundle import Bundle
from queen.core.geometry import Geometry, measure
from queen.defenses.base import Defense, Endpoint, Victim
from queen.defenses.queen import BATCH, GuardedEndpoint, draw_secret, load_or_fit
from queen.guard import Guard
from queen.ledger import Ledger
from queen.options import Limits
from queen.perturber import MeasuredBatch, Perturber
from queen.types import Inputs


class ReleasedGuard(Guard):
    """A guard whose answers are what the released code returns: logits, or probabilities where it reverses."""

    def __init__(self, bundle: Bundle, *, ledger: Ledger | None = None, secret: bytes | None = None) -> None:
        super().__init__(bundle, ledger=ledger, secret=secret)
        self._perturber = ReleasedPerturber(bundle, self.policy, self._sentinel, self._secret)

    def measure(self, x: Inputs, *, said: Tensor | None = None, features: Tensor | None = None) -> MeasuredBatch:
        """As every guard; logits of what the model is `said` to have said are on the scale of its own logits."""
        batch = super().measure(x, said=said, features=features)
        if said is None:
            return batch
        with torch.inference_mode():
            scale = self.bundle.split.head_of(batch.features).logsumexp(1, keepdim=True)
            return replace(batch, logits=batch.logits + scale)


class ReleasedPerturber(Perturber):
    """Moves to logits, and reverses the gradient of a pirate whose logits are taken for probabilities."""

    def _move(self, batch: MeasuredBatch, *, as_logits: bool = True) -> Tensor:
        return super()._move(batch, as_logits=as_logits)

    def _reverse(self, clients: Sequence[str], batch: MeasuredBatch) -> Tensor:
        pirate = self._mean(clients, batch.x, self._bundle.shadows.logits(batch.features, batch.x))
        return most_aligned(2 * pirate - batch.honest)


def most_aligned(target: Tensor) -> Tensor:
    """The point of the simplex with the largest cosine with each row of target (n, K), whatever the row sums to.

    Where nothing of a row is positive that is the corner of its largest number.
    """
    positive = target.clamp(min=0)
    total = positive.sum(1, keepdim=True)
    corner = F.one_hot(target.argmax(1), target.shape[1]).to(target)
    return torch.where(total > 0, positive / total.clamp(min=torch.finfo(target.dtype).tiny), corner)


def build(
    victim: Victim,
    generator: torch.Generator,
    *,
    radius: float = 0.02,
    absolute_radius: float | None = None,
    threshold: float = 0.2,
    centre_images: int = 1000,
    map_epochs: int = 100,
    map_batch: int | None = None,
    shadow_models: int = 10,
    shadow_kind: str = "vgg11_bn",
    shadow_epochs: int = 1,
    shadow_batch: int = 256,
    draw: int | None = None,
    seed: int = 0,
) -> Endpoint:
    """QUEEN with the released code's centres, shadows and answers; options as those of `queen`.

    Centres and spreads are those of the first `centre_images` training images. A class with fewer than two of them
    would have no disc: it keeps the fitted ones, which are those of all its training images.
    """
    limits = Limits(radius=radius if absolute_radius is None else absolute_radius, threshold=threshold)
    fitted = load_or_fit(
        victim,
        map_epochs=map_epochs,
        map_batch=map_batch,
        shadow_models=shadow_models,
        shadow_kind=shadow_kind,
        seed=seed,
        whole=True,
        epochs=shadow_epochs,
        batch=shadow_batch,
    )
    bundle = replace(fitted, geometry=_first_geometry(fitted, victim, centre_images))
    if absolute_radius is not None:
        limits = replace(limits, radius=bundle.geometry.relative_radii(absolute_radius))
    bundle = bundle.with_options(policy="artifact", limits=limits, draw=fitted.draw if draw is None else draw)
    return GuardedEndpoint(bundle, draw_secret(generator), ReleasedGuard)


def _first_geometry(bundle: Bundle, victim: Victim, count: int) -> Geometry:
    """Centres and spreads of the first `count` training images; of all images of a class with fewer than two there."""
    labels, classes = victim.train[1], bundle.geometry.classes
    few = torch.bincount(labels[:count], minlength=classes) < 2
    rows = (torch.arange(len(labels), device=labels.device) < count) | few[labels]
    x, labels = (part[rows].to(bundle.probe.logits.device) for part in victim.train)
    with torch.inference_mode():
        features = torch.cat([bundle.split(part)[0] for part in x.split(BATCH)]).float()  # type: ignore[no-untyped-call]
        return measure(features, bundle.mapping(features), labels, classes)


DEFENSE = Defense(build, keeps_label="no", needs=frozenset({"x"}), on_simplex=False, stateful=True)
