"""What this package must know of an ONNX file: how it ends, and how to ask it for one more output.

ONNX Runtime shows no weights, and the package `onnx` is large, so the few fields that matter are read here
(github.com/onnx/onnx/blob/main/onnx/onnx.proto).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from queen.errors import OptionError
from queen.models.protobuf import Field, read_fields, write_field

Floats = NDArray[np.float32]

GRAPH = 7  # of a model
NODE, INITIALIZER, OUTPUT = 1, 5, 12  # of a graph
INPUTS, OUTPUTS, KIND, ATTRIBUTE, DOMAIN = 1, 2, 4, 5, 7  # of a node
FLOAT, WHOLE, TENSOR, WHOLES, TEXTS = 2, 3, 5, 8, 9  # of an attribute, whose name is field 1
DIMS, NUMBERS, FLOATS, NAME, RAW, DOUBLES, ELSEWHERE, LOCATION = 1, 2, 4, 8, 9, 10, 13, 14  # of a tensor

PRECISIONS: Mapping[int, str] = {1: "<f4", 11: "<f8"}  # of weights that a head is made of; halves round too roughly
PASSING = ("Identity", "Dropout")  # operations that give on what they get, when nobody trains
SOFTMAX = ("Softmax", "LogSoftmax")
USUAL_DOMAINS = ("", "ai.onnx")
ZIP = "ai.onnx.ml.ZipMap"  # makes a dictionary of every row of probabilities


@dataclass(frozen=True)
class Node:
    """One operation: its kind (with its domain, if that is no usual one), the names of what it takes and gives, its
    attributes by name, and the names of classes that one of them lists."""

    kind: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: Mapping[str, Field]
    classes: Sequence[str | int] = ()

    def number(self, name: str, default: float) -> float:
        """An attribute that is a number."""
        field = self.attributes.get(name)
        if field is None:
            return default
        return field.whole if field.number == WHOLE else float(struct.unpack("<f", field.data)[0])


@dataclass(frozen=True)
class Head:
    """The linear layer that ends a model: the name of its input, its weight (K, D) and its bias (K,)."""

    features: str
    weight: Floats
    bias: Floats


@dataclass(frozen=True)
class Ending:
    """How a model ends: the name of its logits, the layer that makes them if it can be read, and whether the model goes
    on to return what a softmax (or its logarithm, or of a single one a sigmoid) makes of them."""

    logits: str
    head: Head | None
    squashed: bool


@contextmanager
def named_errors() -> Iterator[None]:
    """Whatever reading a damaged file may raise becomes an `OptionError`."""
    try:
        yield
    except OptionError:
        raise
    except (ValueError, KeyError, IndexError, struct.error) as error:
        raise OptionError(f"expected an ONNX model, got something else or a damaged file: {error}") from error


class Graph:
    """The operations and the constants of an ONNX file.

    `zipped` says of every output of dictionaries (of exporters of scikit-learn) which tensor it is made of, and `keys`
    of that tensor what its columns are called there.
    """

    def __init__(self, model: bytes) -> None:
        with named_errors():
            graphs = [field.data for field in read_fields(model) if field.number == GRAPH]
            fields = [field for graph in graphs for field in read_fields(graph)]
            nodes = [_read_node(field.data) for field in fields if field.number == NODE]
            tensors = [field.data for field in fields if field.number == INITIALIZER]
            self._constants = {_name_of(tensor): tensor for tensor in tensors}
        if not nodes:
            raise OptionError("expected an ONNX model, got a file without operations")
        self._makers = {name: node for node in nodes for name in node.outputs}
        self.zipped = {node.outputs[0]: node.inputs[0] for node in nodes if node.kind == ZIP}
        self.keys = {node.inputs[0]: node.classes for node in nodes if node.kind == ZIP}
        for node in nodes:
            if node.kind == "Constant" and "value" in node.attributes:
                self._constants[node.outputs[0]] = node.attributes["value"].data

    def ending(self, output: str, *, single: bool = False) -> Ending:
        """How the model comes to this output of two dimensions; `single` if it is one number a row."""
        logits, node = self._behind(output)
        squashed = node is not None and node.kind in SOFTMAX and node.number("axis", -1) in (1, -1)
        if single:
            squashed = node is not None and node.kind == "Sigmoid"
        if node is not None and squashed:
            logits, node = self._behind(node.inputs[0])
        return Ending(logits, self._head(node) if node else None, squashed)

    def _behind(self, name: str) -> tuple[str, Node | None]:
        """The same numbers where they are made, and what makes them."""
        node = self._makers.get(name)
        while node is not None and node.kind in PASSING:
            name = node.inputs[0]
            node = self._makers.get(name)
        return name, node

    def _head(self, node: Node) -> Head | None:
        """The layer that this operation is the end of, if it is linear and its numbers are constants."""
        if node.kind == "Gemm":
            if node.number("transA", 0):
                return None
            weight = self._constant(node.inputs[1])
            bias = self._constant(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else np.zeros(1)
            if weight is not None and not node.number("transB", 0):
                weight = weight.T
            if weight is None or bias is None:
                return None
            weight, bias = weight * node.number("alpha", 1), bias * node.number("beta", 1)
            return _make_head(node.inputs[0], weight, bias)
        if node.kind == "MatMul":
            weight = self._constant(node.inputs[1])
            return None if weight is None else _make_head(node.inputs[0], weight.T, np.zeros(1))
        if node.kind == "Add":
            for product, other in (node.inputs, reversed(node.inputs)):
                _, maker = self._behind(product)
                bias = self._constant(other)
                if maker is not None and maker.kind == "MatMul" and bias is not None:
                    weight = self._constant(maker.inputs[1])
                    return None if weight is None else _make_head(maker.inputs[0], weight.T, bias)
        return None

    def _constant(self, name: str) -> NDArray[np.floating] | None:
        """The numbers of a constant; None for what is computed, or of other precision."""
        name, _ = self._behind(name)
        tensor = self._constants.get(name)
        return None if tensor is None else _read_tensor(tensor)


def _make_head(features: str, weight: NDArray[np.floating], bias: NDArray[np.floating]) -> Head | None:
    if weight.ndim != 2 or bias.size not in (1, len(weight)):
        return None
    spread = np.broadcast_to(bias.reshape(-1), len(weight))
    return Head(features, np.ascontiguousarray(weight, np.float32), np.ascontiguousarray(spread, np.float32))


def _read_node(message: memoryview) -> Node:
    kind, domain, inputs, outputs, attributes = "", "", [], [], {}
    classes: list[str | int] = []
    for field in read_fields(message):
        if field.number == INPUTS:
            inputs.append(field.text)
        elif field.number == OUTPUTS:
            outputs.append(field.text)
        elif field.number == KIND:
            kind = field.text
        elif field.number == DOMAIN:
            domain = field.text
        elif field.number == ATTRIBUTE:
            fields = list(read_fields(field.data))
            parts = {part.number: part for part in fields}
            if 1 in parts and (value := parts.get(WHOLE) or parts.get(FLOAT) or parts.get(TENSOR)):
                attributes[parts[1].text] = value
            if 1 in parts and parts[1].text.startswith("classlabels_"):
                classes += (one.text for one in fields if one.number == TEXTS)
                classes += _wholes(fields, WHOLES)
    return Node(kind if domain in USUAL_DOMAINS else f"{domain}.{kind}", inputs, outputs, attributes, classes)


def _name_of(tensor: memoryview) -> str:
    return next((field.text for field in read_fields(tensor) if field.number == NAME), "")


def _read_tensor(tensor: memoryview) -> NDArray[np.floating] | None:
    fields = list(read_fields(tensor))
    precision = PRECISIONS.get(next((field.whole for field in fields if field.number == NUMBERS), 0))
    if precision is None:
        return None
    shape = _wholes(fields, DIMS)
    data = b"".join(field.data for field in fields if field.number in (RAW, FLOATS, DOUBLES))
    if len(data) != math.prod(shape) * np.dtype(precision).itemsize:
        return None
    numbers: NDArray[np.floating] = np.frombuffer(data, precision).reshape(shape)
    return numbers


def _wholes(fields: Sequence[Field], number: int) -> list[int]:
    """The whole numbers of a field that may come again and again: one a field, or all of them packed."""
    numbers: list[int] = []
    for field in fields:
        if field.number == number:
            numbers += [field.whole] if isinstance(field.value, int) else _packed(field.data)
    return numbers


def _packed(data: memoryview) -> list[int]:
    """Numbers one after the other: as the fields of a message would be, if each had a key."""
    numbers, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number - (1 << 64) if number >> 63 else number)
            number = shift = 0
    return numbers


def add_outputs(model: bytes, names: Sequence[str]) -> bytes:
    """The same model, which gives these too. A field that comes twice is joined, so the end is all that changes."""
    outputs = b"".join(write_field(OUTPUT, write_field(1, name.encode())) for name in names)
    return model + write_field(GRAPH, outputs) if names else model


def embed_weights(model: bytes, folder: Path) -> bytes:
    """The same model with all its weights inside: exporters leave large ones in files beside it, in `folder`."""
    with named_errors():
        return _embed_all(model, folder) if has_weights_elsewhere(model) else model


def has_weights_elsewhere(model: bytes) -> bool:
    """Whether some weights are in other files."""
    return any(map(_is_elsewhere, _tensors(model)))


def _embed_all(model: bytes, folder: Path) -> bytes:
    parts = []
    for field in read_fields(model):
        if field.number != GRAPH:
            parts.append(bytes(field.raw))
            continue
        graph = [
            write_field(INITIALIZER, _embed(one.data, folder)) if one.number == INITIALIZER else bytes(one.raw)
            for one in read_fields(field.data)
        ]
        parts.append(write_field(GRAPH, b"".join(graph)))
    return b"".join(parts)


def _is_elsewhere(tensor: memoryview) -> bool:
    return any(field.number == LOCATION and field.value for field in read_fields(tensor))


def _tensors(model: bytes) -> list[memoryview]:
    graphs = [field.data for field in read_fields(model) if field.number == GRAPH]
    return [field.data for graph in graphs for field in read_fields(graph) if field.number == INITIALIZER]


def _embed(tensor: memoryview, folder: Path) -> bytes:
    """A tensor with the numbers that lie in another file."""
    if not _is_elsewhere(tensor):
        return bytes(tensor)
    fields = list(read_fields(tensor))
    entries = [list(read_fields(field.data)) for field in fields if field.number == ELSEWHERE]
    where = {entry[0].text: entry[1].text for entry in entries}
    path = folder / where["location"]
    if not path.resolve().is_relative_to(folder.resolve()):
        raise OptionError(f"expected weights beside the ONNX file, got '{where['location']}', which leads elsewhere")
    try:
        with path.open("rb") as file:
            file.seek(int(where.get("offset", 0)))
            data = file.read(int(where.get("length", -1)))
    except OSError as error:
        raise OptionError(f"cannot read '{path}', which holds weights of the ONNX model: {error.strerror}") from error
    kept = b"".join(bytes(field.raw) for field in fields if field.number not in (ELSEWHERE, LOCATION))
    return kept + write_field(RAW, data)
