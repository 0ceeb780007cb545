"""A defended model as a classifier of adversarial-robustness-toolbox (ART), so that its attacks run against ours."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from queen.errors import OptionError, RefusedError
from queen.types import Oracle


def as_art_classifier(
    oracle: Oracle,
    input_shape: tuple[int, ...],
    classes: int,
    *,
    clip_values: tuple[float, float] = (0.0, 1.0),
    device: torch.device | str = "cpu",
) -> Any:
    """ART's `BlackBoxClassifier` around one client of a guard or endpoint: arrays (n, *input_shape) -> (n, classes).

    ART has no word for a query that is refused: such a row holds 1 / classes everywhere, and counts as asked.
    """
    try:
        from art.estimators.classification import BlackBoxClassifier  # noqa: PLC0415  (not a dependency, slow to import)
    except ImportError as error:
        raise OptionError("ART is not installed: pip install adversarial-robustness-toolbox") from error

    def predict(x: NDArray[Any]) -> NDArray[np.float32]:
        try:
            answers = oracle(torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)).to(device))
        except RefusedError as refusal:
            answers = refusal.reply.probabilities
        probabilities: NDArray[np.float32] = answers.detach().cpu().numpy().astype(np.float32)
        return probabilities

    return BlackBoxClassifier(predict, input_shape, classes, clip_values=clip_values)
