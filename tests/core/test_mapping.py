import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from queen.core import mapping
from queen.core.geometry import measure, nearest_centre
from queen.core.mapping import MappingNet, MapRecipe, contrastive_loss, train_map
from queen.errors import MapError
from tests.reference.contrastive import contrastive_loss as by_loops


def clusters(classes=4, each=60, dims=16, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(classes, dims, generator=generator)
    labels = torch.arange(classes).repeat(each)
    return scale * (centres[labels] + torch.randn(len(labels), dims, generator=generator)), labels


def trained(seed=0, recipe=None, data=None):
    return train_map(*(data or clusters()), recipe or MapRecipe(epochs=2), torch.Generator().manual_seed(seed))


def agreement(net, features, labels):
    points = net(features)
    geometry = measure(features, points, labels, int(labels.max()) + 1)
    return (nearest_centre(points, geometry) == labels).double().mean().item()


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(2, 9), st.integers(1, 4), st.sampled_from([0.07, 0.5, 1.0]))
@pytest.mark.parametrize("form", ["out", "in"])
def test_the_loss_is_what_loops_give(form, seed, rows, classes, temperature):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (rows,), generator=generator)
    labels[0] = labels[1]
    got = contrastive_loss(z, labels, temperature=temperature, form=form)
    assert got.item() == pytest.approx(by_loops(z.tolist(), labels.tolist(), temperature, form), rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("form", ["out", "in"])
@pytest.mark.parametrize("pairs", [1, 100, 600])
def test_a_loss_in_blocks_is_the_whole_loss_and_so_is_its_gradient(form, pairs, monkeypatch):
    labels = torch.arange(50) % 7
    labels[-1] = 7  # has no partner
    found = []
    for most in (mapping.MOST_PAIRS, pairs):
        monkeypatch.setattr(mapping, "MOST_PAIRS", most)
        z = torch.randn(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_(True)
        loss = contrastive_loss(z, labels, temperature=0.5, form=form)
        loss.backward()
        found.append((loss.detach(), z.grad))
    (whole, gradient), (blocks, other) = found
    assert torch.allclose(whole, blocks, rtol=1e-12)
    assert torch.allclose(gradient, other, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("form", ["out", "in"])
def test_a_row_without_a_partner_only_pushes_the_others(form):
    z = torch.tensor([[1.0, 0.0], [0.5, 0.5], [-1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    loss = contrastive_loss(z, torch.tensor([0, 0, 1]), form=form)
    loss.backward()
    a, b, c = (math.exp(v) for v in (0.5, -1.0, 0.5))  # e^(z0.z1), e^(z0.z2), e^(z1.z2)
    assert loss.item() == pytest.approx(-(math.log(a / (a + b)) + math.log(a / (a + c))) / 2)
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("form", ["out", "in"])
def test_pulling_the_classes_apart_lowers_the_loss(form):
    z = 0.3 * torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(40) % 4
    corners = torch.tensor([[2.0, 2.0], [2.0, -2.0], [-2.0, 2.0], [-2.0, -2.0]])
    assert contrastive_loss(z + corners[labels], labels, form=form) < contrastive_loss(z, labels, form=form)


def test_the_printed_form_never_exceeds_the_default():
    z = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    low, high = (contrastive_loss(z, torch.arange(40) % 4, form=form).item() for form in ("in", "out"))
    assert low < high


@pytest.mark.parametrize("form", ["out", "in"])
@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e3])
def test_a_trained_map_separates_easy_clusters_whatever_the_size_of_the_features(form, scale):
    features, labels = clusters(scale=scale)
    net = trained(recipe=MapRecipe(epochs=40, loss=form), data=(features, labels))
    assert agreement(net, features, labels) >= 0.97


def test_training_does_better_than_no_training():
    features, labels = clusters(classes=8)
    before, after = (trained(recipe=MapRecipe(epochs=e), data=(features, labels)) for e in (0, 60))
    assert agreement(before, features, labels) + 0.1 < agreement(after, features, labels)


def test_the_same_seed_gives_the_same_map_and_another_seed_another():
    first, again, other = trained(5), trained(5), trained(6)
    x = clusters()[0]
    assert torch.equal(first(x), again(x))
    assert not torch.equal(first(x), other(x))


def test_the_global_random_state_is_neither_used_nor_changed():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = trained()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(first(clusters()[0]), trained()(clusters()[0]))


def test_normalized_points_lie_on_the_unit_circle():
    features, labels = clusters()
    net = trained(recipe=MapRecipe(epochs=20, normalize=True), data=(features, labels))
    assert torch.allclose(net(features).norm(dim=1), torch.ones(len(features)), atol=1e-6)
    assert agreement(net, features, labels) >= 0.9


def test_a_map_has_four_layers_to_the_plane_and_does_not_learn_any_more():
    net = trained()
    assert [tuple(layer.weight.shape) for layer in net.layers] == [(256, 16), (128, 256), (64, 128), (2, 64)]
    assert not net.training
    assert not any(p.requires_grad for p in net.parameters())


def test_a_map_that_diverges_says_so():
    with pytest.raises(MapError, match="learning rate"):
        trained(recipe=MapRecipe(epochs=20, lr=1e30))


@pytest.mark.parametrize("lr", [0.1, 10.0, 1e3])
def test_a_large_learning_rate_gives_a_finite_map_all_the_same(lr):
    assert all(p.isfinite().all() for p in trained(recipe=MapRecipe(epochs=20, lr=lr)).parameters())


def test_the_learning_rate_halves_so_the_last_epochs_move_little():
    features, labels = clusters()
    recipes = [MapRecipe(epochs=e, halve_every=1) for e in (20, 40)]
    early, late = (trained(recipe=r, data=(features, labels))(features) for r in recipes)
    assert (early - late).abs().max() < 1e-3
    steady = trained(recipe=MapRecipe(epochs=40, halve_every=10**6), data=(features, labels))(features)
    assert (early - steady).abs().max() > 1e-3


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_batches_in_which_no_class_has_two_images_are_skipped():
    features, labels = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6)
    net = trained(recipe=MapRecipe(epochs=3), data=(features, labels))
    fresh = MappingNet(4)
    fresh.reset(torch.Generator().manual_seed(0))
    assert all(torch.equal(a.weight, b.weight) for a, b in zip(net.layers, fresh.layers, strict=True))


def test_every_epoch_is_announced():
    calls = []
    train_map(*clusters(), MapRecipe(epochs=3), torch.Generator(), lambda: calls.append(1))
    assert len(calls) == 3
