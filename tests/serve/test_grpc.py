"""The gRPC side through a real server on loopback: the protocol's messages, keys, limits and errors."""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from queen.errors import OptionError
from queen.serve import grpc as served
from queen.serve.protocol import oip_pb2 as oip
from queen.serve.protocol.grpc_messages import read_message, write_message
from queen.serve.types import LARGE_BYTES, Caller, Query, ServeError
from tests.support.grpc_stub import CODE, KEY, PATH, Stub, answer_to, call, message, refused, talk, typed
from tests.support.rest_bodies import DIGITS, MAX_ROWS, TEXT, pictures


def test_health_and_metadata() -> None:
    stub = Stub()

    async def client(channel: grpc.aio.Channel, port: int) -> None:
        named = oip.ModelReadyRequest(name="digits", version="1")
        for ready in (True, False):
            stub.ready = ready
            assert (await call(channel, "ServerLive", reply=oip.ServerLiveResponse, key=None)).live
            assert (await call(channel, "ServerReady", reply=oip.ServerReadyResponse, key=None)).ready == ready
            assert (await call(channel, "ModelReady", named, oip.ModelReadyResponse, key=None)).ready == ready
        told = await call(channel, "ServerMetadata", reply=oip.ServerMetadataResponse, key=None)
        assert (told.name, told.version) == ("queen", "9.9")
        assert not stub.seen
        told = await call(channel, "ModelMetadata", oip.ModelMetadataRequest(name="digits"), oip.ModelMetadataResponse)
        assert [(t.name, t.datatype, list(t.shape)) for t in told.inputs] == [("input", "FP32", [-1, 1, 8, 8])]
        assert [(t.name, t.datatype, list(t.shape)) for t in told.outputs] == [("probabilities", "FP32", [-1, 10])]
        other = oip.ModelMetadataRequest(name="digits", version="2")
        assert (await refused(channel, "ModelMetadata", other)).code() == CODE.NOT_FOUND
        assert (await refused(channel, "ModelMetadata", other, key=None)).code() == CODE.UNAUTHENTICATED
        assert (await refused(channel, "ModelReady", oip.ModelReadyRequest(name="x"))).code() == CODE.NOT_FOUND
        assert (await refused(channel, "ModelReady", b"\xff\xff")).code() == CODE.INVALID_ARGUMENT
        assert (await refused(channel, "ModelReady", b"\n" + bytes(5000))).code() == CODE.RESOURCE_EXHAUSTED

    talk(stub, client)


def test_answers_are_the_services_own() -> None:
    async def client(channel: grpc.aio.Channel, port: int) -> None:
        for rows in (1, MAX_ROWS):
            x = pictures(rows)
            found = await call(channel, "ModelInfer", message(x), oip.ModelInferResponse)
            assert (found.model_name, found.model_version, found.id) == ("digits", "1", "7")
            output = found.outputs[0]
            assert (output.name, output.datatype, list(output.shape)) == ("probabilities", "FP32", [rows, 10])
            got = np.frombuffer(found.raw_output_contents[0], "<f4").reshape(rows, 10)
            np.testing.assert_array_equal(got, answer_to(x))
        numbers = pictures().ravel().tolist()
        for datatype, where in (("FP32", "fp32_contents"), ("FP64", "fp64_contents")):
            again = await call(channel, "ModelInfer", typed(datatype, where, numbers), oip.ModelInferResponse)
            np.testing.assert_array_equal(
                np.frombuffer(again.raw_output_contents[0], "<f4"), answer_to(pictures()).ravel()
            )

    talk(Stub(), client)


def test_fields_that_nobody_knows_are_ignored() -> None:
    unknown = b"\xf8\x3f\x07" + b"\xf9\x3f" + bytes(8) + b"\xfd\x3f" + bytes(4) + b"\xfa\x3f\x01a"
    query = read_message(message().SerializeToString() + unknown, DIGITS, max_rows=1)
    assert (query.rows, query.id) == (1, "7")


