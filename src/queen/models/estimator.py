"""Classifiers with the methods of scikit-learn: its own, pipelines of them, LightGBM's, CatBoost's and so on."""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from queen.errors import BundleModelError, DtypeError
from queen.models.outside import Gives, OutsideModel, check_columns
from queen.recipe import Recipe
from queen.types import Inputs

SAME = 1e-6  # by which the softmax of decisions may miss the probabilities


class EstimatorModel(OutsideModel):
    """A fitted classifier: its decisions are logits where their softmax is what it calls probabilities (or where it has
    none), else its probabilities are all that it tells.

    Numbers stay in float64, as scikit-learn computes. A bundle does not hold the estimator, which only pickle could
    store: whoever loads it gives the estimator again.
    """

    takes_rows = True

    def __init__(self, estimator: Any, columns: int | None = None) -> None:
        classes = np.asarray(estimator.classes_)
        gives = _given_by(estimator)
        width = getattr(estimator, "n_features_in_", None)
        super().__init__(len(classes), gives, columns=check_columns(columns, width))
        self.double()
        self.estimator, self.library = estimator, f"{_package(estimator)} {_name(estimator)}"
        if classes.dtype.kind not in "iu" or not np.array_equal(classes, np.arange(len(classes))):
            self.class_names = tuple(map(str, classes))
            self.own_labels = classes

    @property
    def recipe(self) -> Recipe:
        """What says, when a bundle is loaded, that the estimator is missing."""
        package = _package(self.estimator)
        version = getattr(importlib.import_module(package), "__version__", "?")
        args = {"kind": _name(self.estimator), "package": package, "version": version}
        return Recipe("queen.models.estimator:missing", args)

    def run(self, x: Inputs) -> tuple[None, Tensor]:
        """Decisions or probabilities (n, K) of a batch of vectors."""
        if not isinstance(x, Tensor):
            raise TypeError("expected vectors as one tensor, got named tensors")
        rows = x.detach().cpu().numpy()
        try:
            if self.gives is None:
                self.gives = _tell_apart(self.estimator, rows)
            method = "decision_function" if self.gives == "logits" else "predict_proba"
            answers = _ask(self.estimator, method, rows)
        except Exception as error:  # libraries have errors of their own, without a common base
            raise ValueError(f"{self.library}: {error}") from error
        return None, torch.from_numpy(answers).to(self.head.weight)


def _ask(estimator: Any, method: str, x: NDArray[Any]) -> NDArray[np.float64]:
    """Decisions or probabilities (n, K); of two classes half of the decision, and its negative."""
    columns = getattr(estimator, "feature_names_in_", None)
    if columns is not None:  # it was fitted on a table, and may look for its columns by name
        with suppress(ImportError):
            x = importlib.import_module("pandas").DataFrame(x, columns=columns)
    numbers = np.asarray(getattr(estimator, method)(x), np.float64)
    return np.stack([-numbers / 2, numbers / 2], 1) if numbers.ndim == 1 else numbers


def _given_by(estimator: Any) -> Gives | None:
    """What it is asked for: decisions if there is nothing else, or their softmax is the rest; None: rows will tell."""
    if not hasattr(estimator, "decision_function"):
        return "probabilities"
    if not hasattr(estimator, "predict_proba"):
        return "logits"
    columns = getattr(estimator, "n_features_in_", None)
    if columns is None:
        return None
    try:
        return _tell_apart(estimator, np.random.default_rng(0).standard_normal((16, columns)))
    except Exception:  # it takes something else than any numbers, and may say so in its own way
        return None


def _tell_apart(estimator: Any, x: NDArray[Any]) -> Gives:
    """What to ask for: decisions, if their softmax is what the estimator calls probabilities."""
    decisions, probabilities = (_ask(estimator, name, x) for name in ("decision_function", "predict_proba"))
    if decisions.shape != probabilities.shape:  # one against one
        return "probabilities"
    softmax = torch.from_numpy(decisions).softmax(1).numpy()
    return "logits" if np.abs(softmax - probabilities).max() <= SAME else "probabilities"


def missing(kind: str, package: str, version: str) -> nn.Module:
    """An error that says which estimator a bundle was made with: it holds none."""
    raise BundleModelError(
        f"a bundle cannot hold the model of {package}: that takes pickle, which runs whatever code a file holds. Give "
        f"yours again, queen.load(path, model=estimator), the fitted {kind} of {package} {version}; for a server, "
        "--model package.module:factory with a function '-> nn.Module' that returns queen.models.as_module(estimator)"
    )


def read_estimator(model: Any, columns: int | None = None) -> EstimatorModel:
    """The module of a fitted classifier."""
    if not hasattr(model, "predict_proba") and not hasattr(model, "decision_function"):
        raise DtypeError(
            f"expected a classifier with predict_proba or decision_function, got {_name(model)}: a regressor has no "
            "classes; wrap a classifier without them in sklearn.calibration.CalibratedClassifierCV"
        )
    classes = getattr(model, "classes_", None)
    if classes is None:
        raise DtypeError(f"expected a fitted classifier, got {_name(model)} without classes: call its fit(x, y) first")
    if isinstance(classes, list):
        raise DtypeError("expected a classifier that gives one class, got one with several outputs: guard each of them")
    if len(classes) > 2 and not hasattr(model, "predict_proba") and _decides_pairs(model):
        raise DtypeError(
            "expected one decision a class, got one for every two classes: set decision_function_shape='ovr' of "
            f"{_name(_last_step(model))}, which needs no new fit"
        )
    return EstimatorModel(model, columns)


def _decides_pairs(estimator: Any) -> bool:
    """Whether decisions are those of support vector machines one against one; of three classes there are three, too."""
    return getattr(_last_step(estimator), "decision_function_shape", None) == "ovo"


def _last_step(estimator: Any) -> Any:
    """What decides in the end, inside searches and pipelines."""
    estimator = getattr(estimator, "best_estimator_", estimator)
    steps = getattr(estimator, "steps", None)
    return _last_step(steps[-1][1]) if steps else estimator


def _name(estimator: Any) -> str:
    return type(estimator).__name__


def _package(estimator: Any) -> str:
    return type(estimator).__module__.partition(".")[0]
