import inspect
import json
from dataclasses import asdict

import pytest
import torch
from torch import nn

import queen
from queen import zoo
from queen.core.mapping import MapRecipe
from queen.core.split import find_split
from queen.errors import OptionError
from queen.recipe import Recipe, recipe_of
from queen.training import Schedule, predict, train
from queen.zoo import NETWORKS
from tests.support.guards import held_out, images, train_set

NETWORK_INPUTS = [
    ("small_cnn", 1, 28),
    ("small_vgg", 3, 32),
    ("vgg11_bn", 3, 32),
    ("vgg16_bn", 3, 32),
    ("resnet18", 3, 32),
    ("resnet50", 3, 32),
    ("alexnet", 3, 32),
]


def test_every_network_is_tried_here():
    assert {name for name, _, _ in NETWORK_INPUTS} == set(NETWORKS)


@pytest.mark.parametrize(("name", "channels", "size"), NETWORK_INPUTS)
def test_networks_give_finite_logits_of_the_right_shape_and_can_be_built_again(name, channels, size):
    network = zoo.build(name, classes=6, channels=channels).eval()
    with torch.no_grad():
        logits = network(torch.randn(2, channels, size, size))
    assert logits.shape == (2, 6)
    assert logits.isfinite().all()
    recipe = recipe_of(network)
    again = Recipe(**json.loads(json.dumps(asdict(recipe)))).build()
    again.load_state_dict(network.state_dict())
    assert recipe_of(again) == recipe


@pytest.mark.parametrize(("name", "blocks", "parameters"), [("resnet18", 8, 11_173_962), ("resnet50", 16, 23_520_842)])
def test_residual_networks_have_their_usual_size(name, blocks, parameters):
    network = zoo.build(name, classes=10)
    assert sum(isinstance(m, zoo.Residual) for m in network.modules()) == blocks
    assert sum(p.numel() for p in network.parameters()) == parameters


@pytest.mark.parametrize(("name", "layers"), [("small_vgg", 4), ("vgg11_bn", 8), ("vgg16_bn", 13)])
def test_vgg_has_its_usual_number_of_convolutions(name, layers):
    network = zoo.build(name, classes=10)
    assert sum(isinstance(m, nn.Conv2d) for m in network.modules()) == layers
    assert sum(isinstance(m, nn.Linear) for m in network.modules()) == 1


def test_small_images_pass_through_the_small_networks():
    x = torch.randn(2, 1, 8, 8)
    for name in ("small_cnn", "vgg11_bn", "alexnet"):
        assert zoo.build(name, classes=3, channels=1)(x).shape == (2, 3)


@pytest.mark.parametrize("size", [8, 9, 16, 28, 31, 33, 64])
@pytest.mark.parametrize("channels", [1, 3])
def test_alexnet_takes_images_of_any_size_from_8(size, channels):
    network = zoo.build("alexnet", classes=5, channels=channels).eval()
    split = find_split(network, torch.rand(2, channels, size, size))
    features, logits = split(torch.rand(2, channels, size, size))
    assert (split.head_name, features.shape, logits.shape) == ("classifier", (2, 256), (2, 5))


def test_alexnet_is_the_variant_for_32_pixels():
    network = zoo.build("alexnet", classes=10)
    convolutions = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions] == [64, 192, 384, 256, 256]
    assert [layer.kernel_size[0] for layer in convolutions] == [11, 5, 3, 3, 3]
    assert (convolutions[0].stride, convolutions[0].padding) == ((4, 4), (5, 5))
    assert sum(p.numel() for p in network.parameters()) == 2_472_266
    seen = []
    for layer in network.features:
        layer.register_forward_hook(lambda _, args, out: seen.append(tuple(out.shape[2:])))
    network(torch.rand(1, 3, 32, 32))
    # Nothing is left for the last, adaptive pooling to do on 32x32 images.
    assert [shape for shape in dict.fromkeys(seen) if shape] == [(8, 8), (4, 4), (2, 2), (1, 1)]


@pytest.mark.parametrize(("grid", "inputs"), [(2, 64), (7, 784), (3, 144)])
def test_the_small_network_pools_to_its_grid(grid, inputs):
    network = zoo.build("small_cnn", classes=3, grid=grid)
    assert network.hidden.in_features == inputs
    for size in (8, 12, 28):
        assert network(torch.rand(2, 1, size, size)).shape == (2, 3)
    assert zoo.build("small_cnn", classes=3).state_dict()["hidden.weight"].shape == (64, 784)


def test_a_grid_that_fits_loses_nothing_on_small_images():
    """On 8x8 images the maps are 2x2: a grid of 7 only repeats them, so one of 2 can say the same."""
    wide, fitting = (zoo.build("small_cnn", classes=3, grid=grid) for grid in (7, 2))
    state = wide.state_dict()
    share = nn.functional.adaptive_avg_pool2d(torch.eye(4).view(4, 1, 2, 2), 7).view(4, 49)  # of a cell in each of 49
    state["hidden.weight"] = torch.einsum("hcg,ig->hci", state["hidden.weight"].view(64, 16, 49), share).reshape(64, 64)
    fitting.load_state_dict(state)
    x = torch.rand(5, 1, 8, 8)
    assert torch.allclose(wide(x), fitting(x), atol=1e-5)


