"""The simulated pirates: how many, of which kind, trained on what, and how good they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from queen.core.shadows import Shadows, disjoint_subsets, train_heads, train_networks
from queen.errors import OptionError
from queen.fit.features import ModelOutputs
from queen.progress import Progress
from queen.recipe import Recipe
from queen.zoo import arguments_for

ShadowKind = Literal["head", "network"]


@dataclass(frozen=True, kw_only=True)
class ShadowRecipe:
    """How the simulated pirates are made; see `core/shadows.py` for the two kinds.

    `count` of them are trained and `draw` answer a query, each trained on up to `per_class` images of every class that
    no other has, or, if `whole`, on all images. Heads take `steps`; networks take `epochs` in batches of `batch` and
    are built by `networks` in turn: recipes, or names of networks in `queen.zoo`; none: two that suit the images.
    """

    kind: ShadowKind = "head"
    count: int = 10
    draw: int = 5
    per_class: int = 500
    whole: bool = False
    networks: Sequence[Recipe | str] = ()
    epochs: int = 5
    batch: int = 64
    steps: int = 5


def shadow_recipe(shadows: ShadowRecipe | ShadowKind) -> ShadowRecipe:
    """The recipe, or that of a kind; an error if its numbers make no sense."""
    recipe = ShadowRecipe(kind=shadows) if isinstance(shadows, str) else shadows
    if recipe.kind not in ("head", "network"):
        raise OptionError(f"no shadow kind '{recipe.kind}'; known: head, network")
    if min(recipe.per_class, recipe.epochs, recipe.batch, recipe.steps) < 1:
        raise OptionError("per_class, epochs, batch and steps of the shadows must be at least 1")
    if not 1 <= recipe.draw <= recipe.count:
        raise OptionError(f"draw must lie between 1 and the {recipe.count} shadows, got {recipe.draw}")
    return recipe


def fit_shadows(
    outputs: ModelOutputs, recipe: ShadowRecipe, generator: torch.Generator, show: Progress
) -> tuple[Shadows, list[str]]:
    """The simulated pirates, and what to warn of."""
    classes = outputs.logits.shape[1]
    with show.timed("shadows"):
        subsets, warnings = _subsets(outputs.labels, classes, recipe, generator)
        if recipe.kind == "head" or outputs.inputs is None:
            with show.bar("shadows", 1) as advance:
                heads = train_heads(outputs.features, outputs.labels, classes, subsets, generator, steps=recipe.steps)
                advance()
            return heads, warnings
        networks = _networks(recipe.networks, outputs.inputs, classes)
        with show.bar("shadows", recipe.count) as advance:
            trained = train_networks(
                outputs.inputs,
                outputs.labels,
                subsets,
                networks,
                generator,
                epochs=recipe.epochs,
                batch=recipe.batch,
                on_model=advance,
            )
        return trained, warnings


def _subsets(
    labels: Tensor, classes: int, recipe: ShadowRecipe, generator: torch.Generator
) -> tuple[list[Tensor], list[str]]:
    """The rows that each shadow is trained on, and what to warn of."""
    if recipe.whole:
        return [torch.arange(len(labels), device=labels.device)] * recipe.count, []
    subsets, disjoint = disjoint_subsets(labels, classes, recipe.count, recipe.per_class, generator)
    overlap = f"some class has fewer than {recipe.count} images, so shadow subsets overlap (bootstrap)"
    return subsets, [] if disjoint else [overlap]


def _networks(named: Sequence[Recipe | str], x: Tensor, classes: int) -> list[Recipe]:
    """The recipes of shadows that take x; where none are named, two architectures in turn, if x are images."""
    if x.ndim != 4 and not (named and all(isinstance(network, Recipe) for network in named)):
        raise OptionError("network shadows for inputs that are not images need ShadowRecipe(networks=[Recipe(...)])")
    names = named or (("vgg11_bn", "resnet18") if x.shape[-1] >= 32 else ("small_cnn", "vgg11_bn"))
    return [
        Recipe("queen.zoo:build", {"name": name, "classes": classes, **arguments_for(name, x.shape)})
        if isinstance(name, str)
        else name
        for name in names
    ]


@torch.inference_mode()
def try_shadows(shadows: Shadows, outputs: ModelOutputs, rows: int = 512) -> tuple[float, float]:
    """Accuracy and mean confidence of the averaged shadows on up to `rows` training images."""
    chosen = torch.linspace(0, len(outputs.labels) - 1, min(rows, len(outputs.labels))).long().to(outputs.labels.device)
    x = outputs.features[chosen] if outputs.inputs is None else outputs.inputs[chosen]
    confidence, guess = shadows.probabilities(outputs.features[chosen], x).mean(1).max(1)
    return (guess == outputs.labels[chosen]).double().mean().item(), confidence.double().mean().item()
