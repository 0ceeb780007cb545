"""Solving for the victim's head: the logarithms of answers are linear in the features that the encoder gives.

`greybox_head` owns the victim's encoder, as where a public one got a new head; `own_encoder_head` trains an encoder on
the labels of its own pool. Both leave the encoder as it is: a few dozen answers say nothing of its millions of weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from queen.attacks.base import Knowledge, Transcript
from queen.attacks.strategies.cleaning import rounding_unit
from queen.attacks.strategies.requirements import require
from queen.cache import code_version, fingerprint
from queen.core.split import find_split, run_model
from queen.training import Schedule, train
from queen.zoo import seeded

# Weight of the squared weights, for features of variance 1: at most, where answers are rounded to coarse units; per
# unit, since finer answers are to be trusted more; and where they are exact, so that only float32 is in the way.
MOST_RIDGE, RIDGE_PER_UNIT, EXACT_RIDGE = 1e-4, 1e-2, 1e-6
SMALLEST = 1e-30  # of an exact answer, before its logarithm
SEARCH = 300  # steps of L-BFGS
BATCH = 512
# Training of the own encoder: epochs, and steps of an epoch of a large pool and of all epochs of a small one.
OWN_EPOCHS, OWN_BATCHES, OWN_STEPS = 20, 100, 1500


class Headed(nn.Module):
    """An encoder and a head on its features."""

    def __init__(self, encoder: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, x: Tensor) -> Tensor:
        """(n, ...) -> (n, K)."""
        logits: Tensor = self.head(run_model(self.encoder, x))
        return logits


def with_head(model: nn.Module, sample: Tensor, make_head: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """A copy of the model in which `make_head(its head)` stands in place of its head."""
    name = find_split(model, sample).head_name
    copied = copy.deepcopy(model)
    if not name:  # the model is nothing but its head
        return make_head(copied)
    parent, _, leaf = name.rpartition(".")
    setattr(copied.get_submodule(parent), leaf, make_head(copied.get_submodule(name)))
    return copied


def encoder_of(model: nn.Module, sample: Tensor) -> nn.Module:
    """A copy of the model that stops before its head: (n, ...) -> features (n, D). Nothing in it will learn."""
    return with_head(model, sample, lambda _: nn.Identity()).eval().requires_grad_(False)


def solve_on_victims_encoder(transcript: Transcript, knowledge: Knowledge, generator: torch.Generator) -> nn.Module:
    """The victim's encoder with the head that explains the answers."""
    return _solve_on(require(knowledge.encoder, "encoder"), transcript, knowledge)


def solve_on_own_encoder(transcript: Transcript, knowledge: Knowledge, generator: torch.Generator) -> nn.Module:
    """An encoder trained on the pool's own labels, with the head that best explains the answers."""
    return _solve_on(encoder_of(own_classifier(knowledge), knowledge.pool[:2]), transcript, knowledge)


def _solve_on(encoder: nn.Module, transcript: Transcript, knowledge: Knowledge) -> nn.Module:
    features, usual = features_of(encoder, transcript.x), features_of(encoder, knowledge.pool)
    thief = Headed(encoder, solve_head(features, transcript.answers, usual)).eval()
    if knowledge.on_epoch is not None:
        knowledge.on_epoch(thief)
    return thief


@torch.no_grad()
def features_of(encoder: nn.Module, x: Tensor) -> Tensor:
    """The encoder's features (n, D) of x in float32."""
    return torch.cat([run_model(encoder, part).float() for part in x.split(BATCH)])  # type: ignore[no-untyped-call]


