"""xgboost classifiers (extra `xgboost`): trees, whose margins are logits."""

from __future__ import annotations

import json
from functools import partial
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

    def __init__(self, file: bytes | int, width: int, classes: int, columns: int, missing: float | None = None) -> None:
        """`width` is how many columns it takes, `columns` how many the guard looks at: these or none. `missing` is the
        number that stands for a missing value, beside NaN."""
        super().__init__(file, classes, "logits", columns=columns)
        self._width, self._missing = width, missing

    @property
    def recipe(self) -> Recipe:
        """How a bundle builds this module again."""
        args = {
            "size": len(self.file),
            "width": self._width,
            "classes": self.head.out_features,
            "columns": self.columns,
            "missing": self._missing,
        }
        return Recipe("queen.models.xgb:empty", args)

    def open(self, file: bytes) -> Any:
        """What makes margins (n,) or (n, K) of rows (n, width)."""
        xgboost = import_xgboost()
        booster = xgboost.Booster(model_file=bytearray(file))
        booster.set_param({"nthread": torch.get_num_threads()})
        missing = np.nan if self._missing is None else self._missing
        if _is_linear(booster):  # it cannot read arrays in place
            return lambda x: booster.predict(
                xgboost.DMatrix(x, missing=missing), output_margin=True, validate_features=False
            )
        return partial(booster.inplace_predict, predict_type="margin", missing=missing, validate_features=False)

    def run(self, x: Inputs) -> tuple[None, Tensor]:
        """The margins (n, K) of a batch; of two classes half of the margin, and its negative."""
        if not isinstance(x, Tensor) or x.ndim != 2 or x.shape[1] != self._width:
            got = tuple(x.shape) if isinstance(x, Tensor) else "named tensors"
            raise ValueError(f"expected vectors of shape (n, {self._width}), got {got}")
        margins = torch.from_numpy(self.engine(np.ascontiguousarray(x.detach().cpu().numpy(), np.float32)))
        if margins.ndim == 1:
            margins = torch.stack([-margins / 2, margins / 2], 1)
        return None, margins.to(self.head.weight)


def empty(size: int, width: int, classes: int, columns: int, missing: float | None = None) -> nn.Module:
    """The module of a bundle, before its weights, which are the trees, are filled in."""
    import_xgboost()
    return XgboostModel(size, width, classes, columns, missing)


def read_xgboost(model: Any, columns: int | None = None) -> XgboostModel:
    """The module of an `XGBClassifier` or a `Booster` that was trained to classify; it answers as this one predicts."""
    xgboost = import_xgboost()
    is_booster = isinstance(model, xgboost.Booster)
    try:
        booster = model if is_booster else model.get_booster()
        width = booster.num_features()
    except ValueError as error:
        raise DtypeError(
            f"expected a fitted classifier, got {type(model).__name__} without trees: call its fit(x, y) first"
        ) from error
    config = json.loads(booster.save_config())["learner"]
    objective, classes = config["objective"]["name"], int(config["learner_model_param"]["num_class"])
    if objective in TWO:
        classes = 2
    elif objective not in MANY:
        raise DtypeError(f"expected an xgboost classifier ({', '.join(TWO + MANY)}), got one trained for '{objective}'")
    best = None if is_booster else booster.attr("best_iteration")  # early stopping: classifiers end at the best tree
    if best is not None and not _is_linear(booster):
        booster = booster[: int(best) + 1]
    missing = float(getattr(model, "missing", np.nan))
    return XgboostModel(
        bytes(booster.save_raw("ubj")),
        width,
        classes,
        check_columns(columns, width),
        None if np.isnan(missing) else missing,
    )


def _is_linear(booster: Any) -> bool:
    """Whether it is a linear model and no trees."""
    kind: str = json.loads(booster.save_config())["learner"]["gradient_booster"]["name"]
    return kind == "gblinear"


def import_xgboost() -> Any:
    """xgboost; an error that says how to get it where it is not installed."""
    try:
        import xgboost  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise OptionError(
            f"xgboost models need xgboost: {install('xgboost')} (on Linux), or pip install xgboost"
        ) from error
    return xgboost