@pytest.mark.parametrize(
    ("datatype", "where"),
    [("INT32", "int_contents"), ("INT64", "int64_contents"), ("UINT8", "uint_contents"), ("UINT64", "uint64_contents")],
)
def test_token_ids_come_typed_or_raw(datatype: str, where: str) -> None:
    part = oip.ModelInferRequest.InferInputTensor
    ids, mask = (part(name=name, datatype=datatype, shape=[1, 3]) for name in ("input_ids", "attention_mask"))
    kind = np.dtype(datatype.lower()).newbyteorder("<")
    raws = [np.array(row, kind).tobytes() for row in ([5, 6, 7], [1, 1, 0])]
    raw = oip.ModelInferRequest(model_name="text", inputs=[ids, mask], raw_input_contents=raws)
    ids.contents.CopyFrom(oip.InferTensorContents(**{where: [5, 6, 7]}))
    mask.contents.CopyFrom(oip.InferTensorContents(**{where: [1, 1, 0]}))
    typed_request = oip.ModelInferRequest(model_name="text", inputs=[ids, mask])
    for request in (raw, typed_request):
        query = read_message(request.SerializeToString(), TEXT, max_rows=1)
        assert isinstance(query.inputs, dict)
        assert {name: part.tolist() for name, part in query.inputs.items()} == {
            "input_ids": [[5, 6, 7]],
            "attention_mask": [[1, 1, 0]],
        }


def test_all_answers_of_one_form_have_one_length() -> None:
    named = replace(DIGITS, class_names=tuple("é" * i for i in range(10)))
    for best in (0, 1, 3):
        query = replace(read_message(message().SerializeToString(), DIGITS, max_rows=1))
        query = replace(query, answer_format=replace(query.answer_format, classification=best))
        rng = np.random.default_rng(0)
        answers = [*rng.dirichlet(np.full(10, 0.1), 30), *np.eye(10), *np.zeros((1, 10))]
        sizes = {write_message(query, np.float32([row]), named).ByteSize() for row in answers}  # type: ignore[arg-type]
        assert len(sizes) == 1


def test_keys_and_addresses_reach_the_authenticator() -> None:
    stub = Stub()

    async def client(channel: grpc.aio.Channel, port: int) -> None:
        forwarded = ("x-forwarded-for", "1.2.3.4, 5.6.7.8")
        assert await call(channel, "ModelInfer", message(), key=(*KEY, forwarded))
        twice = (("x-forwarded-for", "1.2.3.4"), ("x-forwarded-for", "5.6.7.8"))
        assert await call(channel, "ModelInfer", message(), key=(*KEY, *twice))
        for key in (None, (("authorization", "Bearer bad"),), (("x-key", "Bearer good"),)):
            error = await refused(channel, "ModelInfer", message(), key=key)
            assert (error.code(), error.details()) == (CODE.UNAUTHENTICATED, "a key is needed")

    talk(stub, client)
    assert stub.seen[0] == ("Bearer good", "127.0.0.1", "1.2.3.4, 5.6.7.8")
    assert stub.seen[1] == ("Bearer good", "127.0.0.1", "5.6.7.8")  # what the nearest proxy said
    assert stub.seen[2:] == [(None, "127.0.0.1", None), ("Bearer bad", "127.0.0.1", None), (None, "127.0.0.1", None)]


def test_what_is_known_of_a_call_is_counted_with_it() -> None:
    stub = Stub()

    async def client(channel: grpc.aio.Channel, port: int) -> None:
        await call(channel, "ModelInfer", message(pictures(3)))
        await refused(channel, "ModelInfer", message(model_name="other"))
        await refused(channel, "ModelInfer", message(), key=None)
        await call(channel, "ServerLive")

    talk(stub, client)
    assert list(zip(stub.counted, stub.known, strict=True)) == [
        ((200, True), ("alice", 3)),
        ((404, True), ("alice", 0)),
        ((401, True), ("", 0)),
        ((200, False), ("", 0)),
    ]


