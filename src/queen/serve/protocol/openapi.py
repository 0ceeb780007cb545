"""The protocol's OpenAPI description, as this server speaks it."""

from __future__ import annotations

from typing import Any

from queen.serve.protocol.rest_read import HEADER, MAX_ID_LENGTH
from queen.serve.protocol.tensors import FLOATS, INTEGERS
from queen.serve.types import REFUSED, ModelSpec, TensorSpec

Schema = dict[str, Any]
JSON, RAW = "application/json", "application/octet-stream"
TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}


def openapi(spec: ModelSpec, *, max_rows: int) -> Schema:
    """A description for generators and testers of clients; the model's name is fixed in its paths."""
    models = f"/v2/models/{spec.name}"
    ready = {"200": _content("It can.", _object({"ready": {"const": True}})), "503": _not_ready()}
    paths: Schema = {
        "/v2": {"get": _get("What server is this?", _server())},
        "/v2/health/live": {"get": _get("Is the server up?", _object({"live": {"const": True}}))},
        "/v2/health/ready": {"get": {"summary": "Can it answer?", "responses": ready}},
        "/v2/models": {"get": _get("Which models are there?", _models(spec), key=True)},
    }
    for path in (models, f"{models}/versions/{spec.version}"):
        paths[path] = {"get": _get("What does it take and give?", _model(spec), key=True)}
        paths[f"{path}/ready"] = {"get": {"summary": "Can it answer?", "responses": ready}}
        paths[f"{path}/infer"] = {"post": _infer(spec, max_rows)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Open Inference Protocol", "version": "2"},
        "paths": paths,
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _infer(spec: ModelSpec, max_rows: int) -> Schema:
    raw = "JSON as above, where inputs have binary_data_size instead of data, and then their bytes, little-endian"
    body = {JSON: {"schema": _request(spec, max_rows)}, RAW: {"schema": {"description": raw}}}
    answer = {JSON: {"schema": _answer(spec)}, RAW: {"schema": {"description": "JSON, and then the numbers' bytes"}}}
    errors = {str(code): _error() for code in (400, 404, 408, 413, 415, 500)} | _key_errors()
    refused_rows = {"type": "array", "items": {"type": "integer", "minimum": 0}}
    errors |= {"429": _error(rows=refused_rows), "503": _error(retry=True)}
    length = {"type": "integer", "minimum": 1}
    about = f"Length of the JSON in a body of {RAW}; without it all of the body is JSON, whatever its type."
    return {
        "summary": "Probabilities for a batch; every row is a query.",
        "security": [{"key": []}],
        "parameters": [{"name": HEADER, "in": "header", "description": about, "schema": length}],
        "requestBody": {"required": True, "content": body},
        "responses": {"200": {"description": "The answer.", "content": answer}} | errors,
    }


def _request(spec: ModelSpec, max_rows: int) -> Schema:
    count = len(spec.inputs)
    output_parameters = _optional({"binary_data": FLAG, "classification": {"type": ["integer", "null"], "minimum": 1}})
    output = _object({"name": {"const": spec.output.name}}, {"parameters": output_parameters})
    return _object(
        {
            "inputs": {
                "type": "array",
                "items": {"anyOf": [_input(tensor, max_rows) for tensor in spec.inputs]},
                "minItems": count,
                "maxItems": count,
            }
        },
        {
            "id": {"type": ["string", "null"], "maxLength": MAX_ID_LENGTH},
            "parameters": _optional({"binary_data_output": FLAG, "partial": FLAG}),
            "outputs": {"type": ["array", "null"], "items": output, "maxItems": 1},
        },
    )


def _input(tensor: TensorSpec, max_rows: int) -> Schema:
    is_float = tensor.datatype in FLOATS
    sizes = [{"type": "integer", "minimum": 1} if size == -1 else {"const": size} for size in tensor.shape]
    sizes[0] = {"type": "integer", "minimum": 1, "maximum": max_rows}
    shape = {"type": "array", "prefixItems": sizes, "minItems": len(sizes), "maxItems": len(sizes)}
    return _object(
        {
            "name": {"const": tensor.name},
            "shape": shape,
            "datatype": {"enum": list(FLOATS if is_float else INTEGERS)},
            "data": {
                "description": "numbers in one list, or in lists nested like the shape",
                "type": "array",
                "items": {"type": ["number" if is_float else "integer", "array"]},
                "minItems": 1,
            },
        },
        {"parameters": _optional({"binary_data_size": {"type": "null"}, "shared_memory_region": False})},
    )


def _answer(spec: ModelSpec) -> Schema:
    numbers = {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 1}, "minItems": spec.classes}
    best = {"type": "array", "items": {"type": "string", "pattern": r"^[0-9.e+-]+:\d+(:.*)?$"}, "minItems": 1}
    shape = {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 2, "maxItems": 2}
    output = [
        _object({"name": {"const": spec.output.name}, "datatype": {"const": kind}, "shape": shape, "data": data})
        for kind, data in (("FP32", numbers), ("BYTES", best))
    ]
    refused = {"type": "array", "items": FLAG, "minItems": 1}
    rows = {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1, "maxItems": 1}
    marks = _object({"name": {"const": REFUSED}, "datatype": {"const": "BOOL"}, "shape": rows, "data": refused})
    outputs = {"type": "array", "items": {"anyOf": [*output, marks]}, "minItems": 1, "maxItems": 2}
    names = {"model_name": {"const": spec.name}, "model_version": {"const": spec.version}}
    return _object({**names, "outputs": outputs}, {"id": TEXT})


