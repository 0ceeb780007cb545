"""Requests and answers survive the wire, in every form, and all answers of one form have one length."""

from __future__ import annotations

import base64
import json
import struct
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from queen.sentinel.rounding import round_answers
from queen.serve.protocol.rest_read import read_query
from queen.serve.protocol.rest_write import clean, error_body, model_metadata, server_metadata, to_json, write_answer
from queen.serve.types import AnswerFormat, ModelSpec, Query, ServeError, TensorSpec
from tests.support.rest_bodies import DIGITS, MAX_ROWS, TEXT, ask, ask_raw, entry, pictures

FLOATS = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64}
IDS = {f"{sign}{size}": np.dtype(f"{sign.lower()}{size}") for sign in ("INT", "UINT") for size in (8, 16, 32, 64)}
NAMED = replace(DIGITS, class_names=("zero", "one", 'two "2"', "drei:3", "vier\n", "fünf", "", "七", "eight", "nine"))


@st.composite
def _batches(draw: st.DrawFn, datatypes: dict[str, Any]) -> tuple[str, NDArray[Any]]:
    name = draw(st.sampled_from(sorted(datatypes)))
    kind = np.dtype(datatypes[name])
    shape = draw(hnp.array_shapes(min_dims=2, max_dims=4, max_side=4))
    if kind.kind == "f":
        elements = st.floats(-1e4, 1e4, width=16 if kind.itemsize == 2 else 32)
    else:
        elements = st.integers(0, min(int(np.iinfo(kind).max), 2**63 - 1))
    return name, draw(hnp.arrays(kind, shape, elements=elements))


def _read_every_way(spec: ModelSpec, datatype: str, array: NDArray[Any]) -> list[Query]:
    part: dict[str, Any] = {"name": spec.inputs[0].name, "datatype": datatype, "shape": list(array.shape)}
    flat, nested = ({"inputs": [{**part, "data": data}]} for data in (array.ravel().tolist(), array.tolist()))
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    head = orjson.dumps({"inputs": [{**part, "parameters": {"binary_data_size": len(little)}}]})
    read = [read_query(orjson.dumps(body), None, spec, max_rows=MAX_ROWS) for body in (flat, nested)]
    return [*read, read_query(head + little, len(head), spec, max_rows=MAX_ROWS)]


@settings(max_examples=150, deadline=None)
@given(_batches(FLOATS))
def test_floats_arrive_as_float32(sent: tuple[str, NDArray[Any]]) -> None:
    datatype, array = sent
    spec = replace(DIGITS, inputs=(TensorSpec("input", "FP32", (-1, *array.shape[1:])),))
    for query in _read_every_way(spec, datatype, array):
        assert isinstance(query.inputs, torch.Tensor)
        assert query.rows == len(array)
        assert query.inputs.dtype == torch.float32
        np.testing.assert_array_equal(query.inputs.numpy(), array.astype(np.float32))
        query.inputs.add_(1)  # a copy of its own


@settings(max_examples=150, deadline=None)
@given(_batches(IDS))
def test_token_ids_arrive_as_int64(sent: tuple[str, NDArray[Any]]) -> None:
    datatype, array = sent
    spec = replace(TEXT, inputs=(TensorSpec("input_ids", "INT64", (-1,) * array.ndim),))
    for query in _read_every_way(spec, datatype, array):
        assert isinstance(query.inputs, dict)
        assert query.inputs["input_ids"].dtype == torch.int64
        np.testing.assert_array_equal(query.inputs["input_ids"].numpy(), array.astype(np.int64))


def test_whole_numbers_of_a_table_may_be_negative_and_come_in_its_shape() -> None:
    table = ModelSpec("table", "1", (TensorSpec("input", "INT64", (-1, 3)),), 10)
    rows = np.array([[-5, 0, 7], [2**62, -(2**62), 1]])
    for query in _read_every_way(table, "INT64", rows):
        np.testing.assert_array_equal(query.inputs, rows)
    for wrong, says in ((rows[:, :2], "shape"), (rows * 1.5, "fractions|floats|FP")):
        body = {"name": "input", "datatype": "INT64", "shape": list(wrong.shape), "data": wrong.ravel().tolist()}
        with pytest.raises(ServeError, match=says):
            read_query(orjson.dumps({"inputs": [body]}), None, table, max_rows=MAX_ROWS)


