"""The scenarios of qa/, small, on real servers: hostile input, sizes, slow clients, keys, faults, and the end."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.client import HTTPConnection

import pytest

from qa.serving import bogus, fairness, faults, hostile, shutdown, sizes, slow
from qa.serving.memory import MIB
from qa.serving.rest import ask, get, post
from qa.serving.scenario import Check, failed
from qa.serving.state import body_of
from queen.errors import LedgerError
from queen.ledger import SqliteLedger
from queen.serve.protocol.grpc_messages import read_message
from queen.serve.service import Service
from queen.serve.settings import read_settings
from queen.serve.types import ServeError
from tests.support.grpc_stub import message, typed
from tests.support.paths import ROOT
from tests.support.rest_bodies import DIGITS, pictures
from tests.support.server import Server, started
from tests.support.serving import small_bundle
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow

ANY = math.inf  # seconds or bytes: those are measured by the programs of qa/, on a machine of their own


def assert_all(checks: Sequence[Check]) -> None:
    assert checks
    assert [str(check) for check in failed(checks)] == []


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hostile.Stage]:
    """One server for all that must leave no trace, as talkative as it gets."""
    file = tmp_path_factory.mktemp("hostile") / "ledger.sqlite"
    url = f"sqlite:///{file}"
    places = {"max_connections": 300, "max_address_connections": 300}
    with started(file.parent, ledger=url, **places, **hostile.SETTINGS, **bogus.LINES) as server:
        yield hostile.staged(server, url, file, file.with_name("ledger.sqlite-wal"))


@pytest.fixture(scope="module")
def server(stage: hostile.Stage) -> Server:
    return stage.server


def test_named_cases_are_refused_and_leave_no_trace(stage):
    assert_all(hostile.named(stage))


def test_fuzzed_requests_are_refused_or_answered_and_recorded(stage):
    assert_all(hostile.fuzzed(stage, 300))


@pytest.mark.long
def test_a_server_that_trusts_its_input_is_found_out(tmp_path):
    with started(tmp_path, module="qa.broken.trusting", **hostile.SETTINGS) as server:
        wrong = {check.name for check in failed(hostile.named(hostile.staged(server, "memory://"), only="json"))}
    assert {"REST requests not refused", "5xx as the server counts them"} <= wrong
    assert "changes of ledger, keys and standings" in wrong


def test_bogus_keys_add_no_state_and_are_in_no_log(stage):
    assert_all(bogus.over_network(stage.server, 1000, *stage.ledger, room=ANY))


def test_bogus_keys_cost_the_authenticator_nothing(tmp_path):
    assert_all(bogus.in_process(tmp_path, 5000))


def test_slow_clients_are_shown_the_door_and_others_are_answered(server):
    report = slow.beset(server, 24, PATIENCE)
    assert len(report.seconds_kept) == 9
    assert_all(slow.shown_the_door(server, report, within=ANY))


@pytest.mark.parametrize("flood", sizes.FLOODS.values(), ids=sizes.FLOODS)
def test_what_belongs_to_no_body_is_refused(server, flood):
    assert 400 <= sizes.send_flood(server, flood) < 500


def test_requests_that_nobody_waits_for_do_no_harm(server):
    assert ask(server.rest, get("/v2") * 100_000).status in (200, 400)
    assert ask(server.rest, post(body_of(), server.key)).status == 200


def test_a_client_hears_that_its_body_is_too_large_while_it_still_sends(server):
    for size in (hostile.MAX_BODY + 1, 30 * hostile.MAX_BODY):
        connection = HTTPConnection("127.0.0.1", server.rest, timeout=PATIENCE)
        connection.request("POST", "/v2/models/digits/infer", bytes(size), server.bearer)
        assert connection.getresponse().status == 413
        connection.close()


def test_a_refused_request_leaves_the_connection_for_the_next(server):
    connection = HTTPConnection("127.0.0.1", server.rest, timeout=PATIENCE)
    found = []
    for body in (bytes(hostile.MAX_BODY + 1), b"{", body_of()):
        connection.request("POST", "/v2/models/digits/infer", body, server.bearer)
        reply = connection.getresponse()
        reply.read()
        found.append(reply.status)
    connection.close()
    assert found == [413, 400, 200]


def test_the_largest_request_is_answered_and_one_byte_more_is_not(tmp_path):
    limit = 8 * MIB
    with sizes.wide_server(tmp_path / "wide", limit) as server:
        forms = sizes.forms(server, limit)
        assert set(sizes.QUICK) < set(sizes.FORMS) == set(forms)
        assert_all([sizes.measured(server, replace(form, times=ANY), limit) for form in forms.values()])
        numbers = limit // sizes.BYTES_PER_VALUE
        crowded = b"[" + b"0.25," * numbers + b"0]"
        told = ask(server.rest, post(crowded, server.key, path=sizes.INFER))
    assert (told.status, "raw bytes" in told.json["error"]) == (413, True)


def _refusal(raw: bytes, max_values: int) -> int:
    try:
        read_message(raw, DIGITS, max_rows=4, max_values=max_values)
    except ServeError as error:
        return error.status
    return 200


@pytest.mark.parametrize(
    ("found", "count"),
    [
        (typed("FP32", "fp32_contents", pictures().ravel().tolist()), 64 + 4),
        (typed("FP64", "fp64_contents", pictures().ravel().tolist()), 64 + 4),
        (typed("INT64", "int64_contents", [300] * 64), 64 + 4),
        (typed("UINT8", "uint_contents", [3] * 1000, [1] * 500), 1000 + 500),
    ],
)
def test_typed_numbers_are_counted_before_they_are_read(found, count):
    raw = found.SerializeToString()
    assert _refusal(raw, count - 1) == 413
    assert _refusal(raw, count) in (200, 400)


def test_numbers_that_come_one_by_one_are_fields_too():
    unpacked = b"".join(b"\x35" + bytes(4) for _ in range(1001))  # fp32_contents, each with a tag of its own
    tensor = b"\x2a" + _varint(len(unpacked)) + unpacked
    assert _refusal(b"\n\x06digits\x2a" + _varint(len(tensor)) + tensor, 1 << 20) == 400


def _varint(value: int) -> bytes:
    return bytes([value & 127 | 128, value >> 7])


def test_what_nobody_knows_is_left_out_of_a_message():
    raw = message().SerializeToString()
    assert _refusal(raw + b"\xfa\x3f\x03abc", 100) == 200
    assert _refusal(raw + b"\xfa\x3f\x09abc", 100) == 400


def test_strangers_cannot_fill_the_log(server):
    before = len(server.stderr())
    for _ in range(50):
        ask(server.rest, b"\x00\x01\r\n\r\n")
    assert len(server.stderr()) == before


def test_a_file_that_fails_means_no_answers_until_it_works_again(tmp_path):
    assert_all(faults.with_file(tmp_path / "file", 32))


def test_a_file_of_noise_means_no_answers(tmp_path):
    assert_all(faults.damaged(tmp_path / "noise", 4))


def test_a_read_only_file_is_refused_at_the_start(tmp_path):
    file = tmp_path / "ledger.sqlite"
    SqliteLedger(file).close()
    with faults.read_only(file) as possible:
        if not possible:
            pytest.skip("no file can be made read-only for root here (chattr), so nothing is tested")
        with pytest.raises(LedgerError, match="readonly"):
            Service.open(read_settings({"bundle": small_bundle(), "home": tmp_path, "ledger": f"sqlite:///{file}"}))


@pytest.mark.real
def test_a_redis_that_fails_means_no_answers_until_it_works_again(tmp_path):
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (Debian: apt install redis-server), so nothing is tested with it")
    assert_all(faults.with_redis(tmp_path / "redis", 16))


@pytest.mark.long
def test_a_server_that_forgives_its_ledger_is_found_out(tmp_path):
    wrong = {
        check.name for check in failed(faults.with_file(tmp_path / "file", 8, module="qa.broken.forgiving", most=1))
    }
    assert wrong == {"answers that are not on record", "no room left in the file"}


def test_a_server_told_to_stop_answers_what_it_accepted(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    assert_all(shutdown.ended(tmp_path / "end", url, hangers=True, within=ANY, shutdown_timeout=4.0))


@pytest.mark.long
def test_a_server_that_just_ends_is_found_out(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    wrong = failed(shutdown.ended(tmp_path / "end", url, module="qa.broken.abrupt", within=ANY))
    assert any("answered is recorded" in check.name for check in wrong)


def test_every_scenario_is_a_program():
    goals = sorted(path for path in (ROOT / "qa").iterdir() if path.name[0].isdigit())
    assert {path.name[:2] for path in goals} >= {"04", "07", "08", "09", "10", "18"}
    assert [path.name for path in goals if not ((path / "run.py").exists() and (path / "README.md").exists())] == []


def test_a_flood_refuses_nobody_else_and_the_accused_lose_first(tmp_path):
    with fairness.pinned(tmp_path, max_queue=fairness.SHORT) as server:
        assert_all(fairness.besieged(server, 1.0, [fairness.Flood(16, 256)], judge_times=False))
        assert_all(fairness.accused_lose_first(server, 1.0))


@pytest.mark.long
def test_a_server_with_one_queue_for_all_is_found_out(tmp_path):
    with fairness.pinned(tmp_path, module="qa.broken.one_queue", max_queue=fairness.SHORT) as server:
        assert failed(fairness.accused_lose_first(server, 1.0))
