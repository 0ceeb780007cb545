import pytest
import torch
from torch import nn
from torch.nn import functional as F

from queen.core.shadows import HeadShadows, NetworkShadows, disjoint_subsets, draw_mean, train_heads, train_networks
from queen.recipe import Recipe


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def data(rows=60, dims=7, classes=3, seed=0):
    generator = seeded(seed)
    labels = torch.arange(rows) % classes
    return torch.randn(rows, dims, generator=generator) + 2 * F.one_hot(labels, dims), labels


class Wobbly(nn.Module):
    """A network that needs random numbers while it trains, too."""

    def __init__(self, inputs=7, classes=3):
        super().__init__()
        self.body, self.drop, self.head = nn.Linear(inputs, 8), nn.Dropout(0.5), nn.Linear(8, classes)

    def forward(self, x):
        return self.head(self.drop(self.body(x).relu()))


class Normed(nn.Sequential):
    """A network that cannot train on a single row."""

    def __init__(self):
        super().__init__(nn.Linear(7, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


WOBBLY = Recipe("tests.core.test_shadows:Wobbly")
PLAIN = Recipe("torch.nn.modules.linear:Linear", {"in_features": 7, "out_features": 3})


@pytest.mark.parametrize(("count", "per_class"), [(2, 500), (5, 3), (10, 1), (10, 500)])
def test_subsets_are_disjoint_and_hold_at_most_per_class_of_every_class(count, per_class):
    labels = torch.arange(100) % 4
    labels[:20] = 2
    subsets, disjoint = disjoint_subsets(labels, 4, count, per_class, seeded())
    assert disjoint
    assert len(subsets) == count
    rows = torch.cat(subsets)
    assert len(rows.unique()) == len(rows)
    available = torch.bincount(labels, minlength=4)
    for subset in subsets:
        held = torch.bincount(labels[subset], minlength=4)
        assert held.tolist() == [min(per_class, int(n) // count) for n in available]


def test_subsets_are_random_but_the_same_for_the_same_seed():
    labels = torch.arange(100) % 4
    first, again, other = (disjoint_subsets(labels, 4, 5, 3, seeded(s))[0] for s in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_a_class_too_small_to_share_is_drawn_with_replacement_and_that_is_said():
    labels = torch.tensor([0] * 50 + [1] * 6 + [2])
    subsets, disjoint = disjoint_subsets(labels, 3, 10, 500, seeded())
    assert not disjoint
    for subset in subsets:
        assert torch.bincount(labels[subset], minlength=3).tolist() == [5, 3, 1]
    large = torch.cat([s[labels[s] == 0] for s in subsets])
    assert len(large.unique()) == len(large)


def test_bootstrapped_classes_respect_per_class_too():
    subsets, disjoint = disjoint_subsets(torch.arange(18) % 2, 2, 10, 2, seeded())
    assert not disjoint
    assert {len(s) for s in subsets} == {4}


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_written_out_gradient_steps_equal_autograd(scale):
    features, labels = data()
    features = (scale * features).double()
    subsets, _ = disjoint_subsets(labels, 3, 4, 5, seeded())
    shadows = train_heads(features, labels, 3, subsets, seeded(9), steps=7, lr=0.3)
    size = features.square().mean().sqrt()
    starts = 0.01 * torch.randn(4, 3, 7, generator=seeded(9)).double()
    for i, rows in enumerate(subsets):
        weight, bias = starts[i].clone().requires_grad_(), torch.zeros(3).double().requires_grad_()
        optimiser = torch.optim.SGD([weight, bias], lr=0.3)
        for _ in range(7):
            optimiser.zero_grad()
            F.cross_entropy(F.linear(features[rows] / size, weight, bias), labels[rows]).backward()
            optimiser.step()
        assert torch.allclose(shadows.weight[i], weight.detach() / size, rtol=1e-10, atol=1e-12 / scale)
        assert torch.allclose(shadows.bias[i], bias.detach(), rtol=1e-10, atol=1e-12)


def test_more_steps_make_better_pirates_and_the_default_ones_are_weak():
    features, labels = data(rows=600)
    subsets, _ = disjoint_subsets(labels, 3, 10, 5, seeded())

    def likelihood(steps):
        shadows = train_heads(features, labels, 3, subsets, seeded(), steps=steps)
        return shadows.probabilities(features, features).mean(1).gather(1, labels[:, None]).mean().item()

    assert 1 / 3 < likelihood(1) < likelihood(5) < 0.6 < likelihood(500)


def test_head_shadows_are_what_a_loop_gives():
    generator = seeded()
    shadows = HeadShadows(torch.randn(4, 3, 7, generator=generator), torch.randn(4, 3, generator=generator))
    features = torch.randn(6, 7, generator=generator)
    got = shadows.probabilities(features, features)
    assert len(shadows) == 4
    assert got.shape == (6, 4, 3)
    for n in range(6):
        for s in range(4):
            want = (shadows.weight[s] @ features[n] + shadows.bias[s]).softmax(0)
            assert torch.allclose(got[n, s], want, atol=1e-6)


def test_network_shadows_look_at_the_inputs_only():
    networks = tuple(nn.Linear(7, 3) for _ in range(4))
    shadows = NetworkShadows(networks, (PLAIN,) * 4)
    x = torch.randn(5, 7)
    got = shadows.probabilities(torch.full((5, 2), torch.nan), x)
    assert len(shadows) == 4
    assert got.shape == (5, 4, 3)
    for s, network in enumerate(networks):
        assert torch.equal(got[:, s], network(x).softmax(1))


def test_a_draw_is_the_mean_of_the_softmax_of_the_drawn_not_the_softmax_of_a_mean():
    logits = 3 * torch.randn(5, 6, 4, generator=seeded())
    drawn = torch.tensor([[0, 1], [5, 2], [3, 3], [4, 0], [1, 5]])
    got = draw_mean(logits.softmax(2), drawn)
    for n, picks in enumerate(drawn.tolist()):
        want = sum(logits[n, s].softmax(0) for s in picks) / len(picks)
        assert torch.allclose(got[n], want, atol=1e-6)
        if len(set(picks)) > 1:
            assert not torch.allclose(got[n], logits[n, picks].mean(0).softmax(0), atol=1e-3)


def networks_of(seed, recipes, **options):
    x, labels = data()
    subsets, _ = disjoint_subsets(labels, 3, 5, 4, seeded())
    return train_networks(x, labels, subsets, recipes, seeded(seed), **options)


@pytest.mark.parametrize("recipe", [PLAIN, WOBBLY], ids=["plain", "dropout"])
def test_trained_networks_depend_on_the_generator_alone(recipe):
    x, _ = data()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = networks_of(3, [recipe])
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    again, other = networks_of(3, [recipe]), networks_of(4, [recipe])
    assert torch.equal(first.probabilities(x, x), again.probabilities(x, x))
    assert not torch.equal(first.probabilities(x, x), other.probabilities(x, x))


def test_architectures_are_used_in_turn_and_every_network_is_finished():
    shadows = networks_of(0, [PLAIN, WOBBLY], epochs=1)
    assert [type(n).__name__ for n in shadows.networks] == ["Linear", "Wobbly", "Linear", "Wobbly", "Linear"]
    assert shadows.recipes == (PLAIN, WOBBLY, PLAIN, WOBBLY, PLAIN)
    assert not any(n.training for n in shadows.networks)
    assert not any(p.requires_grad for n in shadows.networks for p in n.parameters())


def test_networks_learn_their_subset_and_every_one_is_announced():
    x, labels = data(rows=300)
    calls = []
    subsets, _ = disjoint_subsets(labels, 3, 3, 30, seeded())
    shadows = train_networks(x, labels, subsets, [PLAIN], seeded(), epochs=30, on_model=lambda: calls.append(1))
    assert len(calls) == 3
    for network, rows in zip(shadows.networks, subsets, strict=True):
        assert (network(x[rows]).argmax(1) == labels[rows]).double().mean() > 0.7


@pytest.mark.parametrize("rows", [2, 64, 65, 129])
def test_batch_norm_never_meets_a_batch_of_one(rows):
    x, labels = data(rows)
    recipe = Recipe("tests.core.test_shadows:Normed")
    shadows = train_networks(x, labels, [torch.arange(rows)], [recipe], seeded(), epochs=1)
    assert shadows.probabilities(x, x).isfinite().all()
    assert shadows.networks[0][1].num_batches_tracked == max(1, rows // 64)
