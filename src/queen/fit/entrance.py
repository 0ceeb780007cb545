"""What callers give, made into what fitting takes: any model as a module, its labels as numbers, a sample, a probe."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from queen.bundle.bundle import Probe
from queen.bundle.model import RemoteModel
from queen.core import inputs
from queen.core.split import Split
from queen.errors import EmptyBatchError, LabelError, ModelError, OptionError
from queen.fit.data import Data, batches
from queen.fit.features import run_on
from queen.fit.foreign import mix_rows
from queen.models import OutsideModel
from queen.models.hugging_face import transformer_recipe
from queen.options import Sentinel
from queen.recipe import Recipe, recipe_of
from queen.types import Inputs


def numbered(data: Any, model: nn.Module) -> Any:
    """The same data with its labels as numbers from 0, where the model has other names for its classes.

    Only (x, y) is understood so; a Dataset must give numbers.
    """
    names = getattr(model, "own_labels", None)
    if names is None or not isinstance(data, tuple) or len(data) != 2:
        return data
    x, y = data
    labels = np.asarray(y)
    if labels.ndim != 1:  # which is refused later
        return data
    numbers = {name: number for number, name in enumerate(names.tolist())}
    try:
        return x, np.array([numbers[label] for label in labels.tolist()], np.int64)
    except KeyError as error:
        known = ", ".join(map(str, names[:10]))
        raise LabelError(f"expected labels that the model was fitted with ({known}), got {error.args[0]}") from error


def ready(model: nn.Module, data: Data) -> nn.Module:
    """The model; one that runs elsewhere knows its head then, and one of tables what is usual in these data."""
    if isinstance(model, RemoteModel):
        model.learn_head(x for x, _ in batches(data))
        return model
    if not isinstance(model, OutsideModel) or not model.columns:
        return model
    model = copy.deepcopy(model)  # another guard may stand around it already
    model.learn_columns(x for x, _ in batches(data) if isinstance(x, Tensor))
    return model


def recipe_for(model: nn.Module, factory: str | None, args: Mapping[str, Any] | None) -> Recipe | None:
    """How a bundle builds the model again: what the caller says, else what the model says of itself."""
    if factory:
        return Recipe(factory, dict(args or {}))
    return recipe_of(model) or transformer_recipe(model)


def names_for(model: nn.Module, names: Sequence[str] | None) -> tuple[str, ...] | None:
    """The names of the classes: what the caller says, else what the model says of itself."""
    if names:
        return tuple(names)
    known = getattr(model, "class_names", None)
    labels = getattr(getattr(model, "config", None), "id2label", None)  # Hugging Face
    if known is None and isinstance(labels, Mapping) and not all(str(v).startswith("LABEL_") for v in labels.values()):
        known = tuple(str(labels[k]) for k in sorted(labels))
    return known


def settings_for(model: nn.Module, sentinel: Sentinel | None, settings: Sentinel) -> Sentinel:
    """The sentinel's settings, with the scores that suit the model where the caller has not said which."""
    scores = model.scores if isinstance(model, OutsideModel) and sentinel is None else None
    return replace(settings, scores=scores) if scores else settings


def describe(given: Any, split: Split, settings: Sentinel) -> str:
    """For the report: what there is to know of a model that is not simply a network; else nothing."""
    model = split.model
    if isinstance(model, OutsideModel):
        return f"{model.describe()}; the sentinel measures {', '.join(settings.scores)}"
    if split.softmax:
        return f"it returns probabilities; its logits are those of its last layer, '{split.head_name}'"
    if given is not model:
        return "it is compiled; the guard runs the original, since compiled code does not tell its features"
    return ""


def take_sample(data: Data, model: nn.Module) -> Inputs:
    """A few rows in the model's precision and on its device: to trace the network with, and a pattern for the rest."""
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise OptionError("the model has no parameters: give the trained network")
    if parameter.is_meta:
        raise OptionError("expected a model with weights, got one on 'meta', which has none: load them into it first")

    def in_precision(t: Tensor) -> Tensor:
        return t.to(parameter.dtype) if t.is_floating_point() else t

    for x, _ in batches(data):
        few = inputs.take(x, slice(0, 4))
        like = {k: in_precision(t) for k, t in few.items()} if isinstance(few, Mapping) else in_precision(few)
        return inputs.to(inputs.check(few, like), parameter.device)
    raise EmptyBatchError("the data holds no images")


@torch.inference_mode()
def make_probe(
    split: Split, sample: Inputs, generator: torch.Generator, span: tuple[float, float] | None = None
) -> Probe:
    """Random rows shaped like the data (no training image is stored) and the model's features and logits for them.

    Those for another server keep to the span of the data, if there is one: it may refuse others. A model that takes no
    noise gets rows that are mixed of the sample's.
    """
    device = next(split.model.parameters()).device

    def noise(t: Tensor) -> Tensor:
        if not t.is_floating_point():
            high = int(t.max())
            if high <= 1:  # a mask or a type: random ones could hide everything
                return torch.full_like(t, high)
            return torch.randint(0, high + 1, t.shape, generator=generator).to(t.dtype)  # token ids that surely exist
        scaled = torch.randn(t.shape, generator=generator) * t.float().std(correction=0)
        return (scaled + t.float().mean()).to(t.dtype)

    x = {k: noise(t.cpu()) for k, t in sample.items()} if isinstance(sample, Mapping) else noise(sample.cpu())
    if span is not None and isinstance(x, Tensor) and isinstance(split.model, RemoteModel):
        x = x.clamp(*span)
    placed = inputs.to(x, device)
    try:
        features, logits = run_on(split, placed, "random rows")
    except ModelError:
        placed = mix_rows(sample, inputs.count(sample), generator)
        features, logits = run_on(split, placed, "rows that are mixed of the data's")
    return Probe(placed, features.float(), logits.float())
