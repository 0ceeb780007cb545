"""What a trained network says, and whether it says anything."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from queen.core.split import run_model


@torch.inference_mode()
def predict(model: nn.Module, x: Tensor, batch: int = 512) -> Tensor:
    """Labels (n,) the model gives to x."""
    return torch.cat([run_model(model, part).argmax(1) for part in x.split(batch)])  # type: ignore[no-untyped-call]


@torch.no_grad()  # not inference mode, whose tensors may not enter autograd: thieves are trained on these
def probabilities(model: nn.Module, x: Tensor, batch: int = 512) -> Tensor:
    """The model's softmax (n, K) in float32."""
    return torch.cat([run_model(model, part).float().softmax(1) for part in x.split(batch)])  # type: ignore[no-untyped-call]


def collapsed(predictions: Tensor) -> bool:
    """Whether one class takes more than 99 % of the predictions: a failed training run, not a defense's success."""
    return bool(predictions.bincount().max() > 0.99 * len(predictions))
