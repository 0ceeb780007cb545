"""One pass of data through the model, un-augmented and in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from queen.core import inputs
from queen.core.split import Split
from queen.errors import DtypeError, EmptyBatchError, NotFiniteError, OptionError
from queen.fit.data import Data, batches
from queen.progress import Progress
from queen.types import Inputs

View = Callable[[Inputs], Inputs]
"""A way to look at a batch, for example through a worse camera."""


@dataclass
class ModelOutputs:
    """What one pass over the data gave: features (n, D), logits (n, K), labels (n,), and maybe all inputs."""

    features: Tensor
    logits: Tensor
    labels: Tensor
    inputs: Tensor | None = None
    span: tuple[float, float] | None = None  # smallest and largest number of the inputs, if they are images


def look(
    split: Split,
    data: Data,
    like: Inputs,
    show: Progress,
    name: str,
    *,
    keep_inputs: bool = False,
    views: Sequence[View] = (lambda x: x,),
) -> list[ModelOutputs]:
    """Every batch must be like the sample `like`, on whose device the model runs; one `ModelOutputs` a view."""
    device = next(iter(inputs.tensors(like).values())).device
    found: list[list[tuple[Tensor, Tensor]]] = [[] for _ in views]
    labels, kept, spans = [], [], []
    with torch.inference_mode():
        for raw, y in show.each(name, batches(data)):
            x = inputs.to(inputs.check(raw, like), device)
            if y.ndim != 1 or y.is_floating_point():
                raise DtypeError(
                    f"expected integer class labels of shape (n,), got {y.dtype} of shape {tuple(y.shape)}"
                )
            labels.append(y.to(device, torch.int64))
            if isinstance(x, Tensor) and inputs.is_image(x):
                spans.append([t.item() for t in x.aminmax()])
            for view, parts in zip(views, found, strict=True):
                u, logits = split(view(x))
                parts.append((u.float(), logits.float()))
            if keep_inputs:
                if isinstance(x, Mapping):
                    raise OptionError("network shadows need one input tensor; use shadows='head' for this model")
                kept.append(x)
    if not labels:
        raise EmptyBatchError(f"the data holds no images ({name})")
    # Inference tensors may not enter autograd, and the map and the shadows are trained on these: hence clones.
    truth, pictures = torch.cat(labels).clone(), torch.cat(kept).clone() if kept else None
    span = (min(low for low, _ in spans), max(high for _, high in spans)) if spans else None
    return [_joined(parts, truth, pictures, span) for parts in found]


def _joined(
    parts: list[tuple[Tensor, Tensor]], labels: Tensor, pictures: Tensor | None, span: tuple[float, float] | None
) -> ModelOutputs:
    features, logits = (torch.cat(column).clone() for column in zip(*parts, strict=True))
    if not (features.isfinite().all() and logits.isfinite().all()):
        raise NotFiniteError("the model gives NaN or infinity for some of the images")
    return ModelOutputs(features, logits, labels, pictures, span)