def test_a_large_message_is_parsed_in_a_thread() -> None:
    stub = Stub()
    stub.settings.max_rows = 2048
    x = pictures(LARGE_BYTES // 256 + 1)

    async def client(channel: grpc.aio.Channel, port: int) -> None:
        found = await call(channel, "ModelInfer", message(x), oip.ModelInferResponse)
        assert np.allclose(np.frombuffer(found.raw_output_contents[0], np.float32).reshape(-1, 10), answer_to(x))
        assert stub.parsed == 1
        await call(channel, "ModelInfer", message())

    talk(stub, client)
    assert stub.parsed == 1


def test_connections_have_a_number() -> None:
    stub = Stub()
    stub.settings.max_connections = 3

    async def client(channel: grpc.aio.Channel, port: int) -> None:
        await call(channel, "ServerLive")
        wires = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
        ends = {asyncio.create_task(reader.read()) for reader, _ in wires}
        async with asyncio.timeout(60):
            while len(ends) > 2:
                _, ends = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(ends, timeout=0.2)
        assert not any(end.done() for end in ends)  # there is room for two beside the channel
        await call(channel, "ServerLive")
        for _, writer in wires:
            writer.close()
        await asyncio.gather(*ends, return_exceptions=True)

    talk(stub, client)


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:127.0.0.1:1234", "127.0.0.1"),
        ("ipv6:%5B::1%5D:1234", "::1"),
        ("ipv6:[2001:db8::7]:50051", "2001:db8::7"),
        ("ipv6:%5Bfe80::1%25eth0%5D:9", "fe80::1%eth0"),
        ("unix:/tmp/socket", None),
        ("unknown", None),
        ("", None),
    ],
)
def test_peer_host(peer: str, host: str | None) -> None:
    assert served.peer_host(peer) == host


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ServeError(400, "a"), CODE.INVALID_ARGUMENT),
        (ServeError(401, "a"), CODE.UNAUTHENTICATED),
        (ServeError(403, "a"), CODE.PERMISSION_DENIED),
        (ServeError(404, "a"), CODE.NOT_FOUND),
        (ServeError(413, "a"), CODE.RESOURCE_EXHAUSTED),
        (ServeError(415, "a"), CODE.INVALID_ARGUMENT),
        (ServeError(429, "a", rows=(3, 17)), CODE.RESOURCE_EXHAUSTED),
        (ServeError(500, "a"), CODE.INTERNAL),
        (ServeError(503, "a", retry_after=1), CODE.UNAVAILABLE),
        (ServeError(504, "a"), CODE.DEADLINE_EXCEEDED),
        (ValueError("a secret"), CODE.INTERNAL),
    ],
)
def test_errors_become_codes(error: Exception, code: grpc.StatusCode) -> None:
    stub = Stub(error=error)

    async def client(channel: grpc.aio.Channel, port: int) -> None:
        found = await refused(channel, "ModelInfer", message())
        assert found.code() == code
        if isinstance(error, ServeError):
            assert found.details() == "a"
            retry = dict(found.trailing_metadata() or ()).get("retry-after")
            assert retry == (str(error.retry_after) if error.retry_after else None)
            rows = dict(found.trailing_metadata() or ()).get("refused-rows")
            assert rows == ("3,17" if error.status == 429 else None)
        else:
            assert "secret" not in (found.details() or "")

    talk(stub, client)
    assert stub.counted == [(error.status if isinstance(error, ServeError) else 500, True)]


def test_a_client_that_goes_away_is_counted() -> None:
    stub = Stub()
    asked = asyncio.Event()

    async def slow(query: Query, caller: Caller) -> NDArray[np.float32]:
        asked.set()
        await asyncio.sleep(60)
        raise AssertionError("nobody waits for this")

    stub.infer = slow  # type: ignore[method-assign]

    async def client(channel: grpc.aio.Channel, port: int) -> None:
        pending = channel.unary_unary(PATH + "ModelInfer")(message().SerializeToString(), metadata=KEY)
        async with asyncio.timeout(60):
            await asked.wait()
            pending.cancel()
            while not stub.counted:
                await asyncio.sleep(0.01)

    talk(stub, client)
    assert stub.counted == [(499, True)]


def test_what_fails_after_its_client_went_away_writes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    stub = Stub()
    asked, go = asyncio.Event(), asyncio.Event()

    async def fail_late(query: Query, caller: Caller) -> NDArray[np.float32]:
        asked.set()
        await go.wait()
        raise ServeError(429, "no")

    stub.infer = fail_late  # type: ignore[method-assign]

    async def client(channel: grpc.aio.Channel, port: int) -> None:
        pending = channel.unary_unary(PATH + "ModelInfer")(message().SerializeToString(), metadata=KEY)
        async with asyncio.timeout(60):
            await asked.wait()
            pending.cancel()
            while not stub.counted:
                await asyncio.sleep(0.01)
            go.set()
            while stub.request_memory.total:
                await asyncio.sleep(0.01)
        gc.collect()  # asyncio complains of an error that nobody has read when the task is deleted

    talk(stub, client)
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_a_taken_port_is_an_error_for_the_operator() -> None:
    async def main() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(OptionError, match="choose another --grpc-port"):
                await served.start_grpc(Stub(), "127.0.0.1", taken.getsockname()[1])  # type: ignore[arg-type]

    asyncio.run(main())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed: no certificate to serve with")
