"""The protected model of a bundle: its weights to store, and the model built, filled and recognised again."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from queen.bundle.bundle import Bundle
from queen.core.split import TOLERANCE
from queen.errors import BundleModelError
from queen.models import as_module
from queen.recipe import Recipe

Model = Any
"""How a caller may give the model: a module, or what `queen.models.as_module` makes one of; a function that returns it;
or "package.module:factory"."""


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The state dict as safetensors wants it: no tensor shares memory with another (tied weights are stored twice)."""
    return {name: t.detach().cpu().contiguous().clone() for name, t in model.state_dict().items()}


def is_channels_last(model: nn.Module) -> bool:
    """Whether the convolutions keep their weights in this memory format, which changes sums in the last bit."""
    kernels = [p for p in model.parameters() if p.ndim == 4 and not p.is_contiguous()]
    return any(p.is_contiguous(memory_format=torch.channels_last) for p in kernels)


def build_model(recipe: dict[str, Any] | None, model: Model | None) -> nn.Module:
    """The network, with untrained weights: from what the caller gave, else from the recipe in the bundle."""
    try:
        if isinstance(model, str) and not model.endswith(".onnx"):
            return Recipe(model).build()
        if model is not None:
            # A copy: filling in weights must not change the caller's own module.
            is_function = callable(model) and not isinstance(model, nn.Module)
            return copy.deepcopy(as_module(model() if is_function else model))
        if recipe is not None:
            return Recipe(**recipe).build()
    except BundleModelError:
        raise
    except Exception as error:  # whatever a factory may raise
        raise BundleModelError(f"cannot rebuild the bundle's model: {type(error).__name__}: {error}") from error
    raise BundleModelError("this bundle does not say how to build its model: queen.load(path, model=your_factory)")


def load_weights(network: nn.Module, weights: dict[str, Tensor]) -> None:
    """Put the stored weights into the network, which they must fit."""
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise BundleModelError(f"the bundle belongs to another model: {' '.join(str(error).split())[:300]}") from error


def recognise_model(bundle: Bundle) -> None:
    """Run the probe: a model with the same weights but another forward pass must be refused."""
    probe = bundle.probe
    try:
        with torch.inference_mode():
            features, logits = bundle.split(probe.x)
    except Exception as error:  # whatever a stranger's forward pass may raise
        raise BundleModelError(f"the bundle belongs to another model: {error}") from error
    for name, now, then in (("features", features, probe.features), ("logits", logits, probe.logits)):
        scale = then.abs().max().clamp(min=1.0)
        # A GPU may round tensor products to 10 bits, hence the slack; a wrong model is off by far more.
        if now.shape != then.shape or not (now.float() - then).abs().max() <= 100 * TOLERANCE * scale:
            raise BundleModelError(f"the bundle belongs to another model: its {name} differ on the stored probe")
