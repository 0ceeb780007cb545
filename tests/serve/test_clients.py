"""Other people's clients against a real server: each gets the model's own answers, and clear errors."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from queen.ledger import Budget
from tests.support.paths import ROOT
from tests.support.server import Server, started
from tests.support.serving import digits, honest, noise

pytestmark = pytest.mark.real

ROWS = 7
CLIENTS = {
    "triton_http": {"binary", "json", "binary in, json out", "json in, binary out", "gzip", "deflate", "by version",
                    "with an id", "row by row", "at once"},
    "triton_http_aio": {"binary", "json", "gzip", "deflate", "by version", "at once"},
    "triton_grpc": {"binary", "asked for", "by version", "with an id", "row by row", "with a callback",
                    "after all mistakes"},
    "kserve_rest": {"binary", "json", "binary in, json out", "json in, binary out", "with an id"},
    "kserve_grpc": {"binary", "typed", "with an id"},
}  # fmt: skip
TRITON = [name for name in CLIENTS if name.startswith("triton")]
STATUS = {  # as HTTP and as gRPC say it
    "no key": ("401", "StatusCode.UNAUTHENTICATED", "a key is needed"),
    "bad key": ("401", "StatusCode.UNAUTHENTICATED", "is not valid"),
    "other model": ("404", "StatusCode.NOT_FOUND", "no model 'other' here"),
    "wrong shape": ("400", "StatusCode.INVALID_ARGUMENT", r"expected shape \[-1, 1, 8, 8\]"),
    "not finite": ("400", "StatusCode.INVALID_ARGUMENT", "expected finite numbers"),
    "refused": ("429", "StatusCode.RESOURCE_EXHAUSTED", "accused of extraction"),
}
EXCEPTIONS = {"triton": "InferenceServerException", "kserve_rest": "HTTPStatusError", "kserve_grpc": "AioRpcError"}

Report = dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with started(tmp_path_factory.mktemp("clients"), policy="sentinel", on_alarm="refuse") as running:
        yield running


@pytest.fixture(scope="module")
def report_of(server: Server) -> Callable[[str], Report]:
    """What a client's script was told; each script runs once, with keys of its own."""
    reports: dict[str, Report] = {}

    def find(client: str) -> Report:
        if client not in reports:
            reports[client] = run_script(server, client)
        return reports[client]

    return find


