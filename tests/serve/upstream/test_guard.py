"""A guard in front of KServe's model server: the model's own answers, and none that nobody could vouch for."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from queen.errors import BundleModelError, OptionError, UpstreamError
from queen.serve import batcher
from tests.support.server import ThreadServer, served_in_thread
from tests.support.serving import digits, honest, retrained_bundle, small_bundle
from tests.support.upstreams import Upstream, free_port, kserve_upstream
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.real]

FAULTS = ("slow 2", "error", "nan", "fewer", "narrow", "names", "shape", "shuffled", "unready")
SECRETS = ("secret", "srv", "10.1.2.3", "127.0.0.1", "http", "features", "logits", "upstream")


@pytest.fixture
def guarded(upstream: Upstream, tmp_path, request):
    """A guard with the bundle that was made of the network itself."""
    options = {"upstream": upstream.url(getattr(request, "param", "http")), "upstream_model": "digits"}
    options |= {"upstream_timeout": 0.5, "upstream_check": 60, "grpc_port": 0}
    with served_in_thread(tmp_path, **options) as server:
        yield server


def on_record(server: ThreadServer) -> int:
    standing = server.service.guard.ledger.standing("alice")
    return 0 if standing is None else standing.queries


def is_ready(server: ThreadServer) -> bool:
    return server.get("/v2/health/ready")[0] == 200


def errors(server: ThreadServer, kind: str) -> float:
    text = server.service.metrics.render()[0].decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if f'upstream_errors_total{{kind="{kind}"' in line)


@pytest.mark.parametrize("guarded", ["http", "grpc"], indirect=True)
def test_answers_are_the_models_own_and_nothing_else_is_shown(guarded):
    x = digits()[:40]
    status, _, answer = guarded.infer(x)
    assert status == 200
    [output] = answer["outputs"]
    assert output["name"] == "probabilities"
    assert torch.allclose(torch.tensor(output["data"]).view(-1, 10), honest(x), atol=1e-5)
    metadata = guarded.get("/v2/models/digits", guarded.key)[2]
    assert [one["name"] for one in metadata["outputs"]] == ["probabilities"]
    assert not any(word in json.dumps([answer, metadata]) for word in SECRETS)
    assert on_record(guarded) == 40


@pytest.mark.parametrize(
    ("guarded", "fault"),
    [*(("http", fault) for fault in FAULTS), *(("grpc", fault) for fault in ("slow 2", "error", "fewer"))],
    indirect=["guarded"],
)
def test_without_a_usable_answer_there_is_none_and_nothing_is_recorded(guarded, upstream, fault):
    assert guarded.infer(digits()[:1])[0] == 200
    upstream.behave(fault)
    status, headers, answer = guarded.infer(digits()[1:5])
    assert status == (504 if fault.startswith("slow") else 503)
    assert headers["retry-after"] == "1"
    assert answer["error"] in (batcher.NOT_ASKED, batcher.TOO_LATE)
    assert on_record(guarded) == 1
    wait_for(lambda: not is_ready(guarded))
    assert guarded.infer(digits()[1:5])[0] == 503
    assert on_record(guarded) == 1
    upstream.behave()
    wait_for(lambda: is_ready(guarded))
    assert guarded.infer(digits()[1:5])[0] == 200
    assert on_record(guarded) == 5


@pytest.mark.parametrize(
    ("guarded", "mode", "kind"),
    [("http", "poison", "unusable"), ("http", "refuse", "rejected"), ("grpc", "refuse", "rejected")],
    indirect=["guarded"],
)
def test_one_bad_request_in_a_batch_harms_no_other(guarded, upstream, mode, kind):
    upstream.behave(f"{mode} 0.515625")
    good, bad = digits()[:4], digits()[4:5].clone()
    bad[0, 0, 0, 0] = 0.515625
    assert not (good[:, 0, 0, 0] == 0.515625).any()
    batches = threading.Barrier(8)

    def ask(i: int) -> int:
        batches.wait()
        return guarded.infer(bad if i == 3 else good, guarded.key)[0]

    for _ in range(3):
        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(ask, range(8)))
        assert statuses == [503 if i == 3 else 200 for i in range(8)]
    assert on_record(guarded) == 3 * 7 * 4
    assert is_ready(guarded)  # whatever a client sends
    assert errors(guarded, kind) >= 3


def test_another_model_is_noticed_at_the_first_question(guarded, upstream):
    assert guarded.infer(digits()[:2])[0] == 200
    upstream.swap(1)
    assert guarded.infer(digits()[2:4])[0] == 503
    wait_for(lambda: not is_ready(guarded))
    assert errors(guarded, "other_model") >= 1
    upstream.swap(0)
    wait_for(lambda: is_ready(guarded))
    assert guarded.infer(digits()[2:4])[0] == 200
    assert on_record(guarded) == 4


def test_another_model_is_noticed_when_nobody_asks(upstream, tmp_path):
    options = {"upstream": upstream.rest, "upstream_model": "digits", "upstream_check": 0.1}
    with served_in_thread(tmp_path, **options) as server:
        assert is_ready(server)
        upstream.swap(1)
        wait_for(lambda: not is_ready(server))


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_another_model_is_refused_by_name_at_the_start(upstream, tmp_path, scheme):
    options = {"upstream": upstream.url(scheme), "upstream_model": "digits", "bundle": retrained_bundle()}
    with (
        pytest.raises(BundleModelError, match="belongs to another model"),
        served(tmp_path, **options),
    ):
        pass


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_an_upstream_that_is_down_at_the_start_is_named(tmp_path, scheme):
    address = f"{scheme}://127.0.0.1:{free_port()}"
    with (
        pytest.raises(UpstreamError, match=f"the upstream {address} cannot be used"),
        served(tmp_path, upstream=address, upstream_model="digits", upstream_wait=0),
    ):
        pass


def test_a_missing_output_is_named_with_those_that_there_are(upstream, tmp_path):
    options = {"upstream": upstream.rest, "upstream_model": "digits", "upstream_features": "embedding"}
    with pytest.raises(OptionError, match="no output 'embedding', but features, logits"), served(tmp_path, **options):
        pass


def test_logits_alone_are_not_enough_for_a_bundle_that_was_fitted_on_features(upstream, tmp_path):
    options = {"upstream": upstream.rest, "upstream_model": "digits", "upstream_features": "none"}
    with pytest.raises(BundleModelError, match="queen protect --upstream URL"), served(tmp_path, **options):
        pass


def served(tmp_path, **options):
    """A start in this thread, whose errors are the test's."""
    from contextlib import contextmanager

    from queen.serve.load import load_guard
    from queen.serve.settings import read_settings
    from queen.serve.upstream.settings import GuardSettings

    @contextmanager
    def start():
        yield load_guard(read_settings({"bundle": small_bundle(), "home": tmp_path, **options}, kind=GuardSettings))

    return start()


