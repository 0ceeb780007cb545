"""The protocol's REST side as a client, with raw tensors where the server takes them."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any
from urllib.parse import quote

import numpy as np
import orjson

from queen.errors import UpstreamError, UpstreamFailure, reason
from queen.serve.upstream.client import MAX_SMALL, Asking, UpstreamClient
from queen.serve.upstream.tensors import SentTensor, UpstreamMetadata, UpstreamReply, check_reply, new_id, unpack
from queen.serve.upstream.wire import WireConnection

BINARY = "binary_tensor_data"
LENGTH = "Inference-Header-Content-Length"
MAX_SAID = 300  # bytes of an error, for the operator
MAX_IDLE = 8  # connections kept open
CANNOT_NOW = (401, 403, 404, 429, 502, 503)
TOO_LATE = (408, 504)
COMPLETE = ("unready", "rejected")  # failures that a whole answer told of, so that the connection is as good as before


@dataclass(frozen=True)
class RestRequest:
    """What is sent: a question, if it has an id; else a look at what the server says of itself."""

    method: str
    path: str
    id: str = ""
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class RestClient(UpstreamClient):
    """Asks over HTTP/1.1. `binary` sends raw tensors, or JSON; None: as the server says it takes them."""

    def __init__(self, asking: Asking, *, binary: bool | None = None) -> None:
        super().__init__(asking)
        self._tls = ssl.create_default_context() if asking.address.is_encrypted else None
        self._binary = binary
        self._idle: list[WireConnection] = []  # verified ones
        self._lock = threading.Lock()
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "queen", **dict(asking.headers)}
        self._path = f"{asking.address.path}/v2/models/{quote(asking.model, safe='')}"

    def ask(self, tensors: Sequence[SentTensor]) -> UpstreamReply:
        """The outputs for these inputs, or `UpstreamError`."""
        deadline = self._deadline()
        if self._binary is None:
            self._binary = self._takes_binary(deadline)
        request = self._write(tensors)
        for is_last in (False, True):
            connection = self._idle_connection() or self._verified_connection(deadline)
            try:
                reply = self._question(connection, request, deadline)
            except UpstreamError as error:
                if error.kind in COMPLETE:
                    self._keep(connection)
                    raise
                connection.close()
                if is_last or error.kind != "unreachable":
                    raise
                continue
            except BaseException:
                connection.close()
                raise
            self._keep(connection)
            return reply
        raise AssertionError  # never

    def metadata(self) -> UpstreamMetadata:
        """What the server says of the model, or `UpstreamError`."""
        content = self._get(self._path, self._deadline())
        tensors = {key: _entries(content, key) for key in ("inputs", "outputs")}
        return UpstreamMetadata(
            {str(one.get("name")): str(one.get("datatype")) for one in tensors["inputs"]},
            tuple(str(one.get("name")) for one in tensors["outputs"]),
        )

    def models(self) -> list[str] | None:
        """The models of the server; None if it does not say."""
        try:
            models = self._get(f"{self.asking.address.path}/v2/models", self._deadline()).get("models")
        except UpstreamError as error:
            if error.kind in ("unready", "rejected"):
                return None
            raise
        if not isinstance(models, list):
            return None
        return [str(one.get("name") if isinstance(one, dict) else one) for one in models]

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _deadline(self) -> float:
        return time.monotonic() + self.asking.timeout

    def _takes_binary(self, deadline: float) -> bool:
        extensions = self._get(f"{self.asking.address.path}/v2", deadline).get("extensions")
        return isinstance(extensions, list) and BINARY in extensions

    def _get(self, path: str, deadline: float) -> dict[str, Any]:
        """A page of the server's, over a connection of its own."""
        connection = self._new_connection(deadline)
        try:
            _, body = self._exchange(connection, RestRequest("GET", path), deadline)
        finally:
            connection.close()
        return _parse(body)

    def _idle_connection(self) -> WireConnection | None:
        """One that was used before and can be used again."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.is_usable:
                return connection
            connection.close()

    def _new_connection(self, deadline: float) -> WireConnection:
        address = self.asking.address
        try:
            return WireConnection(address.host, address.port, tls=self._tls, deadline=deadline)
        except TimeoutError as error:
            raise UpstreamError("it does not take connections in time", "late") from error
        except (OSError, ValueError) as error:
            raise UpstreamError(f"cannot connect to {address.target}: {_short(error)}", "unreachable") from error

    def _verified_connection(self, deadline: float) -> WireConnection:
        """A new one; where the server closes each after one answer, one more that was opened just afterwards."""
        connection = self._new_connection(deadline)
        try:
            if self.verify is not None:
                self.verify(lambda tensors: self._question(connection, self._write(tensors), deadline))
        except BaseException:
            connection.close()
            raise
        if connection.is_usable:
            return connection
        connection.close()
        return self._new_connection(deadline)

    def _keep(self, connection: WireConnection) -> None:
        with self._lock:
            if len(self._idle) < MAX_IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def _question(self, connection: WireConnection, request: RestRequest, deadline: float) -> UpstreamReply:
        return read_reply(request.id, *self._exchange(connection, request, deadline), self.asking.outputs)

    def _exchange(self, connection: WireConnection, request: RestRequest, deadline: float) -> tuple[int | None, bytes]:
        """Length of the JSON in the answer's body, if the body goes on behind it, and the body."""
        most, headers = self.most if request.id else MAX_SMALL, {**self._headers, **request.headers}
        try:
            status, received, body = connection.ask(
                request.method, request.path, request.body, headers, deadline=deadline, most=most
            )
        except TimeoutError as error:
            raise UpstreamError(f"no answer within {self.asking.timeout:g} s", "late") from error
        except OverflowError as error:
            raise UpstreamError(f"expected an answer of at most {most} bytes", "unusable") from error
        except (OSError, HTTPException, ValueError) as error:  # the last for headers that are no text
            raise UpstreamError(f"the connection broke: {_short(error)}", "unreachable") from error
        if status != 200:
            said = " ".join(body[:MAX_SAID].decode("utf-8", "replace").split())
            raise UpstreamError(f"HTTP status {status} from {request.path}: {said}", _failure(status))
        if (received.get("Content-Encoding") or "identity").strip().lower() != "identity":
            raise UpstreamError("it packs its answers though it was asked not to", "unusable")
        return _header_length(received.get(LENGTH), len(body)), body

    def _write(self, tensors: Sequence[SentTensor]) -> RestRequest:
        """A question."""
        inputs: list[dict[str, Any]] = [
            {"name": one.name, "datatype": one.datatype, "shape": list(one.array.shape)} for one in tensors
        ]
        outputs: list[dict[str, Any]] = [{"name": name} for name in self.asking.outputs]
        content: dict[str, Any] = {"id": new_id(), "inputs": inputs, "outputs": outputs}
        raw = list[bytes]()
        for entry, tensor in zip(inputs, tensors, strict=True):
            if self._binary:
                raw.append(tensor.array.tobytes())
                entry["parameters"] = {"binary_data_size": len(raw[-1])}
            else:
                flat = tensor.array.reshape(-1)
                entry["data"] = flat.astype(np.float32) if tensor.datatype == "FP16" else flat
        if self._binary:
            content["parameters"] = {"binary_data_output": True}
            for entry in outputs:
                entry["parameters"] = {"binary_data": True}
        json = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
        headers = {"Content-Type": "application/json"}
        if self._binary:
            headers = {"Content-Type": "application/octet-stream", LENGTH: str(len(json))}
        return RestRequest("POST", f"{self._path}/infer", content["id"], b"".join((json, *raw)), headers)


