"""What every classifier of another library becomes: a module with a head, whose answers are logits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from queen.core.split import on_simplex
from queen.errors import HeadError, OptionError, ShapeError
from queen.recipe import Recipe
from queen.types import Inputs

Gives = Literal["features", "logits", "probabilities"]
"""What a model tells of its own: features and logits, logits alone, or probabilities alone."""

FAR = 10.0
"""Standard deviations beyond which a column is as far as it can be: one that hardly varies must not drown others."""

LEAST = 1e-3
"""Smallest probability that is told from 0, times the number of classes. Most that a forest gives are 0, and their
logarithms must be something. All together, the probabilities of an answer change by this much at most."""


SLACK = 0.5
"""By which probabilities may miss their sum of 1 and still be told from logits: those of many classes are rounded."""


def check_columns(wanted: int | None, width: int | None, is_table: bool = True) -> int:
    """How many columns to look at: all that the model takes, unless it is told to look at none, or it is not sure that
    it `is_table` what it takes."""
    if wanted not in (None, 0, width):
        raise OptionError(f"columns must be 0 or as many as the model takes, {width or 0}, got {wanted!r}")
    return (width if width and is_table else 0) if wanted is None else wanted


def two_of_one(answers: Tensor, gives: Gives | None) -> Tensor:
    """What a model says of two classes (n, 2) by one number (n, 1), which is for the second of them."""
    if gives is None:
        raise HeadError(
            "expected one answer a class, got one for two classes: say what it is, queen.models.as_module(model, "
            "gives='logits') or gives='probabilities'"
        )
    return torch.cat([1 - answers, answers] if gives == "probabilities" else [-answers / 2, answers / 2], 1)


def log_probabilities(probabilities: Tensor) -> Tensor:
    """Logits (n, K) of which a softmax makes these probabilities (n, K) again, but for the least ones."""
    return probabilities.clamp(min=LEAST / probabilities.shape[1]).log().log_softmax(1)


class OutsideModel(nn.Module):
    """A classifier of another library, as a module whose last layer is `head`.

    Where it tells no features, its logits (or log-probabilities) stand in for them, and beside them, for a model of
    tables, the columns of a row in standard deviations (`learn_columns`): what is unusual in a table shows there.
    A subclass runs it (`run`), and says where it comes from (`library`). `recipe` builds it again, empty.
    """

    library = ""
    takes_rows = False  # whether its inputs are rows of a table, whose whole numbers are no token ids
    centre: Tensor
    spread: Tensor
    own_labels: NDArray[Any] | None = None  # what the classes are called in training data, if not 0, 1, 2 and so on

    def __init__(self, classes: int, gives: Gives | None, *, features: int | None = None, columns: int = 0) -> None:
        """`gives` None: whether it gives logits or probabilities is seen when it first runs."""
        super().__init__()
        if classes < 2:
            raise OptionError(f"expected a classifier of at least 2 classes, got {classes}")
        self.gives, self.columns = gives, columns
        self.takes_rows = self.takes_rows or columns > 0
        self.head = nn.Linear(features or classes + columns, classes)
        with torch.no_grad():
            self.head.weight.copy_(torch.eye(*self.head.weight.shape))
            self.head.bias.zero_()
        self.head.requires_grad_(False)
        if columns:
            self.register_buffer("centre", torch.zeros(columns))
            self.register_buffer("spread", torch.ones(columns))
        self.class_names: tuple[str, ...] | None = None

    def learn_columns(self, batches: Iterable[Tensor]) -> None:
        """Take mean and standard deviation of every column from the training rows; one that never varies keeps 1."""
        count, total, squares = 0, torch.zeros(self.columns).double(), torch.zeros(self.columns).double()
        for x in batches:
            if x.ndim != 2 or x.shape[1] != self.columns:
                raise ShapeError(f"expected rows of shape (n, {self.columns}), got {tuple(x.shape)}")
            rows = x.double().cpu()
            count, total, squares = count + len(rows), total + rows.sum(0), squares + rows.square().sum(0)
        centre = total / max(count, 1)
        spread = (squares / max(count, 1) - centre.square()).clamp(min=0).sqrt()
        spread[spread <= 1e-6 * centre.abs()] = 1.0
        spread[spread == 0] = 1.0
        self.centre.copy_(centre)
        self.spread.copy_(spread)

    def run(self, x: Inputs) -> tuple[Tensor | None, Tensor]:
        """The features (n, D) of a batch, if the model tells them, and what it answers (n, K)."""
        raise NotImplementedError

    @property
    def recipe(self) -> Recipe | None:
        """How a bundle builds this module again, to be filled with its weights."""
        return None

    @property
    def scores(self) -> tuple[str, ...] | None:
        """What the sentinel should measure of its queries; None: the usual.

        Log-probabilities have an energy of 0, so confidence takes its place. The logits of two classes are one number
        and its negative, which point one of two ways, so they have no neighbours.
        """
        if self.gives == "probabilities":
            return ("distance", "confidence", "knn")
        if self.gives == "logits" and self.head.in_features == 2:
            return ("energy", "distance")
        return None

    def describe(self) -> str:
        """For the report: what kind of model this is, and what the guard sees of it."""
        if self.gives == "features":
            return f"{self.library}: features and logits"
        seen = "probabilities alone; their logarithms" if self.gives == "probabilities" else "logits alone; they"
        beside = f" and its {self.columns} columns" if self.columns else ""
        kept = ", so a bundle holds rows of the data" if self.columns else ""
        return f"{self.library}: {seen}{beside} stand in for features{kept}"

    def forward(self, x: Tensor | None = None, **named: Tensor) -> Tensor:
        """A batch -> logits (n, K), passing by the head, where others find the features."""
        features, logits = self.run(named if x is None else x)
        if logits.ndim == 2 and logits.shape[1] == 1 and self.head.out_features == 2:
            logits = two_of_one(logits, self.gives)
        if logits.ndim != 2 or logits.shape[1] != self.head.out_features:
            raise HeadError(f"expected answers (n, {self.head.out_features}) from the model, got {tuple(logits.shape)}")
        if self.gives is None:
            self.gives = "probabilities" if on_simplex(logits) else "logits"
        if self.gives == "probabilities":
            if not on_simplex(logits, SLACK):
                low, high = (f"{t.item():.3g}" for t in logits.aminmax())
                raise HeadError(
                    f"expected probabilities from the model, got answers from {low} to {high} that do not add up to 1: "
                    "if they are logits, say queen.models.as_module(model, gives='logits')"
                )
            logits = log_probabilities(logits)
        if features is None:
            features = logits
            if self.columns and x is not None:
                scaled = ((x.to(self.centre) - self.centre) / self.spread).clamp(-FAR, FAR)
                features = torch.cat([logits, scaled.to(logits)], 1)
        self.head(features)
        return logits


class StoredModel(OutsideModel):
    """One that is a file, whose bytes travel with the weights of the module: a bundle needs nothing else.

    A subclass makes of these bytes what runs (`open`), again whenever they or their device change.
    """

    file: Tensor

    def __init__(
        self, file: bytes | int, classes: int, gives: Gives | None, *, features: int | None = None, columns: int = 0
    ) -> None:
        """`file` is its bytes, or only how many they will be."""
        super().__init__(classes, gives, features=features, columns=columns)
        stored = torch.zeros(file, dtype=torch.uint8) if isinstance(file, int) else to_tensor(file)
        self.register_buffer("file", stored)
        self._engine: Any = None
        self.register_load_state_dict_post_hook(_forget)  # type: ignore[no-untyped-call]

    def open(self, file: bytes) -> Any:
        """What runs the model of this file."""
        raise NotImplementedError

    @property
    def engine(self) -> Any:
        """What runs the model; opened when it is first needed."""
        if self._engine is None:
            self._engine = self.open(self.file.cpu().numpy().tobytes())
        return self._engine

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_engine": None}  # sessions cannot be copied

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> StoredModel:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._engine = None
        return self


def _forget(module: StoredModel, _: object) -> None:
    module._engine = None


def to_tensor(data: bytes) -> Tensor:
    """Bytes (n,) as a tensor of their own."""
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def to_numpy(x: Inputs) -> NDArray[Any] | dict[str, NDArray[Any]]:
    """A batch as arrays."""
    if isinstance(x, Mapping):
        return {name: t.cpu().numpy() for name, t in x.items()}
    return x.cpu().numpy()