def test_json_and_binary_inputs_mix_in_any_order() -> None:
    ids, mask = np.array([[5, 6, 7], [8, 9, 0]]), np.array([[1, 1, 1], [1, 1, 0]])
    parts = [
        {"name": "attention_mask", "datatype": "INT32", "shape": [2, 3], "parameters": {"binary_data_size": 24}},
        {"name": "input_ids", "datatype": "INT64", "shape": [2, 3], "data": ids.tolist()},
    ]
    for order in (parts, parts[::-1]):
        head = orjson.dumps({"inputs": order})
        query = read_query(head + mask.astype("<i4").tobytes(), len(head), TEXT, max_rows=MAX_ROWS)
        assert isinstance(query.inputs, dict)
        assert list(query.inputs) == ["input_ids", "attention_mask"]
        np.testing.assert_array_equal(query.inputs["input_ids"].numpy(), ids)
        np.testing.assert_array_equal(query.inputs["attention_mask"].numpy(), mask)


def test_whole_numbers_are_floats_too() -> None:
    query = read_query(ask(entry(data=[0, 1] * 31 + [2**64 - 1, -3])), None, DIGITS, max_rows=1)
    assert isinstance(query.inputs, torch.Tensor)
    assert query.inputs.ravel()[-2:].tolist() == [2.0**64, -3.0]


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, AnswerFormat()),
        ({"outputs": []}, AnswerFormat()),
        ({"outputs": None, "parameters": None, "id": None}, AnswerFormat()),
        ({"outputs": [{"name": "probabilities"}]}, AnswerFormat()),
        ({"parameters": {"binary_data_output": True}}, AnswerFormat(binary=True)),
        ({"parameters": {"sequence_id": 7, "priority": 1, "timeout": 10, "own": {"a": [1]}}}, AnswerFormat()),
        ({"outputs": [{"name": "probabilities", "parameters": {"binary_data": True}}]}, AnswerFormat(binary=True)),
        ({"outputs": [{"name": "probabilities", "parameters": {"classification": 3.0}}]}, AnswerFormat(False, 3)),
        (
            {
                "parameters": {"binary_data_output": True},
                "outputs": [{"name": "probabilities", "parameters": {"binary_data": False, "classification": 99}}],
            },
            AnswerFormat(classification=99),
        ),
    ],
)
def test_what_is_wanted(changes: dict[str, Any], wanted: AnswerFormat) -> None:
    assert read_query(ask(**changes), None, DIGITS, max_rows=1).answer_format == wanted


def test_errors_say_expected_and_got() -> None:
    for body, words in {
        ask(entry(name="images")): ("['input']", "['images']"),
        ask(entry(shape=[1, 3, 8, 8])): ("[-1, 1, 8, 8]", "[1, 3, 8, 8]"),
        ask(entry(datatype="UINT8")): ("FP32 or FP64 or FP16", "'UINT8'", "send floats as the model was trained on"),
        ask(entry(data=[True] * 64)): ("numbers", "booleans"),
        ask(outputs=[{"name": "features"}]): ("['probabilities']", "['features']"),
        ask(entry(shape=[9, 1, 8, 8])): ("at most 4 rows", "9"),
    }.items():
        with pytest.raises(ServeError) as caught:
            read_query(body, None, DIGITS, max_rows=MAX_ROWS)
        assert all(word in caught.value.message for word in words), caught.value.message


def _simplex(rows: int, classes: int, seed: int) -> NDArray[np.float32]:
    """Vectors of every kind: usual, nearly certain, certain, tiny, and rounded slightly out of [0, 1]."""
    rng = np.random.default_rng(seed)
    found = rng.dirichlet(np.full(classes, rng.choice([0.01, 0.1, 1, 100])), rows).astype(np.float32)
    kind = rng.integers(5)
    if kind == 1:
        found = np.eye(classes, dtype=np.float32)[rng.integers(classes, size=rows)]
    elif kind == 2:
        found *= np.float32(1e-41)
    elif kind == 3:
        found = np.where(found == found.max(1, keepdims=True), np.float32(1.0000001), np.float32(-0.0))
    elif kind == 4:
        found = np.full((rows, classes), 1 / classes, np.float32)
    return found