MEAN, STD = [0.5, 0.25, 0.125], [0.25, 0.5, 2.0]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_normalising_network_is_the_network_behind_normalised_images(name):
    network = zoo.build(name, classes=4, channels=3, mean=MEAN, std=STD).eval()
    plain = zoo.build(name, classes=4, channels=3).eval()
    assert not any(key.startswith("network.") or key in ("mean", "std") for key in plain.state_dict())
    assert set(network.state_dict()) == {"mean", "std", *(f"network.{key}" for key in plain.state_dict())}
    plain.load_state_dict(network.network.state_dict())
    x = torch.rand(2, 3, 32, 32)
    normal = torch.stack([(x[:, k] - MEAN[k]) / STD[k] for k in range(3)], 1)
    with torch.no_grad():
        assert torch.allclose(network(x), plain(normal), atol=1e-5)
        assert not torch.allclose(network(x), plain(x), atol=1e-5)
    assert [tuple(p.shape) for p in network.parameters()] == [tuple(p.shape) for p in plain.parameters()]
    again = Recipe(**json.loads(json.dumps(asdict(recipe_of(network))))).build()
    assert recipe_of(again) == recipe_of(network)
    assert torch.equal(again.mean, network.mean)
    assert recipe_of(plain).args == {"name": name, "classes": 4, "channels": 3}


def test_networks_without_normalisation_keep_the_names_of_their_weights():
    assert list(zoo.build("small_cnn", classes=2).state_dict()) == [
        "blocks.0.weight", "blocks.0.bias", "blocks.3.weight", "blocks.3.bias",
        "hidden.weight", "hidden.bias", "head.weight", "head.bias",
    ]  # fmt: skip
    keys = list(zoo.build("vgg11_bn", classes=2).state_dict())
    assert (keys[0], keys[-1]) == ("features.0.weight", "classifier.bias")


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ([0.5], None, "std must have one number above 0 for each of 1 channels, got None"),
        (None, [0.5], "mean must have one number for each of 1 channels, got None"),
        ([0.5, 0.5], [1.0, 1.0], "mean must have one number for each of 1 channels"),
        ([0.5], [0.0], "std must have one number above 0"),
        ([0.5], [-1], "std must have one number above 0"),
        ([float("nan")], [1.0], "mean must have one number"),
        ([0.5], [float("inf")], "std must have one number"),
        (["a"], [1.0], "mean must have one number"),
        ("5", [1.0], "mean must have one number"),
        (0.5, [1.0], "mean must have one number"),
    ],
)
def test_a_strange_normalisation_is_refused(mean, std, message):
    with pytest.raises(OptionError, match=message):
        zoo.build("small_cnn", classes=2, mean=mean, std=std)


def test_a_normalising_network_can_be_trained_guarded_saved_and_loaded(tmp_path):
    x, y = train_set()
    with zoo.seeded(torch.Generator().manual_seed(0)):
        network = zoo.build("small_cnn", classes=10, grid=2, mean=[0.3], std=[0.4])
    train(network, images(x), y, Schedule(epochs=10), torch.Generator().manual_seed(0))
    assert torch.equal(network.mean.flatten(), torch.tensor([0.3]))  # it is no weight
    queries = images(held_out()[0])
    assert (predict(network, queries) == held_out()[1]).float().mean() > 0.85
    guard = queen.protect(network, (images(x), y), mapping=MapRecipe(epochs=2), min_agreement=0)
    assert guard.bundle.split.head_name == "network.head"
    guard.save(tmp_path / "bundle")
    loaded = queen.load(tmp_path / "bundle")
    assert isinstance(loaded.bundle.split.model, zoo.Normalised)
    answers = [g.fresh().answer(queries[:100], client="a").probabilities for g in (guard, loaded)]
    assert torch.equal(*answers)


def test_an_unknown_network_is_refused_with_the_known_ones():
    with pytest.raises(OptionError, match="no network 'vgg12'; known: small_cnn, small_vgg"):
        zoo.build("vgg12", classes=2)


def test_a_lent_random_state_is_given_back():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    weights = []
    for seed in (1, 1, 2):
        with zoo.seeded(torch.Generator().manual_seed(seed)):
            weights.append(nn.Linear(3, 3).weight)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(("image_size", "side"), [(32, 4), (64, 4), (224, 7)])
def test_a_resnet_has_a_stem_for_its_images(image_size, side):
    network = zoo.build("resnet18", classes=3, image_size=image_size).eval()
    sides = []
    network.features[-2].register_forward_hook(lambda _, args, out: sides.append(args[0].shape[2:]))
    assert network(torch.rand(1, 3, image_size, image_size)).shape == (1, 3)
    assert sides == [(side, side)]
    assert recipe_of(network).args["image_size"] == image_size


def test_an_image_size_without_a_stem_is_refused():
    with pytest.raises(OptionError, match="image_size must be one of 32, 64, 224, got 48"):
        zoo.build("resnet50", classes=3, image_size=48)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_built_for_the_images_at_hand(name):
    takes_size = "image_size" in inspect.signature(type(zoo.build(name, classes=2))).parameters
    for size in (28, 32, 48, 64, 224, 299):
        arguments = zoo.arguments_for(name, (5, 1, size, size))
        sized = takes_size and size in (64, 224)
        assert arguments == {"channels": 1, **({"image_size": size} if sized else {})}
        zoo.build(name, classes=2, **arguments)
    assert zoo.arguments_for(name, (5, 3, 64, 224)) == {"channels": 3}
