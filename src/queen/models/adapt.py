"""One entrance for every kind of model."""

from __future__ import annotations

import copy
import os
from typing import Any

from torch import nn

from queen.errors import DtypeError, OptionError
from queen.models.called import CalledModel
from queen.models.estimator import read_estimator
from queen.models.onnx import read_onnx
from queen.models.outside import Gives, OutsideModel
from queen.models.xgb import read_xgboost

GIVES = (None, "features", "logits", "probabilities")


def as_module(
    model: Any,
    *,
    gives: Gives | None = None,
    output: str | None = None,
    classes: int | None = None,
    columns: int | None = None,
) -> nn.Module:
    """Any classifier as a torch module that can be guarded; `queen.protect` and `queen.load` call this themselves.

    Takes torch modules, ONNX Runtime sessions, ONNX files (a path or bytes), xgboost classifiers, fitted classifiers
    with the methods of scikit-learn, and with `classes` any function that maps an array (n, ...) to an array (n, K).
    `gives` says what of an ONNX model, a torch module or a function to look at: "logits" or "probabilities" alone;
    without it, the most that there is. `output` names the answer of an ONNX model with several. `columns` is how many
    numbers a row of a table has, for torch modules and functions; other models say so themselves, and 0 ignores them.
    """
    if gives not in GIVES:
        raise OptionError(f"gives must be features, logits, probabilities or None, got {gives!r}")
    if isinstance(model, nn.Module):
        return _network(uncompiled(model), gives, classes, columns)
    package = type(model).__module__.partition(".")[0]
    if isinstance(model, bytes | str | os.PathLike) or package == "onnxruntime":
        return read_onnx(model, output=output, gives=gives, classes=classes, columns=columns)
    if package == "xgboost":
        return read_xgboost(model, columns)
    if package == "transformers":
        raise DtypeError(
            f"expected a network, got a {type(model).__name__} of Hugging Face: give its network, queen.protect("
            "pipeline.model, ...), and as data what its tokenizer or image processor makes of texts or images"
        )
    if hasattr(model, "fit") and hasattr(model, "predict"):
        return read_estimator(model, columns)
    if callable(model) and not isinstance(model, type) and classes is not None:
        return CalledModel(model, classes, _alone(gives), columns or 0)
    raise DtypeError(
        "expected the model as a torch.nn.Module, an ONNX Runtime session or .onnx file, an xgboost or scikit-learn "
        f"classifier, got {type(model).__name__}: for a function from arrays to answers, "
        "queen.models.as_module(function, classes=...)"
    )


def uncompiled(model: nn.Module) -> nn.Module:
    """The module that `torch.compile` was given: compiled code does not stop where the features are."""
    model = getattr(model, "_orig_mod", model)
    if getattr(model, "_compiled_call_impl", None) is not None:  # model.compile(), in place
        model = copy.copy(model)
        model._compiled_call_impl = None
    return model


def _network(model: nn.Module, gives: Gives | None, classes: int | None, columns: int | None) -> nn.Module:
    if (gives is None and classes is None) or isinstance(model, OutsideModel):
        return model
    if gives == "features":
        return model
    if classes is None:
        raise OptionError(f"how many classes has it? queen.models.as_module(model, gives='{gives}', classes=...)")
    return CalledModel(model, classes, gives, columns or 0)


def _alone(gives: Gives | None) -> Gives | None:
    if gives == "features":
        raise OptionError("a function tells no features: gives must be logits, probabilities or None")
    return gives
