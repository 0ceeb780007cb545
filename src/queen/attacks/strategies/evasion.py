"""Evading the scores: foreign images, changed by gradient steps until a surrogate's scores of them look usual.

The surrogate has the sentinel's three scores: the energy, the distance from the mean of the predicted class, for which
the defender uses a map that the attacker does not have, and the cosine to the second nearest feature of usual images.
Changes are as large as they must be, within 0..1: the attacker wants answers, and learns from the changed images.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from queen.attacks.base import CountedOracle, Knowledge, Transcript
from queen.attacks.strategies.heads import own_classifier
from queen.attacks.strategies.requirements import require
from queen.cache import code_version, fingerprint
from queen.core.split import Split, find_split
from queen.training import train

STEPS, STEP = 60, 0.01  # of the sign of the gradient, in pixels
USUAL = 0.25  # quantile of usual images' scores that is aimed at: below the middle, since surrogates are optimistic
REFERENCE = 1000  # usual images at most that features are compared with
NEIGHBOUR = 2
BATCH = 256


@dataclass(frozen=True)
class Surrogate:
    """A network with its own scores: class means (C, D), normalised features (m, D), and which scores (3,) are usual.

    `spread` (3,) is the deviation of each score among usual images, so that all three count alike.
    """

    split: Split
    means: Tensor
    features: Tensor
    usual: Tensor
    spread: Tensor

    def scores(self, x: Tensor) -> Tensor:
        """Energy, log distance and log of one minus the cosine, (n, 3): high for foreign images, as the sentinel's."""
        features, logits = (part.float() for part in self.split(x))
        centres = self.means[logits.argmax(1)]
        distance = (features - centres).norm(dim=1)
        cosines = F.normalize(features) @ self.features.T
        near = cosines.topk(min(NEIGHBOUR, len(self.features)), 1).values[:, -1]
        return torch.stack([-logits.logsumexp(1), distance.clamp(min=1e-6).log(), (1 - near).clamp(min=1e-6).log()], 1)

    def excess(self, x: Tensor) -> Tensor:
        """By how many deviations each score of x exceeds the usual, (n, 3); 0 where it does not."""
        return ((self.scores(x) - self.usual) / self.spread).clamp(min=0)


def make_surrogate(network: nn.Module, x: Tensor) -> Surrogate:
    """A network's scores, with images x (n, ...) as the usual ones: a half is the reference, the other is scored."""
    split = find_split(network.requires_grad_(False), x[:2])
    reference, others = x[::2][:REFERENCE], x[1::2][:REFERENCE]
    with torch.no_grad():
        pairs = [split(part) for part in reference.split(BATCH)]  # type: ignore[no-untyped-call]
        features, logits = (torch.cat(parts).float() for parts in zip(*pairs, strict=True))
        members = F.one_hot(logits.argmax(1), logits.shape[1]).to(features)
        # A class that nobody is in has the mean of all: nothing is near it.
        means = (members.T @ features + 1e-3 * features.mean(0)) / (members.sum(0)[:, None] + 1e-3)
        plain = Surrogate(split, means, F.normalize(features), *features.new_tensor([[0.0] * 3, [1.0] * 3]))
        scores = torch.cat([plain.scores(part) for part in others.split(BATCH)])  # type: ignore[no-untyped-call]
    return Surrogate(split, means, plain.features, scores.quantile(USUAL, 0), scores.std(0).clamp(min=1e-6))


def make_usual(surrogate: Surrogate, x: Tensor) -> Tensor:
    """Images x (n, ...) in 0..1, each changed step by step until none of its scores exceeds the usual."""
    return torch.cat([_make_usual(surrogate, part) for part in x.split(BATCH)])  # type: ignore[no-untyped-call]


def _make_usual(surrogate: Surrogate, x: Tensor) -> Tensor:
    changed, rows = x.clone(), torch.arange(len(x), device=x.device)
    for _ in range(STEPS):
        part = changed[rows].requires_grad_(True)
        excess = surrogate.excess(part).sum(1)
        odd = excess > 0
        if not odd.any():
            break
        (slope,) = torch.autograd.grad(excess.sum(), part)
        rows = rows[odd]  # a usual one stays as it is, so nothing of it has to be computed again
        changed[rows] = (part.detach() - STEP * slope.sign())[odd].clamp(0, 1)
    return changed


def ask_usual_to_pool(oracle: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator) -> Transcript:
    """Ask for images made as usual as typical ones of the own pool, by a surrogate trained on the pool's own labels."""
    return oracle.transcript(_make_usual_once(own_classifier(knowledge), knowledge.pool, x, knowledge))


def ask_usual_to_own_kind(
    oracle: CountedOracle, x: Tensor, knowledge: Knowledge, generator: torch.Generator
) -> Transcript:
    """Ask for images made as usual as those of the victim's kind, by a surrogate trained on these and their labels."""
    benign, labels = require(knowledge.benign, "benign")
    network = train(knowledge.make_thief(generator), benign, labels, knowledge.schedule, generator)
    return oracle.transcript(_make_usual_once(network, benign, x, knowledge))


def _make_usual_once(network: nn.Module, usual: Tensor, x: Tensor, knowledge: Knowledge) -> Tensor:
    """Images x, changed until a surrogate made of the network finds them usual.

    No answer counts in it, so attackers of several defenses, who differ in nothing else, share the work.
    """

    def change() -> dict[str, Tensor]:
        return {"x": make_usual(make_surrogate(network, usual), x)}

    if knowledge.cache is None:
        return change()["x"]
    code = code_version("queen.attacks.strategies.evasion", "queen.core.split")
    name = f"usual-{fingerprint(code.encode(), *network.state_dict().values(), usual, x)}"
    return knowledge.cache.tensors(name, change)["x"].to(x.device)
