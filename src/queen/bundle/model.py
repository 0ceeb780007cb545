"""The protected model of a bundle: its weights to store, and the model built, filled and recognised again."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from queen.bundle.bundle import Bundle, Probe
from queen.core.split import TOLERANCE
from queen.errors import BundleModelError, OptionError, UpstreamError
from queen.models import as_module
from queen.recipe import Recipe
from queen.types import Inputs

Model = Any
"""How a caller may give the model: a module, or what `queen.models.as_module` makes one of; a function that returns it;
or "package.module:factory"."""


class RemoteModel(nn.Module):
    """A network that runs elsewhere: what is here is its last layer, `head`, and a way to ask for what goes into it."""

    head: nn.Linear

    @abstractmethod
    def take_head(self, weights: dict[str, Tensor], name: str) -> None:
        """Take the layer of this name from a state dict; what else is in there is not needed here."""

    @abstractmethod
    def learn_head(self, batches: Iterable[Inputs]) -> None:
        """Find the head's weights by asking about these inputs, unless they are known."""

    @abstractmethod
    def expect(self, probe: Probe) -> None:
        """From now on, use no connection on which the network does not answer the probe like this."""


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
            return as_module(Recipe(model).build())
        if model is not None:
            # A copy: filling in weights must not change the caller's own module.
            is_function = callable(model) and not isinstance(model, nn.Module)
            return copy.deepcopy(as_module(model() if is_function else model))
        if recipe is not None:
            return as_module(Recipe(**recipe).build())  # a factory may compile
    except BundleModelError:
        raise
    except OptionError as error:
        raise BundleModelError(f"cannot rebuild the bundle's model: {error}") from error
    except Exception as error:  # whatever a factory may raise
        raise BundleModelError(f"cannot rebuild the bundle's model: {type(error).__name__}: {error}") from error
    raise BundleModelError("this bundle does not say how to build its model: queen.load(path, model=your_factory)")


def load_weights(network: nn.Module, weights: dict[str, Tensor], head: str) -> str:
    """Put the stored weights into the network, which they must fit; returns what its head is called.

    A network that runs elsewhere takes the weights of the head alone.
    """
    if isinstance(network, RemoteModel):
        network.take_head(weights, head)
        return "head"
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise BundleModelError(f"the bundle belongs to another model: {' '.join(str(error).split())[:300]}") from error
    return head


def freeze(network: nn.Module) -> nn.Module:
    """The network, whose weights need no gradient any more."""
    for parameter in network.parameters():
        parameter.detach_().requires_grad_(False)  # those of a copied ScriptModule are no leaves
    return network


def recognise_model(bundle: Bundle) -> None:
    """Run the probe: a model with the same weights but another forward pass must be refused."""
    probe = bundle.probe
    try:
        with torch.inference_mode():
            features, logits = bundle.split(probe.x)
    except Exception as error:  # whatever a stranger's forward pass may raise
        if isinstance(error, OptionError) or (isinstance(error, UpstreamError) and error.kind != "unusable"):
            raise  # it is about how a network elsewhere is asked, and says nothing about which it is
        raise BundleModelError(f"the bundle belongs to another model: {error}") from error
    if (name := difference(probe, features, logits)) is not None:
        raise BundleModelError(f"the bundle belongs to another model: its {name} differ on the stored probe")


def difference(probe: Probe, features: Tensor, logits: Tensor) -> str | None:
    """Whether features or logits of the probe differ from those that were stored; None if neither does."""
    for name, now, then in (("features", features, probe.features), ("logits", logits, probe.logits)):
        if not is_same(now, then):
            return name
    return None


def is_same(now: Tensor, then: Tensor) -> bool:
    """Whether two outputs are those of one network, up to how machines round.

    A GPU may round tensor products to 10 bits, hence the slack; a wrong model is off by far more.
    """
    scale = then.abs().max().clamp(min=1.0)
    return now.shape == then.shape and bool((now.float() - then).abs().max() <= 100 * TOLERANCE * scale)