FORMS = [AnswerFormat(binary=binary, classification=best) for binary in (False, True) for best in (0, 1, 3, 10, 50)]


@pytest.mark.parametrize("wanted", FORMS, ids=str)
@pytest.mark.parametrize("spec", [DIGITS, NAMED, replace(DIGITS, classes=101)], ids=["plain", "named", "101 classes"])
def test_all_answers_of_one_form_have_one_length(spec: ModelSpec, wanted: AnswerFormat) -> None:
    for rows in (1, 3):
        query = Query(torch.zeros(1), rows, "an id", wanted)
        answers = [write_answer(query, clean(_simplex(rows, spec.classes, seed)), spec) for seed in range(60)]
        assert len({len(body) for body, _ in answers}) == 1
        assert len({split for _, split in answers}) == 1
        assert len({body for body, _ in answers}) > 10  # though they differ


@pytest.mark.parametrize("wanted", FORMS, ids=str)
@pytest.mark.parametrize("decimals", [1, 3, 6])
def test_rounded_answers_are_written_with_their_decimals_and_all_as_long(wanted: AnswerFormat, decimals: int) -> None:
    spec, query = replace(NAMED, digits=decimals), Query(torch.zeros(1), 2, "", wanted)
    rows = [round_answers(torch.from_numpy(_simplex(2, 10, 7 * seed)), decimals) for seed in range(30)]
    rows += [torch.eye(10)[:2]]
    bodies = [write_answer(query, clean(row.numpy()), spec)[0] for row in rows]
    assert len({len(body) for body in bodies}) == 1
    if wanted == AnswerFormat():
        for row, body in zip(rows, bodies, strict=True):
            assert np.array_equal(np.array(json.loads(body)["outputs"][0]["data"], np.float32), row.numpy().ravel())
            numbers = body.partition(b"[[")[0].rpartition(b"[")[2].rstrip(b"]}").split(b",")
            assert {len(number) for number in numbers} == {2 + decimals}


def test_plain_json_would_tell_by_its_length() -> None:
    assert len({len(json.dumps(_simplex(1, 10, seed).tolist())) for seed in range(60)}) > 10


@settings(max_examples=200, deadline=None)
@given(hnp.arrays(np.float32, st.tuples(st.integers(1, 4), st.just(10)), elements=st.floats(0, 1, width=32)))
def test_probabilities_arrive_bit_for_bit(sent: NDArray[np.float32]) -> None:
    query = Query(torch.zeros(1), len(sent), 'say "é"')
    body, split = write_answer(query, sent, DIGITS)
    reply = json.loads(body)
    output = reply["outputs"][0]
    assert split is None
    assert (reply["model_name"], reply["model_version"], reply["id"]) == ("digits", "1", query.id)
    assert (output["name"], output["datatype"], output["shape"]) == ("probabilities", "FP32", list(sent.shape))
    np.testing.assert_array_equal(np.array(output["data"], np.float32).reshape(sent.shape), sent)
    raw_body, split = write_answer(replace(query, answer_format=AnswerFormat(binary=True)), sent, DIGITS)
    assert split is not None
    output = json.loads(raw_body[:split])["outputs"][0]
    assert output["parameters"]["binary_data_size"] == sent.nbytes == len(raw_body) - split
    np.testing.assert_array_equal(np.frombuffer(raw_body[split:], "<f4").reshape(sent.shape), sent)


def test_an_id_is_echoed_only_if_given() -> None:
    answer = np.full((1, 10), 0.1, np.float32)
    assert "id" not in json.loads(write_answer(Query(torch.zeros(1), 1), answer, DIGITS)[0])
    given_id = read_query(ask(id="x" * 256), None, DIGITS, max_rows=1)
    assert json.loads(write_answer(given_id, answer, DIGITS)[0])["id"] == "x" * 256


