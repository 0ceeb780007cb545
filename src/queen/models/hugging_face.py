"""Networks of Hugging Face's transformers: built again from their configuration, so that a bundle needs no factory."""

from __future__ import annotations

import json
from typing import Any

from torch import nn

from queen.errors import OptionError
from queen.recipe import Recipe


def transformer_recipe(model: nn.Module) -> Recipe | None:
    """How to build a network of that library again; None for any other, and for code that came with weights."""
    config: Any = getattr(model, "config", None)
    kind = type(model)
    if not kind.__module__.startswith("transformers.models.") or not hasattr(config, "to_json_string"):
        return None
    settings = json.loads(config.to_json_string(use_diff=False))
    return Recipe("queen.models.hugging_face:build", {"kind": kind.__name__, "config": settings})


def build(kind: str, config: dict[str, Any]) -> nn.Module:
    """The network of this class and configuration, with untrained weights."""
    try:
        import transformers  # noqa: PLC0415  (not ours to require)
    except ImportError as error:
        raise OptionError("this model needs Hugging Face's library: pip install transformers") from error
    found: Any = getattr(transformers, kind, None)
    if not isinstance(found, type) or not issubclass(found, transformers.PreTrainedModel):
        raise OptionError(f"transformers has no network '{kind}': is another version of it installed?")
    configuration: Any = found.config_class
    network: nn.Module = found(configuration.from_dict(config))
    return network