def solve_head(features: Tensor, answers: Tensor, usual: Tensor) -> nn.Linear:
    """The head whose softmax on features (n, D) gives the answers (n, K); `usual` (m, D) says how features vary.

    Exact answers: ridge regression of their logarithms, each row less its mean, since a softmax forgets what is added
    to all logits. Rounded ones say only that a probability lies half a unit around what is written: a search for
    logarithms inside, which prefers heads of high likelihood. So zeros, most of what rounding leaves, bound from above
    alone; a regression that takes them for a number is far worse, even as the start of the search.
    """
    unit = rounding_unit(answers)
    middle, scale = usual.double().mean(0), usual.double().std(0).square().mean().sqrt().clamp(min=1e-12)
    inputs = F.pad((features.double() - middle) / scale, (0, 1), value=1.0)
    weights = _fit_intervals(inputs, answers.double(), unit) if unit else _fit_exact(inputs, answers.double())
    head = nn.Linear(features.shape[1], answers.shape[1]).to(features)
    with torch.no_grad():
        head.weight.copy_(weights[:-1].T / scale)
        head.bias.copy_(weights[-1] - middle @ weights[:-1] / scale)
    return head.requires_grad_(False)


def _fit_exact(inputs: Tensor, answers: Tensor) -> Tensor:
    """Weights (D + 1, K) of inputs (n, D + 1) that give the logarithms of answers (n, K) up to a number per row."""
    logarithms = answers.clamp(min=SMALLEST).log()
    centred = logarithms - logarithms.mean(1, keepdim=True)
    square = inputs.T @ inputs
    square.diagonal().add_(EXACT_RIDGE * len(inputs))
    weights: Tensor = torch.linalg.solve(square, inputs.T @ centred)
    return weights


def _fit_intervals(inputs: Tensor, written: Tensor, unit: float) -> Tensor:
    """Weights (D + 1, K) of inputs (n, D + 1) whose probabilities round to those `written` (n, K)."""
    ridge = min(MOST_RIDGE, RIDGE_PER_UNIT * unit)
    above, below = (written + unit / 2).log(), (written - unit / 2).clamp(min=SMALLEST).log()
    weights = inputs.new_zeros(inputs.shape[1], written.shape[1]).requires_grad_(True)
    search = torch.optim.LBFGS([weights], max_iter=SEARCH, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        search.zero_grad()
        guess = (inputs @ weights).log_softmax(1)
        outside = (guess - above).clamp(min=0) + torch.where(written > 0, below - guess, 0).clamp(min=0)
        total = outside.square().sum(1).mean() - (written * guess).sum(1).mean() + ridge * weights.square().sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    search.step(loss)  # type: ignore[no-untyped-call]
    return weights.detach()


def own_classifier(knowledge: Knowledge) -> nn.Module:
    """A network like the thief's that tells the classes of the pool apart, trained on the pool's own labels.

    It depends on `knowledge.seed` alone, not on how the thief is trained, so that the same one serves every attack.
    """
    pool, labels = knowledge.pool, require(knowledge.pool_labels, "pool_labels")
    own = torch.Generator().manual_seed(int(fingerprint(f"own classifier {knowledge.seed}".encode())[:15], 16))
    classes, batch = int(labels.max()) + 1, max(64, len(pool) // OWN_BATCHES)
    given = knowledge.schedule
    schedule = Schedule(epochs=OWN_EPOCHS, batch=batch, augment=given.augment, min_steps=OWN_STEPS, record=given.record)
    plain = knowledge.make_thief(own).to(pool.device)
    with seeded(own):
        blank = with_head(plain, pool[:2], lambda head: _new_head(head, classes)).cpu()

    def teach(network: nn.Module) -> nn.Module:
        return train(network, pool, labels, schedule, own)

    if knowledge.cache is None:
        return teach(blank)
    code = code_version("queen.training", "queen.zoo")
    recipe = (knowledge.key, knowledge.seed, schedule, classes, repr(blank), code)
    name = f"own-classifier-{fingerprint(repr(recipe).encode())}"
    return knowledge.cache.network(name, blank, teach).to(pool.device)


def _new_head(head: nn.Module, classes: int) -> nn.Linear:
    """An untrained head on the same features, for this number of classes."""
    return nn.Linear(next(head.parameters()).shape[1], classes)
