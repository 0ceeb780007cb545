"""Images in bytes: a model whose data are uint8 takes UINT8, in every form, and nothing that is no byte."""

from __future__ import annotations

import numpy as np
import orjson
import pytest
import torch
from torch import nn

import queen
from queen.errors import RangeError, ShapeError
from queen.serve.protocol import oip_pb2 as oip
from queen.serve.protocol.grpc_messages import read_message
from queen.serve.protocol.rest_read import read_query
from queen.serve.types import ModelSpec, Query, ServeError, TensorSpec, describe
from tests.support.guards import QUICK, held_out, images, train_set, trained

SPEC = ModelSpec("digits", "1", (TensorSpec("input", "UINT8", (-1, 1, 8, 8)),), 10)
FORMS = ("json", "binary", "typed", "raw")


class Prepared(nn.Module):
    """A network that prepares bytes itself."""

    def __init__(self):
        super().__init__()
        self.network = trained("cnn")

    def forward(self, x):
        return self.network(x.float() / 16)


def pictures(x) -> torch.Tensor:
    return images(x * 16).round().byte()


@pytest.fixture(scope="module")
def guard() -> queen.Guard:
    x, y = train_set()
    held = pictures(held_out()[0][:300])
    return queen.protect(Prepared(), (pictures(x), y), calibration=held, policy="paper", mapping=QUICK, progress=False)


def ask(form: str, x: np.ndarray, datatype: str = "UINT8") -> Query:
    raw = x.astype({"UINT8": "u1", "INT64": "<i8"}[datatype]).tobytes()
    if form in ("json", "binary"):
        tensor = {"name": "input", "datatype": datatype, "shape": list(x.shape)}
        own = {"data": x.ravel().tolist()} if form == "json" else {"parameters": {"binary_data_size": len(raw)}}
        head = orjson.dumps({"inputs": [tensor | own]})
        body, length = (head, None) if form == "json" else (head + raw, len(head))
        return read_query(body, length, SPEC, max_rows=100)
    message = oip.ModelInferRequest(model_name="digits")
    tensor = message.inputs.add(name="input", datatype=datatype, shape=x.shape)
    if form == "raw":
        message.raw_input_contents.append(raw)
    else:
        field = {"UINT8": "uint_contents", "INT64": "int64_contents"}[datatype]
        getattr(tensor.contents, field).extend(x.ravel().tolist())
    return read_message(message.SerializeToString(), SPEC, max_rows=100)


def test_a_model_of_bytes_says_so(guard):
    assert describe(guard.bundle, "digits").inputs == SPEC.inputs


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("datatype", ["UINT8", "INT64"])
def test_bytes_arrive_as_bytes(form, datatype):
    x = pictures(held_out()[0][:3])
    query = ask(form, x.numpy(), datatype)
    assert query.inputs.dtype == torch.uint8
    assert torch.equal(query.inputs, x)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [256, -1])
def test_what_is_no_byte_is_refused(form, value):
    x = pictures(held_out()[0][:1]).numpy().astype(np.int64)
    x[0, 0, 0, 0] = value
    with pytest.raises(ServeError, match="from 0 to"):
        ask(form, x, "INT64")


def test_the_guard_takes_bytes_of_the_right_shape_alone(guard):
    x = pictures(held_out()[0][:5])
    expected = guard.answer(x, client="a").probabilities
    assert torch.equal(guard.answer(x.long(), client="a").probabilities, expected)
    assert np.array_equal(guard.answer(x.numpy(), client="a").probabilities, expected.numpy())
    with pytest.raises(RangeError, match="from 0 to 255"):
        guard.answer(x.long() + 256, client="a")
    with pytest.raises(ShapeError):
        guard.answer(x[:, :, :7], client="a")


def test_bytes_are_images_to_the_fit_as_well(guard):
    """Shuffled patches tell how soon thieves are caught, and a contrast that no image had is refused."""
    calibrated = queen.calibrate(guard, pictures(held_out()[0][:300]), progress=False)
    assert calibrated.report["foreign"] == "noise and shuffled patches"
    assert guard.bundle.input_range == (0.0, 16.0)
    with pytest.raises(RangeError, match="from 0 to 16 as in the fitted images, got 0 to 255"):
        guard.answer(torch.tensor([0, 255], dtype=torch.uint8).repeat(32).view(1, 1, 8, 8), client="a")
