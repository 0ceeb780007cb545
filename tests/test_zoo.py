import json
from dataclasses import asdict

import pytest
import torch
from torch import nn

from queen import zoo
from queen.types import OptionError
from queen.zoo import NETWORKS, Recipe, recipe_of

NETWORK_INPUTS = [
    ("small_cnn", 1, 28),
    ("vgg11_bn", 3, 32),
    ("vgg16_bn", 3, 32),
    ("resnet18", 3, 32),
    ("resnet50", 3, 32),
]


class Mine(nn.Linear):
    """A network a user might have."""

    def __init__(self, width=2):
        super().__init__(width, 3)


def make_mine(width: int = 4) -> nn.Module:
    return Mine(width)


def make_nothing():
    return "not a network"


_hidden = make_mine


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


@pytest.mark.parametrize(("name", "layers"), [("vgg11_bn", 8), ("vgg16_bn", 13)])
def test_vgg_has_its_usual_number_of_convolutions(name, layers):
    network = zoo.build(name, classes=10)
    assert sum(isinstance(m, nn.Conv2d) for m in network.modules()) == layers
    assert sum(isinstance(m, nn.Linear) for m in network.modules()) == 1


def test_small_images_pass_through_the_small_networks():
    x = torch.randn(2, 1, 8, 8)
    for name in ("small_cnn", "vgg11_bn"):
        assert zoo.build(name, classes=3, channels=1)(x).shape == (2, 3)


def test_an_unknown_network_is_refused_with_the_known_ones():
    with pytest.raises(OptionError, match="no network 'vgg12'; known: small_cnn, vgg11_bn"):
        zoo.build("vgg12", classes=2)


@pytest.mark.parametrize(
    ("recipe", "kind"),
    [
        (Recipe(f"{__name__}:Mine", {"width": 5}), Mine),
        (Recipe(f"{__name__}:make_mine"), Mine),
        (Recipe("queen.zoo:SmallCNN", {"classes": 2}), zoo.SmallCNN),
        (Recipe("queen.zoo:build", {"name": "small_cnn", "classes": 2}), zoo.SmallCNN),
        (Recipe("torch.nn.modules.linear:Linear", {"in_features": 2, "out_features": 3}), nn.Linear),
    ],
)
def test_a_recipe_builds_a_class_or_function_of_its_own_module(recipe, kind):
    assert isinstance(recipe.build(), kind)


@pytest.mark.parametrize(
    "factory",
    [
        "os:system",
        "posix:system",
        "subprocess:Popen",
        "subprocess:run",
        "builtins:eval",
        "builtins:exec",
        "importlib:import_module",
        "pickle:loads",
        f"{__name__}:_hidden",
        "queen.zoo:__builtins__",
        "queen.zoo:importlib",
        "queen.zoo:OptionError",
        "queen.zoo:PLAN_A",
        "queen.zoo:Recipe.build",
        "queen.zoo:",
        "queen.zoo",
        "queen.zoo:no_such_thing",
        "queen.no_such_module:build",
        "torch.nn:Linear",
        "",
        ":",
        ":build",
        ".zoo:build",
        "queen.zoo:build()",
    ],
)
def test_a_recipe_that_names_anything_else_is_refused(factory):
    with pytest.raises(OptionError, match="factory"):
        Recipe(factory).build()


@pytest.mark.parametrize("factory", [f"{__name__}:make_nothing", "queen.zoo:recipe_of"])
def test_a_factory_that_makes_no_network_is_refused(factory):
    arguments = {"model": None} if factory.endswith("recipe_of") else {}
    with pytest.raises(
        OptionError, match=r"must return a torch.nn.Module, got (str|NoneType)|annotated '-> nn.Module'"
    ):
        Recipe(factory, arguments).build()


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_a_recipe_cannot_unpickle_a_file_by_way_of_an_installed_package(tmp_path):
    marker, bomb = tmp_path / "marker", tmp_path / "bomb.pt"
    torch.save(Bomb(str(marker)), bomb)
    recipe = Recipe("torch.serialization:load", {"f": str(bomb), "weights_only": False})
    with pytest.raises(OptionError):
        recipe.build()
    assert not marker.exists()


def test_a_recipe_cannot_download_code(monkeypatch):
    def download(*args, **kwargs):
        pytest.fail("a recipe reached for the network")

    monkeypatch.setattr("torch.hub._get_cache_or_reload", download)
    with pytest.raises(OptionError):
        Recipe("torch.hub:load", {"repo_or_dir": "someone/something", "model": "x", "trust_repo": True}).build()


def test_only_networks_of_the_zoo_carry_a_recipe():
    assert recipe_of(nn.Linear(2, 2)) is None
    network = nn.Linear(2, 2)
    network.recipe = {"factory": "os:system"}
    assert recipe_of(network) is None


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
