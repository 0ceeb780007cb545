"""The words of the server: the model, who asks, what is asked, and what can go wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from queen.bundle.bundle import Bundle
from queen.core import inputs
from queen.core.split import id_bounds
from queen.types import Inputs

OUTPUT = "probabilities"
REFUSED = "refused"  # the output that marks refused rows where a request may be answered in part
INPUT = "input"  # name of the only input of a model that takes one tensor
LARGE_BYTES = 1 << 18  # bytes of a request that takes milliseconds to parse, and is parsed in a thread
MANY_NUMBERS = 1 << 11  # numbers of an answer that takes a good part of a millisecond, and is written in a thread

DATATYPES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "FP32": torch.float32,
    "FP64": torch.float64,
}
"""Datatypes of the protocol that a tensor may come in; BF16 and BYTES are refused."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of the model as its metadata shows it; -1 stands for any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def holds_ids(self) -> bool:
        """Whether it holds token ids, of which a row may have any number, and no other whole numbers."""
        return self.datatype == "INT64" and all(size == -1 for size in self.shape)


@dataclass(frozen=True)
class ModelSpec:
    """What clients may know of the model: names, shapes and classes, and nothing of what was fitted."""

    name: str
    version: str
    inputs: tuple[TensorSpec, ...]
    classes: int
    class_names: tuple[str, ...] | None = None
    digits: int | None = None  # decimals of every answer, if they are rounded

    @cached_property
    def longest_name(self) -> int:
        """Bytes of the longest class name."""
        return max((len(name.encode()) for name in self.class_names or ()), default=0)

    @cached_property
    def inputs_by_name(self) -> Mapping[str, TensorSpec]:
        """The inputs, in order."""
        return {tensor.name: tensor for tensor in self.inputs}

    @property
    def output(self) -> TensorSpec:
        """The only output that clients can ask for."""
        return TensorSpec(OUTPUT, "FP32", (-1, self.classes))


def describe(bundle: Bundle, name: str, version: str = "1", *, digits: int | None = None) -> ModelSpec:
    """The bundle's model as clients see it, by the type of its probe: floats as FP32, bytes (images in uint8) as UINT8,
    token ids as INT64 of any length, whole numbers of a table as INT64 in its shape; `digits` of answers."""
    parts = inputs.tensors(bundle.probe.x)
    single = not isinstance(bundle.probe.x, Mapping)
    takes_ids = id_bounds(bundle.split.model) is not None
    tensors = tuple(
        TensorSpec(
            INPUT if single else key,
            "FP32" if t.is_floating_point() else "UINT8" if t.dtype == torch.uint8 else "INT64",
            (-1,) * t.ndim if takes_ids and inputs.is_of_any_length(t) else (-1, *t.shape[1:]),
        )
        for key, t in parts.items()
    )
    return ModelSpec(name, version, tensors, bundle.probe.logits.shape[1], bundle.class_names, digits)


@dataclass(frozen=True)
class Caller:
    """Who asks, as the key says: the ledger's client, its groups, and whether it may operate the server."""

    client: str
    groups: tuple[str, ...] = ()
    admin: bool = False
    key: str = ""  # the key's public part, for the log


@dataclass(frozen=True)
class AnswerFormat:
    """How the answer is to be written: as raw bytes or JSON numbers, or as the `classification` best classes."""

    binary: bool = False
    classification: int = 0  # 0: the vector itself


PLAIN = AnswerFormat()


@dataclass(frozen=True)
class Query:
    """One request: a batch for the model (on the CPU), and how to answer."""

    inputs: Inputs
    rows: int
    id: str = ""
    answer_format: AnswerFormat = PLAIN
    partial: bool = False  # whether refused rows are marked, instead of an error for all


class ServeError(Exception):
    """An error for the client: an HTTP status, one line of text, after how many seconds to try again, refused rows."""

    def __init__(
        self, status: int, message: str, *, retry_after: int | None = None, rows: tuple[int, ...] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after
        self.rows = rows