@pytest.mark.parametrize("scheme", ["http", pytest.param("grpc", marks=pytest.mark.long)])
def test_an_upstream_that_dies_under_load_and_comes_back_costs_nobody_anything(tmp_path, scheme):
    with kserve_upstream(tmp_path) as upstream:
        options = {"upstream": upstream.url(scheme), "upstream_model": "digits", "upstream_timeout": 1}
        options["upstream_check"] = 0.5
        with served_in_thread(tmp_path / "home", **options) as server:
            answered, stop = [0], threading.Event()
            lock, others = threading.Lock(), set()

            def ask() -> None:
                while not stop.is_set():
                    status = server.infer(digits()[:2])[0]
                    with lock:
                        answered[0] += 2 * (status == 200)
                        others.add(status)

            threads = [threading.Thread(target=ask) for _ in range(4)]
            for thread in threads:
                thread.start()
            wait_for(lambda: answered[0] > 20)
            upstream.process.kill()
            wait_for(lambda: not is_ready(server))
            before = answered[0]
            with kserve_upstream(tmp_path, rest_port=upstream.rest_port, grpc_port=upstream.grpc_port):
                wait_for(lambda: is_ready(server))
                wait_for(lambda: answered[0] > before + 20)
                stop.set()
                for thread in threads:
                    thread.join()
            assert others <= {200, 503, 504}
            assert on_record(server) == answered[0]
