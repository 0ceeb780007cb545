"""The way from a running server of the protocol to a guarded one, with the programs that the documents name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.support.guards import digits as flat_digits
from tests.support.guards import images
from tests.support.paths import ROOT
from tests.support.server import Server, started
from tests.support.serving import KNOWN, TRAIN, digits, honest
from tests.support.upstreams import free_port
from tests.support.waiting import PATIENCE, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.real]


@pytest.fixture(scope="module")
def guard(kserve, tmp_path_factory) -> Iterator[Server]:
    """`queen guard` as a process, in front of KServe's server over gRPC, with its headers from a file."""
    folder = tmp_path_factory.mktemp("guard")
    headers = folder / "headers"
    headers.touch(mode=0o600)
    headers.write_text("X-Team: digits\n")
    options = {"upstream": kserve.grpc, "upstream_model": "digits", "upstream_header_file": headers}
    with started(folder, command="guard", **options) as server:
        yield server


def test_tritons_clients_ask_the_guard(guard):
    x = digits()[:5]
    for module, port in ((tritonclient.http, guard.rest), (tritonclient.grpc, guard.grpc)):
        with module.InferenceServerClient(f"127.0.0.1:{port}") as client:
            tensor = module.InferInput("input", list(x.shape), "FP32")
            tensor.set_data_from_numpy(x.numpy())
            headers = {"authorization": f"Bearer {guard.key}"}
            answer = client.infer("digits", [tensor], headers=headers).as_numpy("probabilities")
            assert np.allclose(answer, honest(x).numpy(), atol=1e-5)
            with pytest.raises(tritonclient.utils.InferenceServerException):
                client.infer("digits", [tensor], outputs=[module.InferRequestedOutput("logits")], headers=headers)
            assert client.is_server_ready()


def test_a_kserve_transformer_asks_the_guard(guard):
    port = free_port()
    command = [sys.executable, "examples/kserve_transformer.py", "--http_port", str(port), "--guard", guard.url]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "KEY": guard.key}, stderr=subprocess.DEVNULL)
    url, x = f"http://127.0.0.1:{port}/v2/models/digits-raw", digits()[:3]
    pixels = {"name": "pixels", "datatype": "FP32", "shape": list(x.shape), "data": (16 * x).flatten().tolist()}
    try:
        wait_for(lambda: process.poll() is None and _ready(f"{url}/ready"))
        reply = httpx.post(f"{url}/infer", json={"id": "1", "inputs": [pixels]}, timeout=PATIENCE)
        assert reply.status_code == 200, reply.text
        [output] = reply.json()["outputs"]
        assert np.allclose(np.reshape(output["data"], (3, 10)), honest(x).numpy(), atol=1e-5)
        stranger = {"Authorization": "Bearer nobody's"}
        assert httpx.post(f"{url}/infer", json={"id": "1", "inputs": [pixels]}, headers=stranger).status_code == 401
    finally:
        process.kill()
        process.wait(PATIENCE)


def test_from_a_running_server_to_a_guarded_one(kserve, tmp_path):
    x, y = images(flat_digits()[0]), flat_digits()[1]
    np.savez(tmp_path / "train.npz", x=x[TRAIN].numpy(), y=y[TRAIN].numpy())
    np.savez(tmp_path / "held_out.npz", x=x[KNOWN].numpy())
    script = ["sh", str(ROOT / "examples/guard_upstream.sh"), kserve.rest, "digits", "train.npz", "held_out.npz"]
    bin_folder = os.path.dirname(sys.executable)
    environment = {**os.environ, "ONCE": "1", "PORT": str(free_port()), "PYTHONPATH": str(ROOT / "src")}
    environment["PATH"] = f"{bin_folder}:{environment['PATH']}"
    done = subprocess.run(
        script, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert '"outputs":[{"name":"probabilities"' in done.stdout
    assert "guarded: http://127.0.0.1:" in done.stdout


def _ready(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.HTTPError:
        return False
