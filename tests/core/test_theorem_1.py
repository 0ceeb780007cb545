"""Theorem 1: a pirate that trains on 2 y' - y goes exactly the other way; what is left of it once answers are valid."""

from copy import deepcopy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cosine_similarity

from queen.core.perturb import reverse_gradient
from tests.support.guards import fitted, queries

ALIKE = 1e-4  # float32 gradients of a network


def gradient(network, x, target):
    """The gradient of the cross-entropy with these targets (n, K), by autograd, as one vector."""
    network = deepcopy(network).requires_grad_()
    loss = -(target * network(x).log_softmax(1)).sum()
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(network.parameters()))])


def measured():
    """Queries, the victim's answers (n, K), shadow networks, and what each of them says (n, S, K)."""
    guard = fitted("network")
    batch = guard.measure(queries("network", 40))
    shadows = guard.bundle.shadows
    return (
        batch.x.clone(),
        batch.honest.clone(),
        shadows.networks,
        shadows.probabilities(batch.features, batch.x).clone(),
    )


def test_the_gradient_of_a_real_shadow_is_exactly_reversed_by_the_papers_target():
    x, honest, networks, said = measured()
    for number, network in enumerate(networks):
        pirate = said[:, number].detach()
        forward, back = gradient(network, x, honest), gradient(network, x, 2 * pirate - honest)
        assert forward.norm() > 0
        assert (forward + back).norm() <= ALIKE * forward.norm()


def test_a_pirates_gradient_by_its_logits_follows_the_formula():
    """Cross-entropy pulls logits along answer - target, so the cosine is that of y' - answer with y' - y."""
    honest, pirate = ((3 * torch.randn(50, 6, generator=torch.Generator().manual_seed(s))).softmax(1) for s in (0, 1))
    answer = reverse_gradient(honest, pirate)
    for row in range(len(honest)):
        logits = pirate[row].log().requires_grad_()
        honestly, reversed_ = (
            torch.autograd.grad(-(target[row] * logits.log_softmax(0)).sum(), logits)[0] for target in (honest, answer)
        )
        expected = cosine_similarity(pirate[row] - answer[row], pirate[row] - honest[row], dim=0)
        torch.testing.assert_close(cosine_similarity(honestly, reversed_, dim=0), expected, atol=1e-4, rtol=0)


@given(st.integers(2, 20), st.integers(0, 10**6))
def test_where_the_papers_target_is_a_probability_vector_it_is_the_answer(classes, seed):
    generator = torch.Generator().manual_seed(seed)
    pirate, other = torch.rand(2, classes, generator=generator, dtype=torch.float64).add(0.01).unbind()
    pirate, other = pirate / pirate.sum(), other / other.sum()
    honest = pirate + 0.9 * (pirate / other).min() * (other - pirate)  # no further than pirate is from the boundary
    target = 2 * pirate - honest
    assert (target >= 0).all()
    torch.testing.assert_close(reverse_gradient(honest[None], pirate[None])[0], target)


@pytest.mark.parametrize("kind", ["head", "network"])
def test_on_real_shadows_valid_answers_still_turn_every_gradient_round(kind):
    """2 y' - y is hardly ever valid: shadows are unsure where the victim is sure. What is nearest to it reverses
    gradients all the same, for the simulated pirate and for every single shadow."""
    guard = fitted(kind)
    batch = guard.measure(queries(kind, 300))
    said = guard.bundle.shadows.probabilities(batch.features, batch.x)
    pirate = said.mean(1)
    answer = reverse_gradient(batch.honest, pirate)
    assert ((2 * pirate - batch.honest) < 0).any(dim=1).double().mean() > 0.9
    assert cosine_similarity(pirate - answer, pirate - batch.honest).max() < -0.8
    assert cosine_similarity(said - answer[:, None], said - batch.honest[:, None], dim=2).max() < -0.7


def test_a_confident_pirate_can_still_gain_from_a_valid_answer():
    """The limit of the theorem: the valid answer nearest to 2 y' - y need not reverse the gradient. Shadows are kept
    weak so that it does."""
    honest, pirate = torch.tensor([[0.01, 0.40, 0.59]]), torch.tensor([[0.11, 0.01, 0.88]])
    answer = reverse_gradient(honest, pirate)
    assert cosine_similarity(pirate - answer, pirate - honest).item() > 0
