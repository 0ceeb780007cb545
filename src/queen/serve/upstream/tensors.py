"""Tensors as the protocol names and packs them: what is sent upstream, and what comes back, which nobody trusts."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from queen.errors import OptionError, UpstreamError

KINDS: Mapping[str, str] = {
    "BOOL": "?",
    "UINT8": "<u1",
    "INT8": "<i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}
LEAST, ROUNDING = 1e-6, 0.1  # the least probability, and how far the sum of rounded ones may be from 1
ANSWERED = ("FP32", "FP64", "FP16")  # datatypes of features and logits


@dataclass(frozen=True)
class SentTensor:
    """One input of a request."""

    name: str
    datatype: str
    array: NDArray[Any]


@dataclass(frozen=True)
class UpstreamReply:
    """Outputs (n, m) by name, and the version of the model that gave them."""

    outputs: Mapping[str, NDArray[np.float32]]
    version: str


def new_id() -> str:
    """A name for a request, by which its answer is known; KServe answers none without one."""
    return secrets.token_hex(8)


def check_reply(asked: str, answered: object, found: Mapping[str, Any], wanted: Sequence[str]) -> None:
    """Raise `UpstreamError` unless this answers the request of this name, and every wanted output came."""
    if answered not in (None, "", asked):
        raise _wrong("it answers another question")
    if missing := [name for name in wanted if name not in found]:
        raise _wrong(f"expected outputs {', '.join(wanted)}; {', '.join(missing)} did not come")


@dataclass(frozen=True)
class UpstreamMetadata:
    """What an upstream says of a model: the datatype of every input, and the names of its outputs; empty: not said."""

    inputs: Mapping[str, str]
    outputs: tuple[str, ...] = ()


def pack(name: str, tensor: Tensor, datatype: str | None) -> SentTensor:
    """A tensor in the datatype that the upstream takes, or in its own if the upstream does not say."""
    array = tensor.detach().cpu().numpy()
    if datatype is None:
        datatype = "FP32" if array.dtype.kind == "f" else "INT64"
    kind = KINDS.get(datatype)
    if kind is None or (array.dtype.kind == "f") != (np.dtype(kind).kind == "f"):
        raise OptionError(
            f"expected an upstream whose input '{name}' takes {'floats' if array.dtype.kind == 'f' else 'integers'}, "
            f"as the model was fitted with, got one that takes {datatype}"
        )
    packed = np.ascontiguousarray(array, kind)
    if packed.dtype.kind in "ui" and not np.array_equal(packed, array):
        raise UpstreamError(f"input '{name}' has numbers that are no {datatype}", "rejected")
    return SentTensor(name, datatype, packed)


def unpack(name: Any, datatype: Any, shape: Any, values: Any) -> NDArray[np.float32]:
    """One output (n, m) from its bytes, or from its numbers in lists; `UpstreamError` if it is not what it says."""
    if not isinstance(name, str) or datatype not in ANSWERED:
        raise _wrong(f"expected output '{name!s:.60}' as {' or '.join(ANSWERED)}, got {datatype!s:.60}")
    is_matrix = isinstance(shape, list) and len(shape) == 2 and all(type(size) is int and size > 0 for size in shape)
    if not is_matrix:
        raise _wrong(f"expected output '{name:.60}' of shape (rows, numbers), got {shape!s:.60}")
    count = shape[0] * shape[1]
    if isinstance(values, bytes | memoryview):
        kind = np.dtype(KINDS[datatype])
        if len(values) != count * kind.itemsize:
            raise _wrong(f"output '{name:.60}' has {len(values)} bytes, which is not its shape")
        array = np.frombuffer(values, kind)
    else:
        array = _from_numbers(name, values)
    if array.size != count:
        raise _wrong(f"output '{name:.60}' has {array.size} numbers, which is not its shape")
    with np.errstate(all="ignore"):  # what overflows is infinite
        floats = array.reshape(shape).astype(np.float32)
    if not np.isfinite(floats).all():
        raise _wrong(f"output '{name:.60}' holds NaN or infinity")
    return floats


def log_of(probabilities: NDArray[np.float32]) -> NDArray[np.float32]:
    """Logits that give these probabilities (n, K); `UpstreamError` if they are none."""
    if probabilities.min() < 0 or np.abs(probabilities.sum(1) - 1).max() > ROUNDING:
        raise _wrong("what it calls probabilities are none")
    return np.log(np.maximum(probabilities, LEAST))


def _from_numbers(name: str, values: object) -> NDArray[Any]:
    try:
        array = np.array(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise _wrong(f"the data of output '{name:.60}' are no numbers") from error
    if array.dtype.kind not in "fiu":
        raise _wrong(f"the data of output '{name:.60}' are no numbers")
    return array.reshape(-1)


def _wrong(message: str) -> UpstreamError:
    return UpstreamError(message, "unusable")
