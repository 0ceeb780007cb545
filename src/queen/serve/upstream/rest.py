"""The protocol's REST side as a client, with raw tensors where the server takes them."""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
import orjson

from queen.errors import UpstreamError, UpstreamFailure
from queen.serve.upstream.client import MAX_SMALL, Asking, UpstreamClient
from queen.serve.upstream.tensors import SentTensor, UpstreamMetadata, UpstreamReply, unpack
from queen.serve.upstream.wire import WireConnection

BINARY = "binary_tensor_data"
LENGTH = "Inference-Header-Content-Length"
MAX_IDLE = 8  # connections kept open
CANNOT_NOW = (401, 403, 404, 429, 502, 503)
TOO_LATE = (408, 504)


class RestClient(UpstreamClient):
    """Asks over HTTP/1.1. `binary` sends raw tensors, or JSON; None: as the server says it takes them."""

    def __init__(self, asking: Asking, *, binary: bool | None = None) -> None:
        super().__init__(asking)
        self._tls = ssl.create_default_context() if asking.address.is_encrypted else None
        self._binary = binary
        self._idle: list[WireConnection] = []
        self._lock = threading.Lock()
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "queen", **dict(asking.headers)}
        self._path = f"{asking.address.path}/v2/models/{quote(asking.model, safe='')}"

    def ask(self, tensors: Sequence[SentTensor]) -> UpstreamReply:
        """The outputs for these inputs, or `UpstreamError`."""
        deadline = self._deadline()
        if self._binary is None:
            self._binary = self._takes_binary(deadline)
        return read_reply(*self._exchange("POST", f"{self._path}/infer", tensors, deadline), self.asking.outputs)

    def metadata(self) -> UpstreamMetadata:
        """What the server says of the model, or `UpstreamError`."""
        content = self._get(self._path)
        tensors = {key: _entries(content, key) for key in ("inputs", "outputs")}
        return UpstreamMetadata(
            {str(one.get("name")): str(one.get("datatype")) for one in tensors["inputs"]},
            tuple(str(one.get("name")) for one in tensors["outputs"]),
        )

    def models(self) -> list[str] | None:
        """The models of the server; None if it does not say."""
        try:
            models = self._get(f"{self.asking.address.path}/v2/models").get("models")
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
        content = self._get(f"{self.asking.address.path}/v2", deadline)
        extensions = content.get("extensions")
        return isinstance(extensions, list) and BINARY in extensions

    def _get(self, path: str, deadline: float | None = None) -> dict[str, Any]:
        _, body = self._exchange("GET", path, None, deadline or self._deadline())
        content = _parse(body)
        if not isinstance(content, dict):
            raise UpstreamError(f"expected an object from {path}", "unusable")
        return content

    def _exchange(
        self, method: str, path: str, tensors: Sequence[SentTensor] | None, deadline: float
    ) -> tuple[int | None, bytes]:
        """The answer's header length and body; over a connection that is verified, if there are tensors."""
        is_question = tensors is not None
        body, headers = self._write(tensors) if tensors is not None else (None, {})
        for is_last in (False, True):
            connection = self._connect(deadline, verified=is_question)
            try:
                answer = self._ask_over(connection, method, path, body, headers, deadline)
            except (ConnectionError, http.client.HTTPException) as error:
                connection.close()
                if is_last:
                    raise UpstreamError(f"the connection broke: {_short(error)}", "unreachable") from error
            except BaseException:
                connection.close()
                raise
            else:
                self._keep(connection, is_verified=is_question)
                return answer
        raise AssertionError  # never

    def _connect(self, deadline: float, *, verified: bool) -> WireConnection:
        """An idle connection, or a new one; a new one is verified if it shall be."""
        while verified:
            with self._lock:
                if not self._idle:
                    break
                connection = self._idle.pop()
            if connection.is_usable:
                return connection
            connection.close()
        address = self.asking.address
        try:
            connection = WireConnection(address.host, address.port, tls=self._tls, deadline=deadline)
        except TimeoutError as error:
            raise UpstreamError("it does not take connections in time", "late") from error
        except (OSError, ValueError) as error:
            raise UpstreamError(f"cannot connect: {_short(error)}", "unreachable") from error
        if verified and self.verify is not None:
            try:
                self.verify(lambda tensors: self._ask_verifying(connection, tensors, deadline))
            except BaseException:
                connection.close()
                raise
        return connection

    def _ask_verifying(
        self, connection: WireConnection, tensors: Sequence[SentTensor], deadline: float
    ) -> UpstreamReply:
        body, headers = self._write(tensors)
        try:
            answer = self._ask_over(connection, "POST", f"{self._path}/infer", body, headers, deadline)
        except (ConnectionError, http.client.HTTPException) as error:
            raise UpstreamError(f"the connection broke: {_short(error)}", "unreachable") from error
        return read_reply(*answer, self.asking.outputs)

    def _keep(self, connection: WireConnection, *, is_verified: bool) -> None:
        with self._lock:
            if is_verified and len(self._idle) < MAX_IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def _ask_over(
        self,
        connection: WireConnection,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        deadline: float,
    ) -> tuple[int | None, bytes]:
        most = self.most if method == "POST" else MAX_SMALL
        try:
            status, received, content = connection.ask(
                method, path, body, {**self._headers, **headers}, deadline=deadline, most=most
            )
        except TimeoutError as error:
            raise UpstreamError(f"no answer within {self.asking.timeout:g} s", "late") from error
        except OverflowError as error:
            raise UpstreamError(f"expected at most {most} bytes", "unusable") from error
        except ConnectionError:
            raise
        except (OSError, ValueError) as error:  # such as TLS, or a header length that is no number
            raise UpstreamError(f"the connection failed: {_short(error)}", "unreachable") from error
        if status != 200:
            raise UpstreamError(f"HTTP status {status} from {path}", _failure(status))
        if (received.get("Content-Encoding") or "identity").strip().lower() != "identity":
            raise UpstreamError("it packs its answers though it was asked not to", "unusable")
        return _header_length(received.get(LENGTH), len(content)), content

    def _write(self, tensors: Sequence[SentTensor]) -> tuple[bytes, dict[str, str]]:
        """A request's body, and the headers that it needs."""
        raw = [tensor.array.tobytes() for tensor in tensors] if self._binary else []
        inputs: list[dict[str, Any]] = [
            {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.array.shape)} for tensor in tensors
        ]
        outputs: list[dict[str, Any]] = [{"name": name} for name in self.asking.outputs]
        if self._binary:
            for entry, part in zip(inputs, raw, strict=True):
                entry["parameters"] = {"binary_data_size": len(part)}
            for entry in outputs:
                entry["parameters"] = {"binary_data": True}
        else:
            for entry, tensor in zip(inputs, tensors, strict=True):
                flat = tensor.array.reshape(-1)
                entry["data"] = flat.astype(np.float32) if tensor.datatype == "FP16" else flat
        request: dict[str, Any] = {"inputs": inputs, "outputs": outputs}
        if self._binary:
            request["parameters"] = {"binary_data_output": True}
        json = orjson.dumps(request, option=orjson.OPT_SERIALIZE_NUMPY)
        if not self._binary:
            return json, {"Content-Type": "application/json"}
        headers = {"Content-Type": "application/octet-stream", LENGTH: str(len(json))}
        return b"".join((json, *raw)), headers


def read_reply(length: int | None, body: bytes, wanted: Sequence[str]) -> UpstreamReply:
    """The wanted outputs of an answer whose first `length` bytes are JSON, or all of it."""
    content = _parse(body if length is None else body[:length])
    if not isinstance(content, dict):
        raise UpstreamError("expected an object as answer", "unusable")
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
    check_found(found, wanted)
    return UpstreamReply(found, str(content.get("model_version") or ""))


def check_found(found: Mapping[str, Any], wanted: Sequence[str]) -> None:
    """Raise `UpstreamError` unless every wanted output came."""
    if missing := [name for name in wanted if name not in found]:
        raise UpstreamError(f"expected outputs {', '.join(wanted)}; {', '.join(missing)} did not come", "unusable")


def _parse(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except ValueError as error:
        raise UpstreamError(f"the answer is no JSON: {_short(error)}", "unusable") from error


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
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
