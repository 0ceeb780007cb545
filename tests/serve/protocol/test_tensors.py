"""Shapes that clients claim: each is what the model takes, or refused by name, in every form a tensor may come in."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queen.serve.protocol import oip_pb2 as oip
from queen.serve.protocol.grpc_messages import read_message
from queen.serve.protocol.rest_read import read_query
from queen.serve.types import Query, ServeError, TensorSpec
from tests.support.rest_bodies import MAX_ROWS, TEXT

SIZES = st.sampled_from([-(2**63), -(2**32), -3, -1, 0, 1, 2, 3, 4, 5, 2**31, 2**32, 2**62, 2**63 - 1])
SHAPES = st.lists(SIZES, max_size=4)
FORMS = ("json", "binary", "typed", "raw")


def ask(form: str, shape: list[int], numbers: list[int], rank: int) -> Query:
    """What the server makes of token ids of this shape: JSON or bytes over REST, typed or raw over gRPC."""
    spec = replace(TEXT, inputs=(TensorSpec("input_ids", "INT64", (-1,) * rank),))
    raw = np.array(numbers, "<i8").tobytes()
    if form in ("json", "binary"):
        tensor = {"name": "input_ids", "datatype": "INT64", "shape": shape}
        own = {"data": numbers} if form == "json" else {"parameters": {"binary_data_size": len(raw)}}
        head = orjson.dumps({"inputs": [tensor | own]})
        body, length = (head, None) if form == "json" else (head + raw, len(head))
        return read_query(body, length, spec, max_rows=MAX_ROWS)
    tensor = oip.ModelInferRequest.InferInputTensor(name="input_ids", datatype="INT64", shape=shape)
    message = oip.ModelInferRequest(model_name=spec.name, inputs=[tensor])
    if form == "typed":
        message.inputs[0].contents.int64_contents.extend(numbers)
    else:
        message.raw_input_contents.append(raw)
    return read_message(message.SerializeToString(), spec, max_rows=MAX_ROWS)


@pytest.mark.parametrize("form", FORMS)
@given(SHAPES, st.integers(0, 12), st.integers(1, 3))
@example([-1, -1], 1, 2)  # one number, as its shape says
@example([-1, -3], 3, 2)
@example([-1], 1, 1)
@example([2**32, 2**32], 0, 2)  # a product that is 0 in 64 bits
@example([], 1, 1)
@example([0], 0, 1)
@example([1, 0], 0, 2)
@example([1, 2**63 - 1], 0, 2)
def test_a_shape_is_taken_literally_or_refused(form: str, shape: list[int], count: int, rank: int) -> None:
    fits = len(shape) == rank and all(size > 0 for size in shape) and math.prod(shape) == count
    if fits and shape[0] <= MAX_ROWS:
        query = ask(form, shape, list(range(count)), rank)
        (ids,) = query.inputs.values() if isinstance(query.inputs, dict) else [query.inputs]
        assert (query.rows, list(ids.shape), ids.flatten().tolist()) == (shape[0], shape, list(range(count)))
        return
    with pytest.raises(ServeError) as caught:
        ask(form, shape, list(range(count)), rank)
    assert caught.value.status in (400, 413)
