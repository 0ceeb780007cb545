"""How to build a network again from JSON: an importable factory and its arguments, so that a bundle needs no pickle."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast, get_type_hints

from torch import nn

from queen.errors import OptionError


@dataclass(frozen=True)
class Recipe:
    """How to build a network: an importable function or class, `package.module:name`, and its JSON arguments."""

    factory: str
    args: dict[str, Any] = field(default_factory=dict)

    def build(self) -> nn.Module:
        """Import the factory, call it and return the network, with untrained weights."""
        network = self._import()(**self.args)
        if not isinstance(network, nn.Module):
            raise OptionError(f"factory '{self.factory}' must return a torch.nn.Module, got {type(network).__name__}")
        return network

    def _import(self) -> Callable[..., object]:
        """The factory itself: an nn.Module class, or a function annotated to return one, defined in the named module.

        A recipe may come from a file, so it must not be able to name `os:system`, `torch.serialization:load` or a
        helper that some module imported.
        """
        module_name, _, name = self.factory.partition(":")
        refuse = (
            f"factory '{self.factory}' must be 'package.module:name' of a torch.nn.Module class or of a function "
            "annotated '-> nn.Module', public and defined in that module"
        )
        standard = module_name.split(".")[0] in sys.stdlib_module_names and module_name != "__main__"
        if not name.isidentifier() or name.startswith("_") or standard:
            raise OptionError(refuse)
        try:
            factory = getattr(importlib.import_module(module_name), name)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise OptionError(f"cannot import factory '{self.factory}': {error}") from error
        if getattr(factory, "__module__", None) != module_name or not _makes_a_network(factory):
            raise OptionError(refuse)
        return cast(Callable[..., object], factory)


def _makes_a_network(made: object) -> bool:
    """Whether this is a network class, or a function whose annotation says that it returns one."""
    if inspect.isfunction(made):
        try:
            made = get_type_hints(made).get("return")
        except (NameError, TypeError):  # an annotation that cannot be resolved says nothing
            return False
    return inspect.isclass(made) and issubclass(made, nn.Module)


def recipe_of(model: nn.Module) -> Recipe | None:
    """The recipe that a network of `queen.zoo` carries; None for others."""
    recipe = getattr(model, "recipe", None)
    return recipe if isinstance(recipe, Recipe) else None
