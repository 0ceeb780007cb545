"""xgboost classifiers (extra `xgboost`): trees, whose margins are logits."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from queen.errors import DtypeError, OptionError
from queen.extras import install
from queen.models.outside import StoredModel, check_columns
from queen.recipe import Recipe
from queen.types import Inputs

TWO, MANY = ("binary:logistic", "binary:logitraw"), ("multi:softprob", "multi:softmax")


class XgboostModel(StoredModel):
    """Boosted trees: logits alone, since trees have no features. The trees travel as xgboost itself writes them."""

    library = "xgboost"
    takes_rows = True

    def __init__(self, file: bytes | int, width: int, classes: int, columns: int) -> None:
        """`width` is how many columns it takes, `columns` how many the guard looks at: these or none."""
        super().__init__(file, classes, "logits", columns=columns)
        self._width = width

    @property
    def recipe(self) -> Recipe:
        """How a bundle builds this module again."""
        classes = self.head.out_features
        args = {"size": len(self.file), "width": self._width, "classes": classes, "columns": self.columns}
        return Recipe("queen.models.xgb:empty", args)

    def open(self, file: bytes) -> Any:
        """The booster."""
        booster = import_xgboost().Booster(model_file=bytearray(file))
        booster.set_param({"nthread": torch.get_num_threads()})
        return booster

    def run(self, x: Inputs) -> tuple[None, Tensor]:
        """The margins (n, K) of a batch; of two classes half of the margin, and its negative."""
        if not isinstance(x, Tensor) or x.ndim != 2 or x.shape[1] != self._width:
            got = tuple(x.shape) if isinstance(x, Tensor) else "named tensors"
            raise ValueError(f"expected vectors of shape (n, {self._width}), got {got}")
        numbers = np.ascontiguousarray(x.detach().cpu().numpy(), np.float32)
        margins = torch.from_numpy(self.engine.inplace_predict(numbers, predict_type="margin", validate_features=False))
        if margins.ndim == 1:
            margins = torch.stack([-margins / 2, margins / 2], 1)
        return None, margins.to(self.head.weight)


def empty(size: int, width: int, classes: int, columns: int) -> nn.Module:
    """The module of a bundle, before its weights, which are the trees, are filled in."""
    import_xgboost()
    return XgboostModel(size, width, classes, columns)


def read_xgboost(model: Any, columns: int | None = None) -> XgboostModel:
    """The module of an `XGBClassifier` or a `Booster` that was trained to classify."""
    xgboost = import_xgboost()
    booster = model if isinstance(model, xgboost.Booster) else model.get_booster()
    objective, classes = _objective(booster)
    if objective in TWO:
        classes = 2
    elif objective not in MANY:
        raise DtypeError(f"expected an xgboost classifier ({', '.join(TWO + MANY)}), got one trained for '{objective}'")
    best = booster.attr("best_iteration")  # early stopping: the trees after it are not used
    if best is not None:
        booster = booster[: int(best) + 1]
    width = booster.num_features()
    return XgboostModel(bytes(booster.save_raw("ubj")), width, classes, check_columns(columns, width))


def _objective(booster: Any) -> tuple[str, int]:
    """What a booster was trained for, and of how many classes (0 where there are two)."""
    config = json.loads(booster.save_config())["learner"]
    return config["objective"]["name"], int(config["learner_model_param"]["num_class"])


def import_xgboost() -> Any:
    """xgboost; an error that says how to get it where it is not installed."""
    try:
        import xgboost  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise OptionError(
            f"xgboost models need xgboost: {install('xgboost')} (on Linux), or pip install xgboost"
        ) from error
    return xgboost
