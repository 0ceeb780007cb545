"""Requests made up from the server's own description: nothing breaks it, and what it refuses leaves no trace."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case, CheckContext, GenerationMode, Response
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import positive_data_acceptance

from queen.serve.access.key_store import open_keys
from queen.serve.protocol.openapi import JSON, RAW, openapi
from queen.serve.protocol.rest_read import HEADER
from queen.serve.types import ModelSpec, TensorSpec
from tests.support.server import Server, started
from tests.support.serving import digits

pytestmark = pytest.mark.real

EXAMPLES = 50  # an operation
TIMEOUT = 60

SPEC = ModelSpec("digits", "1", (TensorSpec("input", "FP32", (-1, 1, 8, 8)),), 10)
described = schemathesis.openapi.from_dict(openapi(SPEC, max_rows=1024))
described.config.generation.update(modes=list(GenerationMode), max_examples=EXAMPLES)
described.config.checks.negative_data_rejection.expected_statuses = ["4xx"]


@dataclass
class Seen:
    """Every response that the server gave to made-up requests."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    rows: int = 0  # answered

    def note(self, response: requests.Response, *args: object, **kwargs: object) -> None:
        name = response.request.path_url.partition("?")[0].rpartition("/")[2]
        self.statuses[name, response.status_code] += 1
        if name == "infer" and response.status_code == 200:
            length = int(response.headers.get(HEADER, len(response.content)))
            self.rows += json.loads(response.content[:length])["outputs"][0]["shape"][0]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with started(tmp_path_factory.mktemp("described"), policy="sentinel") as running:
        yield running


@pytest.fixture(scope="module")
def seen() -> Seen:
    return Seen()


@pytest.fixture(scope="module")
def session(seen: Seen) -> Iterator[requests.Session]:
    with requests.Session() as made:
        made.hooks["response"].append(seen.note)
        yield made


@pytest.fixture
def _golden(server: Server) -> Iterator[None]:
    """A sound query of another client gets the same answer before and after."""
    keys = open_keys(server.home, "memory://")
    key, _ = keys.add("golden")
    keys.close()
    before = ask(server, key)
    yield
    assert ask(server, key) == before


def ask(server: Server, key: str) -> bytes:
    body, _ = request_of(digits()[:5].numpy())
    url, headers = f"{server.url}/v2/models/digits/infer", {"Authorization": f"Bearer {key}"}
    answer = requests.post(url, body, headers=headers, timeout=TIMEOUT)
    assert answer.status_code == 200, answer.text
    return answer.content


def standing(server: Server) -> dict[str, Any]:
    """All that the ledger knows of the client that sends the made-up requests."""
    url = f"{server.url}/admin/clients/alice"
    return requests.get(url, headers=server.admin_bearer, timeout=TIMEOUT).json() | {"events": None}  # which lag


def request_of(images: np.ndarray, *, raw: bool = False) -> tuple[bytes, int]:
    """A sound request and the length of its JSON."""
    tensor: dict[str, Any] = {"name": "input", "datatype": "FP32", "shape": images.shape}
    own = {"parameters": {"binary_data_size": images.nbytes}} if raw else {"data": images.ravel().tolist()}
    head = json.dumps({"inputs": [tensor | own]}).encode()
    return head + (images.tobytes() if raw else b""), len(head)


def mend(case: Case, first: int) -> None:
    """Give a made-up request what a description cannot say: as many numbers as its shape has."""
    images = digits()[first % 290 :][:3].numpy()
    if case.media_type == RAW:
        case.body, length = request_of(images, raw=True)
        case.headers[HEADER] = str(length)
        return
    case.headers.pop(HEADER, None)
    tensor = case.body["inputs"][0]
    images = images[: 1 + int(tensor["shape"][0]) % 3]
    nested = isinstance(tensor["data"][0], list)
    tensor |= {"shape": list(images.shape), "data": images.tolist() if nested else images.ravel().tolist()}
    case.body = case.body | {"inputs": [tensor]}


def tells_errors(ctx: CheckContext, response: Response, case: Case) -> None:
    """An error is an object with one line, whatever the cause."""
    if response.status_code >= 400 and response.request.method != "HEAD":
        told = response.json()
        assert list(told) == ["error"]
        assert told["error"].strip()
        assert "\n" not in told["error"]


def is_sound(case: Case) -> bool:
    """Whether the request is one for answers, of the form that the description gives."""
    return (
        case.operation.path.endswith("/infer")
        and case.method == "POST"
        and case.media_type in (JSON, RAW)
        and case.meta is not None
        and case.meta.generation.mode is GenerationMode.POSITIVE
    )


@described.parametrize()
@pytest.mark.usefixtures("_golden")
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,  # once per operation is what is wanted
        HealthCheck.too_slow,
    ],
)
def test_made_up_requests(case: Case, server: Server, session: requests.Session, seen: Seen):
    options = {"base_url": server.url, "session": session, "headers": server.bearer, "timeout": TIMEOUT}
    checks = {"additional_checks": [tells_errors]}
    before, rows = standing(server), seen.rows
    if is_sound(case):
        case.call_and_validate(**options, **checks, excluded_checks=[positive_data_acceptance])
        mend(case, seen.rows)
        assert case.call_and_validate(**options, **checks).status_code == 200
        assert seen.rows > rows
    else:
        case.call_and_validate(**options, **checks)
    after = standing(server)
    assert after["queries"] - before["queries"] == seen.rows - rows
    assert seen.rows > rows or after == before


def test_the_description_is_what_the_server_says(server):
    said = requests.get(f"{server.url}/openapi.json", headers=server.bearer, timeout=TIMEOUT)
    assert said.json() == described.raw_schema
    assert len(said.json()["paths"]) == 10


def test_a_wrong_description_would_be_noticed(server):
    wrong = deepcopy(described.raw_schema)
    wrong["paths"]["/v2/health/live"]["get"]["responses"]["200"]["content"][JSON]["schema"]["required"] = ["alive"]
    case = schemathesis.openapi.from_dict(wrong)["/v2/health/live"]["GET"].Case()
    with pytest.raises(FailureGroup, match="alive"):
        case.call_and_validate(base_url=server.url, timeout=TIMEOUT)
    case = described["/v2/health/live"]["GET"].Case()
    assert case.call_and_validate(base_url=server.url, timeout=TIMEOUT).json() == {"live": True}