def test_tls(tmp_path: Path) -> None:
    words = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost"
    made = subprocess.run(words.split(), cwd=tmp_path, capture_output=True, check=False)
    assert made.returncode == 0, made.stderr
    stub = Stub()
    stub.settings.tls_cert, stub.settings.tls_key = tmp_path / "cert.pem", tmp_path / "key.pem"

    async def client(plain: grpc.aio.Channel, port: int) -> None:
        trusted = grpc.ssl_channel_credentials((tmp_path / "cert.pem").read_bytes())
        options = [("grpc.ssl_target_name_override", "localhost")]
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", trusted, options) as channel:
            assert await call(channel, "ModelInfer", message())
        assert (await refused(plain, "ModelInfer", message())).code() == CODE.UNAVAILABLE

    talk(stub, client)


CLIENT = """
import json, sys
import numpy as np
import tritonclient.grpc as client

port, x = sys.argv[1], np.array(json.loads(sys.argv[2]), np.float32)
key = {"authorization": "Bearer good"}
with client.InferenceServerClient(f"127.0.0.1:{port}") as server:
    assert server.is_server_live() and server.is_server_ready() and server.is_model_ready("digits")
    assert server.get_server_metadata().name == "queen"
    told = server.get_model_metadata("digits", headers=key)
    assert [list(t.shape) for t in told.inputs] == [[-1, 1, 8, 8]]
    tensor = client.InferInput("input", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x)
    plain = server.infer("digits", [tensor], headers=key, request_id="7")
    best = [client.InferRequestedOutput("probabilities", class_count=3)]
    labels = server.infer("digits", [tensor], outputs=best, headers=key).as_numpy("probabilities")
    try:
        server.infer("digits", [tensor])
    except client.InferenceServerException as error:
        assert "UNAUTHENTICATED" in error.status(), error
    else:
        raise AssertionError("answered without a key")
    id = plain.get_response().id
    print(json.dumps([id, plain.as_numpy("probabilities").tolist(), [[t.decode() for t in row] for row in labels]]))
"""


def test_tritonclient_over_grpc() -> None:
    x = pictures(3)

    async def client(channel: grpc.aio.Channel, port: int) -> None:
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CLIENT, str(port), json.dumps(x.tolist()), stdout=-1, stderr=-1
        )
        out, err = await asyncio.wait_for(program.communicate(), 60)
        assert program.returncode == 0, err.decode()
        name, found, labels = json.loads(out)
        assert name == "7"
        expected = answer_to(x)
        np.testing.assert_array_equal(np.array(found, np.float32), expected)
        assert [[int(text.split(":")[1]) for text in row] for row in labels] == (-expected).argsort(1)[:, :3].tolist()

    talk(Stub(), client)


def test_messages_share_a_process_with_a_client_library(tmp_path: Path) -> None:
    common = tmp_path / "common.py"
    common.write_text(Path(oip.__file__).read_text().replace(".DescriptorPool()", ".Default()"))
    ours, theirs = (f"runpy.run_path('{path}')" for path in (oip.__file__, common))
    client = "import tritonclient.grpc.service_pb2"
    ends = [
        subprocess.run([sys.executable, "-c", f"import runpy; {first}; {second}"], capture_output=True, check=False)
        for first, second in ((ours, client), (client, ours), (client, theirs))
    ]
    assert [done.returncode for done in ends] == [0, 0, 1], [done.stderr for done in ends]
    assert b"duplicate" in ends[-1].stderr


def test_generated_messages_are_those_of_the_proto_file(tmp_path: Path) -> None:
    from google.protobuf import descriptor_pb2
    from grpc_tools import protoc

    source = Path(oip.__file__).with_name("oip.proto")
    root, out = source.parents[3], tmp_path / "set"
    assert protoc.main(["", f"-I{root}", f"--descriptor_set_out={out}", str(source)]) == 0
    fresh = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file[0]
    mine = descriptor_pb2.FileDescriptorProto.FromString(oip.DESCRIPTOR.serialized_pb)
    for file in (fresh, mine):
        _drop_json_names(file.message_type)
    assert fresh == mine
    assert "DescriptorPool()" in Path(oip.__file__).read_text()


def _drop_json_names(messages: Any) -> None:
    for one in messages:
        for part in one.field:
            part.ClearField("json_name")
        _drop_json_names(one.nested_type)