def run_script(server: Server, client: str) -> Report:
    job = {
        "rest": server.rest,
        "grpc": server.grpc,
        "model": "digits",
        "key": server.new_key(client),
        "thief": server.new_key(f"{client}-thief"),
        "poor": server.new_key(f"{client}-poor", budget=Budget(threshold=0.0, extra_answers=1)),
        "images": digits()[:ROWS].tolist(),
        "noise": noise().tolist(),
    }
    command = [sys.executable, "-m", f"tests.support.clients.{client}"]
    done = subprocess.run(
        command, cwd=ROOT, input=json.dumps(job), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def truth() -> np.ndarray:
    return honest(digits()[:ROWS]).numpy()


def assert_true(rows: object, truth: np.ndarray) -> None:
    assert np.shape(rows) == truth.shape
    assert np.abs(np.asarray(rows) - truth).max() < 1e-5
    assert (np.argmax(rows, 1) == truth.argmax(1)).all()


@pytest.mark.parametrize(("client", "form"), [(c, form) for c, forms in CLIENTS.items() for form in sorted(forms)])
def test_answers_are_the_models_own(client, form, report_of, truth):
    answer = report_of(client)["answers"][form]
    assert answer["dtype"] == "float32"
    assert_true(answer["rows"], truth)


@pytest.mark.parametrize("client", CLIENTS)
def test_no_form_of_a_client_is_left_out(client, report_of):
    assert set(report_of(client)["answers"]) == CLIENTS[client]


@pytest.mark.parametrize("client", CLIENTS)
def test_health_needs_no_key(client, report_of):
    facts = report_of(client)["facts"]
    assert [facts[name] for name in ("live", "ready", "model_ready")] == [True] * 3
    assert facts.get("version_ready", True)
    assert not facts.get("other_ready", False)


@pytest.mark.parametrize("client", [client for client in CLIENTS if client != "triton_http_aio"])
def test_an_id_comes_back(client, report_of):
    assert report_of(client)["facts"]["id with an id"] == "seven"


@pytest.mark.parametrize("client", TRITON)
def test_metadata_says_what_to_send(client, report_of):
    facts = report_of(client)["facts"]
    assert facts["server"]["name"] == "queen"
    model = facts["model"]
    assert (model["name"], model["versions"]) == ("digits", ["1"])
    found = {
        (t["name"], t["datatype"], tuple(map(int, t["shape"]))) for part in ("inputs", "outputs") for t in model[part]
    }
    assert found == {("input", "FP32", (-1, 1, 8, 8)), ("probabilities", "FP32", (-1, 10))}


@pytest.mark.parametrize("client", TRITON)
def test_the_best_classes_are_those_of_the_answer(client, report_of, truth):
    labels = report_of(client)["labels"]
    assert set(labels) == ({"binary"} if client == "triton_grpc" else {"binary", "json"})
    for found in labels.values():
        assert found["shape"] == [ROWS, 3]
        pairs = [re.fullmatch(r"([0-9.e+-]+):(\d)", text).groups() for text in found["texts"]]
        order = np.argsort(-truth, axis=1, kind="stable")[:, :3]
        assert [int(index) for _, index in pairs] == order.ravel().tolist()
        scores = np.take_along_axis(truth, order, axis=1).ravel()
        assert np.abs(np.array([float(score) for score, _ in pairs]) - scores).max() < 1e-5


PARTS = {"triton_http": {"binary", "json"}, "triton_grpc": {"binary"}, "kserve_rest": {"binary", "json"},
         "kserve_grpc": {"binary"}}  # fmt: skip


@pytest.mark.parametrize(("client", "form"), [(c, form) for c, forms in PARTS.items() for form in sorted(forms)])
def test_an_answer_in_part_is_understood(client, form, report_of, truth):
    assert set(report_of(client)["parts"]) == PARTS[client]
    part = report_of(client)["parts"][form]
    assert part["dtypes"] == ["float32", "bool"]
    refused, rows = np.array(part["refused"]), np.array(part["rows"])
    assert 0 < refused.sum() < ROWS
    assert_true(rows[~refused], truth[~refused])
    assert not rows[refused].any()  # zeros, which are nobody's probabilities


@pytest.mark.parametrize("mistake", STATUS)
@pytest.mark.parametrize("client", CLIENTS)
def test_errors_arrive_as_the_clients_own_exception(client, mistake, report_of):
    found = report_of(client)["errors"][mistake]
    http, grpc, says = STATUS[mistake]
    assert found["type"] == next(name for kind, name in EXCEPTIONS.items() if client.startswith(kind))
    assert found["status"] == (grpc if client.endswith("grpc") else http)
    assert re.search(says, found["says"])


@pytest.mark.parametrize("client", TRITON)
def test_names_and_shapes_are_for_those_with_a_key(client, report_of):
    found = report_of(client)["errors"]["metadata without key"]
    assert found["status"] in ("401", "StatusCode.UNAUTHENTICATED")


@pytest.mark.parametrize("call", ["compressed", "load a model"])
def test_what_grpc_does_not_offer_is_said(call, report_of):
    assert report_of("triton_grpc")["errors"][call]["status"] == "StatusCode.UNIMPLEMENTED"


@pytest.mark.parametrize("client", CLIENTS)
def test_a_thief_was_accused_and_its_neighbour_was_not(client, report_of, server):
    import requests

    report_of(client)
    stand = {
        name: requests.get(f"{server.url}/admin/clients/{name}", headers=server.admin_bearer, timeout=60).json()
        for name in (client, f"{client}-thief")
    }
    assert stand[f"{client}-thief"]["alarmed"]
    assert not stand[client]["alarmed"]


def example(server: Server, folder: Path, name: str, key: str) -> subprocess.CompletedProcess[str]:
    """Run an example as a user would, on two images."""
    images = digits()[:2]
    tensor = {"name": "input", "datatype": "FP32", "shape": list(images.shape), "data": images.flatten().tolist()}
    request = folder / "digit.json"
    request.write_text(json.dumps({"inputs": [tensor]}))
    address = f"127.0.0.1:{server.grpc if 'kserve' in name else server.rest}"
    if name.endswith(".sh"):
        if shutil.which("curl") is None:
            pytest.skip("curl is not installed: its example was NOT run")
        command = ["sh", f"examples/{name}", str(request), address, "digits"]
    else:
        command = [sys.executable, f"examples/{name}", str(request), "--server", address, "--model", "digits"]
    env = {**os.environ, "KEY": key}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)


PYTHON_EXAMPLES = ["client_triton.py", "client_kserve.py", "client_requests.py"]


def test_every_example_is_run():
    assert {path.name for path in (ROOT / "examples").glob("client_*")} == {*PYTHON_EXAMPLES, "client_curl.sh"}


@pytest.mark.parametrize("name", PYTHON_EXAMPLES)
def test_an_example_prints_the_best_classes(name, server, tmp_path, truth):
    done = example(server, tmp_path, name, server.key)
    expected = [f"class {row.argmax()} with probability {row.max():.4f}" for row in truth[:2]]
    assert (done.stdout.splitlines(), done.returncode) == (expected, 0), done.stderr


@pytest.mark.parametrize("name", PYTHON_EXAMPLES)
def test_an_example_with_a_bad_key_says_so(name, server, tmp_path):
    done = example(server, tmp_path, name, "no-such-key")
    assert done.returncode == 1
    assert "no answer: " in done.stderr
    assert "is not valid" in done.stderr
    assert "Traceback" not in done.stderr.partition("no answer: ")[2]


def test_curl_gets_the_answer(server, tmp_path, truth):
    done = example(server, tmp_path, "client_curl.sh", server.key)
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)["outputs"][0]
    assert (output["name"], output["datatype"], output["shape"]) == ("probabilities", "FP32", [2, 10])
    assert_true(np.reshape(output["data"], (2, 10)), truth[:2])


def test_curl_with_a_bad_key_gets_the_error(server, tmp_path):
    done = example(server, tmp_path, "client_curl.sh", "no-such-key")
    assert done.returncode != 0
    assert "is not valid" in json.loads(done.stdout)["error"]