def read_reply(asked: str, length: int | None, body: bytes, wanted: Sequence[str]) -> UpstreamReply:
    """The wanted outputs of the answer to a request of this id; its first `length` bytes are JSON, or all of it."""
    content = _parse(body if length is None else body[:length])
    raw = memoryview(body)[len(body) if length is None else length :]
    found: dict[str, Any] = {}
    for entry in _entries(content, "outputs"):
        parameters = entry.get("parameters")
        size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
        values = entry.get("data")
        if size is not None:
            if type(size) is not int or not 0 <= size <= len(raw):
                raise UpstreamError("an output has more bytes than came", "unusable")
            values, raw = raw[:size], raw[size:]
        if entry.get("name") in found:
            raise UpstreamError("an output came twice", "unusable")
        if entry.get("name") in wanted:
            found[entry["name"]] = unpack(entry["name"], entry.get("datatype"), entry.get("shape"), values)
    check_reply(asked, content.get("id"), found, wanted)
    return UpstreamReply(found, str(content.get("model_version") or ""))


def _parse(body: bytes) -> dict[str, Any]:
    try:
        content = orjson.loads(body)
    except ValueError as error:
        raise UpstreamError(f"the answer is no JSON: {_short(error)}", "unusable") from error
    if not isinstance(content, dict):
        raise UpstreamError("expected an object as answer", "unusable")
    return content


def _entries(content: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    entries = content.get(key) or []
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise UpstreamError(f"expected {key} as a list of objects", "unusable")
    return entries


def _header_length(text: str | None, size: int) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 12 or int(text) > size:
        raise UpstreamError(f"{LENGTH} is no length of this answer", "unusable")
    return int(text)


def _failure(status: int) -> UpstreamFailure:
    if status in TOO_LATE:
        return "late"
    return "unready" if status in CANNOT_NOW or status < 400 else "rejected"


def _short(error: BaseException) -> str:
    """What went wrong, in one line; of bytes that are no text, only what kind of error they made."""
    text = reason(error)
    return (text if text and text.isprintable() else type(error).__name__)[:200]
