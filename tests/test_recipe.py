import pytest
import torch
from torch import nn

from queen import zoo
from queen.errors import OptionError
from queen.recipe import Recipe, recipe_of


class Mine(nn.Linear):
    """A network a user might have."""

    def __init__(self, width=2):
        super().__init__(width, 3)


def make_mine(width: int = 4) -> nn.Module:
    return Mine(width)


def make_nothing():
    return "not a network"


_hidden = make_mine


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
        "queen.recipe:Recipe.build",
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


@pytest.mark.parametrize("factory", [f"{__name__}:make_nothing", "queen.recipe:recipe_of"])
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
