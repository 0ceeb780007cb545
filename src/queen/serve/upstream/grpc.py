"""The protocol's gRPC side as a client."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from queen.errors import UpstreamError, UpstreamFailure
from queen.serve.protocol import oip_pb2 as oip
from queen.serve.upstream.client import MAX_BYTES, Asking, UpstreamClient
from queen.serve.upstream.rest import MAX_SAID
from queen.serve.upstream.tensors import SentTensor, UpstreamMetadata, UpstreamReply, check_reply, new_id, unpack

SERVICE = "/inference.GRPCInferenceService"
CONTENTS = {"FP32": "fp32_contents", "FP64": "fp64_contents"}  # where numbers do not come as raw bytes
FAILURES: dict[grpc.StatusCode, UpstreamFailure] = {
    grpc.StatusCode.UNAVAILABLE: "unreachable",
    grpc.StatusCode.DEADLINE_EXCEEDED: "late",
    grpc.StatusCode.UNAUTHENTICATED: "unready",
    grpc.StatusCode.PERMISSION_DENIED: "unready",
    grpc.StatusCode.NOT_FOUND: "unready",
    grpc.StatusCode.UNIMPLEMENTED: "unready",
}
CLOSE_AFTER = 1.0  # seconds
RECONNECT = 0.15  # seconds after which gRPC tries to connect again
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # connections of our own, closed with the channel
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 30_000),  # a peer that vanished is noticed
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.enable_http_proxy", 0),  # an upstream is near, and its answers are for nobody else
]


class GrpcClient(UpstreamClient):
    """Asks over one channel, which connects again by itself; `verify` has to pass as soon as gRPC has told of that.

    An answer may come before gRPC tells, so `UpstreamModel` sends a row of the probe with every question.
    """

    def __init__(self, asking: Asking) -> None:
        super().__init__(asking)
        target, encrypted = asking.address.target, asking.address.is_encrypted
        self._channel = (
            grpc.secure_channel(target, grpc.ssl_channel_credentials(), OPTIONS)
            if encrypted
            else grpc.insecure_channel(target, OPTIONS)
        )
        self._metadata = [(name.lower(), value) for name, value in asking.headers]
        self._lock = threading.Lock()
        self._connections = 0  # times that the channel has connected
        self._verified = -1  # the value of that when `verify` passed last
        self._channel.subscribe(self._note_state)

    def ask(self, tensors: Sequence[SentTensor]) -> UpstreamReply:
        """The outputs for these inputs, or `UpstreamError`."""
        deadline = time.monotonic() + self.asking.timeout
        reply = self._infer(tensors, deadline)
        if self.verify is not None and self._verified != self._connections:
            connections = self._connections
            self.verify(lambda probe: self._infer(probe, deadline))
            self._verified = connections
        return reply

    def metadata(self) -> UpstreamMetadata:
        """What the server says of the model, or `UpstreamError`."""
        request = oip.ModelMetadataRequest(name=self.asking.model)
        deadline = time.monotonic() + self.asking.timeout
        said = self._call("ModelMetadata", request, oip.ModelMetadataResponse, deadline)
        return UpstreamMetadata({one.name: one.datatype for one in said.inputs}, tuple(o.name for o in said.outputs))

    def models(self) -> list[str] | None:
        """None: the protocol cannot say it over gRPC."""
        return None

    def close(self) -> None:
        """Close the channel, a moment after gRPC's own thread has heard that nobody watches it: else that crashes."""
        self._channel.unsubscribe(self._note_state)
        later = threading.Timer(CLOSE_AFTER, self._channel.close)
        later.daemon = True
        later.start()

    def _note_state(self, state: grpc.ChannelConnectivity) -> None:
        if state is grpc.ChannelConnectivity.READY:
            with self._lock:
                self._connections += 1

    def _infer(self, tensors: Sequence[SentTensor], deadline: float) -> UpstreamReply:
        make, wanted = oip.ModelInferRequest, self.asking.outputs
        request = make(
            model_name=self.asking.model,
            id=new_id(),
            inputs=[
                make.InferInputTensor(name=one.name, datatype=one.datatype, shape=one.array.shape) for one in tensors
            ],
            outputs=[make.InferRequestedOutputTensor(name=name) for name in wanted],
            raw_input_contents=[one.array.tobytes() for one in tensors],
        )
        return _read(request.id, self._call("ModelInfer", request, oip.ModelInferResponse, deadline), wanted)

    def _call(self, method: str, request: Any, kind: Any, deadline: float) -> Any:
        """The answer to a call; one whose connection broke is tried once more, once there is a new one."""
        call = self._channel.unary_unary(f"{SERVICE}/{method}", request_serializer=type(request).SerializeToString)
        for is_last in (False, True):
            left = deadline - time.monotonic()
            if left <= 0:
                raise UpstreamError(f"no answer within {self.asking.timeout:g} s", "late")
            try:
                raw = call(request, timeout=left, metadata=self._metadata, wait_for_ready=False)
            except grpc.RpcError as error:
                code = error.code()
                if code is grpc.StatusCode.UNAVAILABLE and not is_last:
                    time.sleep(RECONNECT)
                    continue
                failure = FAILURES.get(code, "rejected")
                said = " ".join((error.details() or "").split())[:MAX_SAID]
                raise UpstreamError(f"gRPC status {code.name} from {method}: {said}", failure) from error
            if method == "ModelInfer" and len(raw) > self.most:
                raise UpstreamError(f"expected at most {self.most} bytes", "unusable")
            try:
                return kind.FromString(raw)
            except DecodeError as error:
                raise UpstreamError("the answer is no message of the protocol", "unusable") from error
        raise AssertionError  # never


def _read(asked: str, message: Any, wanted: Sequence[str]) -> UpstreamReply:
    raw, found = list(message.raw_output_contents), dict[str, Any]()
    if raw and len(raw) != len(message.outputs):
        raise UpstreamError(f"{len(message.outputs)} outputs came with {len(raw)} raw contents", "unusable")
    for i, entry in enumerate(message.outputs):
        if entry.name in found:
            raise UpstreamError("an output came twice", "unusable")
        if entry.name in wanted:
            field = CONTENTS.get(entry.datatype)
            values = raw[i] if raw else list(getattr(entry.contents, field)) if field else None
            found[entry.name] = unpack(entry.name, entry.datatype, list(entry.shape), values)
    check_reply(asked, message.id, found, wanted)
    return UpstreamReply(found, message.model_version)
