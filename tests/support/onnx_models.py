"""ONNX files of the tests' networks, made by hand with the package `onnx`: with every ending that exporters write."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from tests.support.guards import trained

ENDINGS: dict[str, list[onnx.NodeProto]] = {
    "gemm": [helper.make_node("Gemm", ["u", "w", "b"], ["y"], transB=1)],
    "gemm scaled": [helper.make_node("Gemm", ["u", "half", "b"], ["y"], alpha=2.0, beta=1.0)],
    "matmul": [helper.make_node("MatMul", ["u", "wt"], ["m"]), helper.make_node("Add", ["m", "b"], ["y"])],
    "matmul turned": [helper.make_node("MatMul", ["u", "wt"], ["m"]), helper.make_node("Add", ["b", "m"], ["y"])],
    "identity": [
        helper.make_node("Gemm", ["u", "w", "b"], ["i"], transB=1),
        helper.make_node("Identity", ["i"], ["y"]),
    ],
    "softmax": [
        helper.make_node("Gemm", ["u", "w", "b"], ["l"], transB=1),
        helper.make_node("Softmax", ["l"], ["y"], axis=1),
    ],
    "log softmax": [
        helper.make_node("Gemm", ["u", "w", "b"], ["l"], transB=1),
        helper.make_node("LogSoftmax", ["l"], ["y"], axis=-1),
    ],
    "hidden weights": [  # computed, so they cannot be read
        helper.make_node("Neg", ["w"], ["n"]),
        helper.make_node("Neg", ["n"], ["v"]),
        helper.make_node("Gemm", ["u", "v", "b"], ["y"], transB=1),
    ],
    "hidden softmax": [  # written out, so nobody sees what it is
        helper.make_node("Gemm", ["u", "w", "b"], ["l"], transB=1),
        helper.make_node("Exp", ["l"], ["e"]),
        helper.make_node("ReduceSum", ["e", "one"], ["s"], keepdims=1),
        helper.make_node("Div", ["e", "s"], ["y"]),
    ],
}


def zip_rows(model: bytes, keys: Sequence[str | int]) -> bytes:
    """The same file, whose answers are rows of dictionaries, as exporters of scikit-learn write them by default."""
    zipped = onnx.load_from_string(model)
    kind = "strings" if isinstance(keys[0], str) else "int64s"
    options = {f"classlabels_{kind}": list(keys)}
    zipped.graph.node.append(helper.make_node("ZipMap", ["y"], ["rows"], domain="ai.onnx.ml", **options))
    key = TensorProto.STRING if kind == "strings" else TensorProto.INT64
    row = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    zipped.graph.output[0].CopyFrom(helper.make_value_info("rows", helper.make_sequence_type_proto(row)))
    zipped.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return bytes(zipped.SerializeToString())


def one_answer(w: np.ndarray, b: float, *, last: str = "Sigmoid", domain: str = "") -> bytes:
    """A classifier of two classes that answers with a single number (n, 1): the weights w (D,) of a linear layer, and
    what comes after it (nothing, if that is empty)."""
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["z" if last else "y"])]
    if last:
        nodes.append(helper.make_node(last, ["z"], ["y"], domain=domain))
    constants = {"w": w.reshape(-1, 1).astype(np.float32), "b": np.array([b], np.float32)}
    tensors = [numpy_helper.from_array(v, k) for k, v in constants.items()]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", len(w)])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])]
    graph = helper.make_graph(nodes, "one", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def make_onnx(ending: str = "gemm", *, rows: int | str = "n", dtype: int = TensorProto.FLOAT) -> bytes:
    """The trained MLP on 64 numbers as an ONNX file; `rows` may fix the size of a batch."""
    layers = [m for m in trained("mlp") if isinstance(m, nn.Linear)]
    (w0, b0), (w, b) = [[p.detach().numpy() for p in layer.parameters()] for layer in layers]
    constants = {"w0": w0, "b0": b0, "w": w, "wt": w.T, "half": w.T / 2, "b": b, "one": np.array([1])}
    nodes = [
        *([helper.make_node("Cast", ["x"], ["c"], to=TensorProto.FLOAT)] if dtype != TensorProto.FLOAT else []),
        helper.make_node("Gemm", ["x" if dtype == TensorProto.FLOAT else "c", "w0", "b0"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["u"]),
        *ENDINGS[ending],
    ]
    used = {name for node in nodes for name in node.input}
    tensors = [numpy_helper.from_array(np.ascontiguousarray(v), k) for k, v in constants.items() if k in used]
    inputs = [helper.make_tensor_value_info("x", dtype, [rows, 64])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 10])]
    graph = helper.make_graph(nodes, "mlp", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())
