"""Adaptive Misinformation: where the model is unsure, a second network, trained to be wrong, answers in its place."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from queen.cache import code_version, fingerprint
from queen.core.split import run_model
from queen.defenses.base import Defense, Endpoint, MappedEndpoint, Victim
from queen.defenses.checks import check_number
from queen.training import probabilities, train

SMALL = 1e-7  # keeps the logarithm of 0 finite


def perturb(y: Tensor, wrong: Tensor, *, tau: float = 0.7, nu: float = 1000.0) -> Tensor:
    """(1 - alpha) y + alpha wrong, alpha = 1 / (1 + exp(-nu (tau - max y))); all (n, K)."""
    _check(tau, nu)
    clean = y.double()
    return torch.lerp(clean, wrong.double(), second_share(clean, tau=tau, nu=nu)).to(y.dtype)


def second_share(y: Tensor, *, tau: float = 0.7, nu: float = 1000.0) -> Tensor:
    """The share alpha (n, 1) that the second network has in the answers y (n, K)."""
    below = nu * (tau - y.amax(1, keepdim=True))
    small = below.abs().neg_().exp_()  # never overflows; torch.sigmoid rounds differently at the end of a batch
    return torch.where(below >= 0, 1, small) / (1 + small)


def _check(tau: float, nu: float) -> None:
    check_number("tau", tau, 0, 1)
    check_number("nu", nu, 0)


class LabelAvoidingNetwork(nn.Module):
    """Wraps a network so that its cross-entropy is -log((1 - p_y) / (K - 1)): it learns to avoid the label y."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """log(1 - p) (n, K); the 1 - p sum to K - 1, by which softmax divides them."""
        return (1 - run_model(self.network, x).float().softmax(1) + SMALL).log()


def train_second(victim: Victim, generator: torch.Generator) -> nn.Module:
    """A network of the victim's architecture, trained on its images to avoid their labels, or taken from its cache.

    Training draws from a generator of its own, so that `generator` is left in the same state if it is skipped.
    """
    seed = int(torch.randint(2**62, (1,), generator=generator))
    own = torch.Generator().manual_seed(seed)
    blank = victim.make_network(own)

    def teach(network: nn.Module) -> nn.Module:
        train(LabelAvoidingNetwork(network), *victim.train, victim.schedule, own)
        return network

    if victim.cache is None:
        second = teach(blank)
    else:
        recipe = repr((victim.schedule, seed, code_version(__name__, "queen.training"))).encode()
        name = f"second-{fingerprint(recipe, *blank.state_dict().values(), *victim.train)}"
        second = victim.cache.network(name, blank, teach)
    return second.to(victim.train[0].device).eval().requires_grad_(False)


def build(victim: Victim, generator: torch.Generator, *, tau: float = 0.7, nu: float = 1000.0) -> Endpoint:
    """Train the second network, or take it from the victim's cache."""
    _check(tau, nu)
    second = train_second(victim, generator)
    return MappedEndpoint(victim, lambda y, x: perturb(y, probabilities(second, x), tau=tau, nu=nu))


DEFENSE = Defense(build, keeps_label="no", needs=frozenset({"x", "second_network", "outliers"}))