def _labels(query: Query, answer: NDArray[np.float32], spec: ModelSpec) -> list[str]:
    body, split = write_answer(query, answer, spec)
    if split is None:
        return list(json.loads(body)["outputs"][0]["data"])
    found, raw = [], body[split:]
    assert len(raw) == json.loads(body[:split])["outputs"][0]["parameters"]["binary_data_size"]
    while raw:
        (size,) = struct.unpack("<I", raw[:4])
        found.append(raw[4 : 4 + size].decode())
        raw = raw[4 + size :]
    return found


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("best", [1, 4, 10, 50])
@pytest.mark.parametrize("spec", [DIGITS, NAMED], ids=["plain", "named"])
def test_classification_is_read_off_the_answer(spec: ModelSpec, best: int, binary: bool) -> None:
    answer = _simplex(3, 10, 5)
    answer[0, 3] = answer[0, 7] = 0.75  # equal ones come in the order of their index
    query = Query(torch.zeros(1), 3, answer_format=AnswerFormat(binary=binary, classification=best))
    texts = _labels(query, answer, spec)
    expected = []
    for row in answer.tolist():
        for index in sorted(range(10), key=lambda i: (-row[i], i))[:best]:
            expected.append((row[index], index, spec.class_names[index] if spec.class_names else ""))
    got = [(*text.split(":", 2), "")[:3] for text in texts]
    names = [name.rstrip(" ") if binary else name for _, _, name in got]
    assert [(np.float32(score), int(index)) for score, index, _ in got] == [(np.float32(s), i) for s, i, _ in expected]
    assert names == [name for *_, name in expected]
    body, split = write_answer(query, answer, spec)
    assert json.loads(body[:split])["outputs"][0]["shape"] == [3, min(best, 10)]


PARTLY = [AnswerFormat(), AnswerFormat(binary=True), AnswerFormat(classification=2), AnswerFormat(True, 2)]


@pytest.mark.parametrize("wanted", PARTLY)
def test_an_answer_in_part_marks_refused_rows_and_is_as_long_as_any(wanted: AnswerFormat) -> None:
    query, honest = Query(torch.zeros(5), 5, answer_format=wanted, partial=True), clean(_simplex(5, DIGITS.classes, 0))
    lengths = set()
    for refused in ([], [1], [0, 2, 4], [0, 1, 2, 3, 4]):
        answer = honest.copy()
        answer[refused] = np.nan
        body, split = write_answer(query, answer, DIGITS)
        lengths.add(len(body))
        reply, raw = json.loads(body[:split]), body[split:] if split else b""
        first, second = reply["outputs"]
        assert (first["name"], first["shape"][0]) == ("probabilities", 5)
        assert (second["name"], second["datatype"], second["shape"]) == ("refused", "BOOL", [5])
        marks = list(raw[-5:]) if wanted.binary else second["data"]
        assert [row for row in range(5) if marks[row]] == refused
        if not wanted.classification:
            numbers = np.frombuffer(raw[:-5], "<f4") if wanted.binary else np.array(first["data"], np.float32)
            rows = numbers.reshape(honest.shape)
            assert not rows[refused].any()  # zeros, which no answer is
            assert (np.delete(rows, refused, 0) == np.delete(honest, refused, 0)).all()
    assert len(lengths) == 1
    whole, _ = write_answer(replace(query, partial=False), honest, DIGITS)
    assert b"refused" not in whole


@pytest.mark.parametrize(("given", "partial"), [({}, False), ({"partial": True}, True), ({"partial": False}, False)])
def test_partial_is_asked_for_with_a_parameter(given: dict[str, Any], partial: bool) -> None:
    assert read_query(ask(parameters=given), None, DIGITS, max_rows=MAX_ROWS).partial is partial


@pytest.mark.parametrize("value", ["true", 1, None, []])
def test_partial_is_true_or_false(value: object) -> None:
    with pytest.raises(ServeError, match="expected partial as true or false"):
        read_query(ask(parameters={"partial": value}), None, DIGITS, max_rows=MAX_ROWS)


def test_an_answer_of_other_rows_is_not_sent() -> None:
    with pytest.raises(ServeError) as caught:
        write_answer(Query(torch.zeros(1), 1), np.zeros((2, 10), np.float32), DIGITS)
    assert caught.value.status == 500


