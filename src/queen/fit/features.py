"""One pass of data through the model, un-augmented and in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from queen.core import inputs
from queen.core.split import Split
from queen.errors import DtypeError, EmptyBatchError, ModelError, NotFiniteError, OptionError, QueenError
from queen.fit.data import Images, batches, count_batches, image_batches
from queen.progress import Progress
from queen.types import Inputs

FAILURES = (RuntimeError, TypeError, ValueError, IndexError)  # of a model that cannot run on its input

View = Callable[[Inputs], Inputs]
"""A way to look at a batch, for example through a worse camera."""


@dataclass
class ModelOutputs:
    """One pass over the data: features (n, D), logits (n, K), true labels (n,), and the inputs if they are kept.

    `labels` are empty if the data has none.
    """

    features: Tensor
    logits: Tensor
    labels: Tensor
    inputs: Tensor | None = None
    span: tuple[float, float] | None = None  # smallest and largest number of the inputs, if they are images


def extract_features(
    split: Split,
    data: Images,
    like: Inputs,
    show: Progress,
    stage: str,
    *,
    labelled: bool = True,
    keep_inputs: bool = False,
    views: Sequence[View] = (lambda x: x,),
) -> list[ModelOutputs]:
    """One `ModelOutputs` per view: every batch of the data, seen that way, through the model.

    Every batch must be like the sample `like`, on whose device the model runs. `stage` names the progress bar. Not
    `labelled`: the data may be images alone.
    """
    device = next(iter(inputs.tensors(like).values())).device
    outputs: list[list[tuple[Tensor, Tensor]]] = [[] for _ in views]
    source: Iterable[tuple[Inputs, Tensor | None]] = batches(data) if labelled else image_batches(data)
    labels, images, ranges = [torch.empty(0, dtype=torch.int64, device=device)], [], []
    with torch.inference_mode():
        for raw, y in show.each(stage, source, count_batches(data)):
            x = inputs.to(inputs.check(raw, like), device)
            if y is not None:
                labels.append(_check_labels(y).to(device, torch.int64))
            if isinstance(x, Tensor) and inputs.is_image(x):
                ranges.append([t.item() for t in x.aminmax()])
            for view, parts in zip(views, outputs, strict=True):
                features, logits = run_on(split, view(x), f"the data ({stage})")
                parts.append((features.float(), logits.float()))
            if keep_inputs:
                if isinstance(x, Mapping):
                    raise OptionError("network shadows need one input tensor; use shadows='head' for this model")
                images.append(x)
    if not outputs[0]:
        raise EmptyBatchError(f"the data holds no images ({stage})")
    # Inference tensors may not enter autograd, and the map and the shadows are trained on these: hence clones.
    all_labels, all_images = torch.cat(labels).clone(), torch.cat(images).clone() if images else None
    span = (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None
    return [ModelOutputs(*_join(parts), all_labels, all_images, span) for parts in outputs]


def run_on(split: Split, x: Inputs, what: str) -> tuple[Tensor, Tensor]:
    """Features and logits of a batch; a `ModelError` that says what the model cannot run on, and why."""
    try:
        return split(x)
    except QueenError:
        raise
    except FAILURES as error:
        why = " ".join(str(error).split())[:300]
        raise ModelError(f"expected {what} that the model can run on, got some that it cannot: {why}") from error


def _check_labels(y: Tensor) -> Tensor:
    if y.ndim != 1 or y.is_floating_point():
        raise DtypeError(f"expected integer class labels of shape (n,), got {y.dtype} of shape {tuple(y.shape)}")
    return y


def _join(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Features and logits of all batches, which must be finite."""
    features, logits = (torch.cat(column).clone() for column in zip(*parts, strict=True))
    if not (features.isfinite().all() and logits.isfinite().all()):
        raise NotFiniteError("the model gives NaN or infinity for some of the images")
    return features, logits