def _server() -> Schema:
    return _object({"name": TEXT, "version": TEXT, "extensions": {"type": "array", "items": TEXT}})


def _models(spec: ModelSpec) -> Schema:
    model = _object({"name": {"const": spec.name}})
    return _object({"models": {"type": "array", "items": model, "minItems": 1, "maxItems": 1}})


def _model(spec: ModelSpec) -> Schema:
    shape = {"type": "array", "items": {"type": "integer", "minimum": -1}, "minItems": 1}
    tensor = _object({"name": TEXT, "datatype": {"enum": [*FLOATS, *INTEGERS]}, "shape": shape})
    tensors = {"type": "array", "items": tensor, "minItems": 1}
    versions = {"type": "array", "items": {"const": spec.version}, "minItems": 1, "maxItems": 1}
    names = {"name": {"const": spec.name}, "versions": versions, "platform": TEXT}
    classes = _object({"class_names": {"type": "array", "items": TEXT, "minItems": spec.classes}})
    return _object({**names, "inputs": tensors, "outputs": tensors}, {"parameters": classes})


def _get(summary: str, schema: Schema, *, key: bool = False) -> Schema:
    operation: Schema = {"summary": summary, "responses": {"200": _content(summary, schema)}}
    if key:
        operation["responses"] |= _key_errors() | {"503": _error(retry=True)}
        operation["security"] = [{"key": []}]
    return operation


def _key_errors() -> Schema:
    challenge = {"WWW-Authenticate": {"required": True, "schema": {"const": "Bearer"}}}
    return {"401": _error() | {"headers": challenge}}


def _not_ready() -> Schema:
    return _content("Not now.", _object({"ready": {"const": False}}))


def _error(*, retry: bool = False, rows: Schema | None = None) -> Schema:
    """An error: one to `retry` always says when; one about `rows` only where the budget renews that they lack."""
    about = "Seconds until all that is spent has renewed; absent where not all does." if rows else "Seconds."
    after = {"required": retry, "description": about, "schema": {"type": "integer", "minimum": 1}}
    says = _object({"error": TEXT}, {"rows": rows} if rows else None)
    return _content("What is wrong.", says) | ({"headers": {"Retry-After": after}} if retry or rows else {})


def _content(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": {JSON: {"schema": schema}}}


def _object(properties: Schema, optional: Schema | None = None) -> Schema:
    return {"type": "object", "required": list(properties), "properties": properties | (optional or {})}


def _optional(properties: Schema) -> Schema:
    return {"type": ["object", "null"], "properties": properties}
