"""Messages that nobody should send to ModelInfer: each must be refused."""

from __future__ import annotations

import numpy as np

from queen.serve.protocol import oip_pb2 as oip
from tests.support.grpc_stub import message, typed, wanting
from tests.support.rest_bodies import MAX_ROWS, pictures

NAN = np.full((1, 1, 8, 8), np.nan, np.float32)
NUMBERS = pictures().ravel().tolist()
INPUT = oip.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=[1, 1, 8, 8])
VALUE = oip.InferParameter
HOSTILE: dict[str, oip.ModelInferRequest | bytes] = {
    "noise": b"\xff" * 50,
    "cut": message().SerializeToString()[:-1],
    "endless number": b"\x08" + b"\xff" * 20,
    "group": b"\x0b\x0c",
    "length beyond the message": b"\x2a\x7f",
    "length huge": b"\x2a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    "name is no text": b"\n\x06digits\x12\x02\xff\xfe",
    "no inputs": message(inputs=[], raw_input_contents=[]),
    "raw without inputs": message(inputs=[]),
    "input twice": message(inputs=[INPUT, INPUT], raw_input_contents=[pictures().tobytes()] * 2),
    "other input": message(inputs=[oip.ModelInferRequest.InferInputTensor(name="x", datatype="FP32")]),
    "no data": message(raw_input_contents=[]),
    "raw twice": message(raw_input_contents=[pictures().tobytes()] * 2),
    "raw empty": message(raw_input_contents=[b""]),
    "raw one byte short": message(raw_input_contents=[pictures().tobytes()[:-1]]),
    "raw one byte long": message(raw_input_contents=[pictures().tobytes() + b"x"]),
    "raw and typed": typed("FP32", "fp32_contents", NUMBERS, raw_input_contents=[pictures().tobytes()]),
    "NaN raw": message(NAN),
    "NaN typed": typed("FP32", "fp32_contents", [float("nan"), *NUMBERS[1:]]),
    "infinity typed": typed("FP64", "fp64_contents", [float("inf"), *NUMBERS[1:]]),
    "beyond float32": typed("FP64", "fp64_contents", [1e39, *NUMBERS[1:]]),
    "too few typed": typed("FP32", "fp32_contents", NUMBERS[1:]),
    "too many typed": typed("FP32", "fp32_contents", [*NUMBERS, 1.0]),
    "typed in another field": typed("FP32", "fp64_contents", NUMBERS),
    "typed FP16": typed("FP16", "fp32_contents", NUMBERS),
    "strings": typed("BYTES", "bytes_contents", [b"1"] * 64),
    "booleans": typed("BOOL", "bool_contents", [True] * 64),
    "pixels": typed("UINT8", "uint_contents", [1] * 64),
    "no datatype": typed("", "fp32_contents", NUMBERS),
    "other shape": typed("FP32", "fp32_contents", NUMBERS, (1, 1, 4, 16)),
    "other rank": typed("FP32", "fp32_contents", NUMBERS, (64,)),
    "no shape": typed("FP32", "fp32_contents", NUMBERS, ()),
    "negative shape": typed("FP32", "fp32_contents", NUMBERS, (-1, 1, 8, 8)),
    "huge shape": typed("FP32", "fp32_contents", NUMBERS, (2**62, 1, 8, 8)),
    "no rows": typed("FP32", "fp32_contents", [], (0, 1, 8, 8)),
    "too many rows": message(pictures(MAX_ROWS + 1)),
    "id too long": message(id="a" * 257),
    "features": wanting("features"),
    "classification 0": wanting(classification=VALUE(int64_param=0)),
    "classification negative": wanting(classification=VALUE(int64_param=-1)),
    "classification true": wanting(classification=VALUE(bool_param=True)),
    "classification text": wanting(classification=VALUE(string_param="3")),
    "classification empty": wanting(classification=VALUE()),
    "shared memory": wanting(shared_memory_region=VALUE(string_param="a")),
    "many inputs": b"\x2a\x00" * 5000,
    "many outputs": b"\x32\x00" * 5000,
    "many parameters": b"\x22\x00" * 5000,
    "many fields in an input": b"\x2a\xa0\x1f" + b"\x22\x00" * 2000,
}