def test_clean_answers_are_the_same_answers_between_0_and_1() -> None:
    for seed in range(60):
        given = _simplex(3, 10, seed)
        answer = clean(given)
        assert answer.dtype == np.dtype("<f4")
        assert 0 <= answer.min() <= answer.max() <= 1
        assert not np.signbit(answer).any()
        np.testing.assert_allclose(answer, given, atol=2e-7)


def test_metadata_names_the_tensors_and_nothing_fitted() -> None:
    assert json.loads(to_json(server_metadata("0.1")))["version"] == "0.1"
    assert json.loads(to_json(model_metadata(NAMED))) == {
        "name": "digits",
        "versions": ["1"],
        "platform": "queen",
        "inputs": [{"name": "input", "datatype": "FP32", "shape": [-1, 1, 8, 8]}],
        "outputs": [{"name": "probabilities", "datatype": "FP32", "shape": [-1, 10]}],
        "parameters": {"class_names": list(NAMED.class_names or ())},
    }
    assert "parameters" not in model_metadata(replace(NAMED, class_names=None))


def test_error_bodies_are_json_whatever_the_message() -> None:
    for message in ("no", 'a "quote"\n', "é", "\ud800", "\x00"):
        assert list(json.loads(error_body(message))) == ["error"]


CLIENT = """
import base64, json, sys
import numpy as np
import tritonclient.http as client

def pictures(rows):
    return np.random.default_rng(0).random((rows, 1, 8, 8), dtype=np.float32)

def wanted(kind):
    return None if kind == "default" else [client.InferRequestedOutput("probabilities", **kind)]

def asked(case):
    tensor = client.InferInput("input", [case["rows"], 1, 8, 8], "FP32")
    tensor.set_data_from_numpy(pictures(case["rows"]), binary_data=case["binary"])
    make = client.InferenceServerClient.generate_request_body
    body, size = make([tensor], outputs=wanted(case["output"]), request_id="7")
    return [base64.b64encode(body).decode(), size]

def told(case):
    body, size = base64.b64decode(case[0]), case[1]
    result = client.InferenceServerClient.parse_response_body(body, header_length=size)
    found = result.as_numpy("probabilities")
    return [result.get_response()["id"], [x.decode() if isinstance(x, bytes) else x for x in found.ravel().tolist()]]

mode, cases = json.load(sys.stdin)
json.dump([{"ask": asked, "tell": told}[mode](case) for case in cases], sys.stdout)
"""


def _client(mode: str, cases: list[Any]) -> list[Any]:
    said = json.dumps([mode, cases])
    command = [sys.executable, "-c", CLIENT]
    done = subprocess.run(command, input=said, text=True, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_tritonclient_over_http_writes_what_we_read_and_reads_what_we_write() -> None:
    outputs: list[Any] = ["default", *({"binary_data": b, "class_count": k} for b in (False, True) for k in (0, 3))]
    cases = [{"rows": rows, "binary": b, "output": o} for rows in (1, 3) for b in (False, True) for o in outputs]
    answers, replies = [], []
    for case, (body, size) in zip(cases, _client("ask", cases), strict=True):
        query = read_query(base64.b64decode(body), size, NAMED, max_rows=MAX_ROWS)
        assert isinstance(query.inputs, torch.Tensor)
        np.testing.assert_array_equal(query.inputs.numpy(), pictures(case["rows"]))
        answers.append(_simplex(case["rows"], 10, seed=5))
        reply, split = write_answer(query, answers[-1], NAMED)
        replies.append([base64.b64encode(reply).decode(), split])
    for case, answer, (name, found) in zip(cases, answers, _client("tell", replies), strict=True):
        assert name == "7"
        if case["output"] == "default" or not case["output"]["class_count"]:
            np.testing.assert_array_equal(np.array(found, np.float32), answer.ravel())
        else:
            first = [text.split(":", 2) for text in found[:: case["output"]["class_count"]]]
            assert [int(index) for _, index, _ in first] == answer.argmax(1).tolist()
            assert [np.float32(score) for score, *_ in first] == answer.max(1).tolist()


def test_raw_helper_is_good() -> None:
    body, length = ask_raw(pictures(2).tobytes(), shape=[2, 1, 8, 8])
    assert read_query(body, length, DIGITS, max_rows=MAX_ROWS).rows == 2
