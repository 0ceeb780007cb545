"""A function or a torch module of which nothing is known but its answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from queen.core.split import run_model
from queen.errors import BundleModelError
from queen.models.outside import Gives, OutsideModel, to_numpy
from queen.recipe import Recipe, recipe_of
from queen.types import Inputs


class CalledModel(OutsideModel):
    """Whatever can be called with a batch and answers with logits or probabilities (n, K).

    A torch module is called with tensors and its weights are stored; any other function is called with arrays, and a
    bundle does not hold it.
    """

    def __init__(self, function: Callable[..., Any], classes: int, gives: Gives | None, columns: int = 0) -> None:
        super().__init__(classes, gives, columns=columns)
        self.function = function
        self.library = "torch" if isinstance(function, nn.Module) else "function"

    @property
    def recipe(self) -> Recipe | None:
        """How a bundle builds this module again, or what then says that the function is missing."""
        if not isinstance(self.function, nn.Module):
            return Recipe("queen.models.called:missing")
        inner = recipe_of(self.function)
        if inner is None:
            return None
        classes = self.head.out_features
        args = {"inner": asdict(inner), "classes": classes, "gives": self.gives, "columns": self.columns}
        return Recipe("queen.models.called:build", args)

    def run(self, x: Inputs) -> tuple[None, Tensor]:
        """The answers (n, K) to a batch."""
        if isinstance(self.function, nn.Module):
            return None, run_model(self.function, x)
        try:
            answers = np.asarray(self.function(to_numpy(x)), np.float64)
        except Exception as error:  # whatever a stranger's function may raise
            raise ValueError(f"the function failed: {type(error).__name__}: {error}") from error
        return None, torch.from_numpy(answers).to(self.head.weight)


def build(inner: dict[str, Any], classes: int, gives: Gives, columns: int) -> nn.Module:
    """The module of a bundle around the one that this recipe builds."""
    return CalledModel(Recipe(**inner).build(), classes, gives, columns)


def missing() -> nn.Module:
    """An error that says that a bundle holds no function."""
    raise BundleModelError(
        "this bundle was made around a function, which it cannot hold: give it again, "
        "queen.load(path, model=queen.models.as_module(function, classes=...))"
    )
