"""A server whose ledger has lost records says so, answers nobody, and goes on when an operator accepts the loss."""

from __future__ import annotations

import shutil

import pytest
from typer.testing import CliRunner

from queen import cli
from queen.errors import LostStateError
from queen.serve.service import Service
from queen.serve.settings import read_settings
from tests.support.redis_server import redis_server
from tests.support.server import ThreadServer, served_in_thread
from tests.support.serving import digits, small_bundle
from tests.support.waiting import wait_for


def wait_until(server: ThreadServer, status: int) -> None:
    """Until the server says this to a load balancer."""
    wait_for(lambda: server.get("/v2/health/ready")[0] == status)


def test_a_log_deleted_under_a_server_turns_it_red(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    with served_in_thread(tmp_path / "home", ledger=url) as server:
        assert server.infer(digits()[:2])[0] == 200
        wait_until(server, 200)
        (tmp_path / "ledger.sqlite-wal").unlink()
        wait_until(server, 503)
        assert server.infer(digits()[:1])[0] == 503
    with served_in_thread(tmp_path / "home", ledger=url) as server:
        assert server.service.guard.ledger.standing("alice").queries == 2


def test_an_emptied_redis_turns_every_server_red_until_that_is_accepted(tmp_path):
    redis, homes = redis_server(tmp_path / "redis"), [tmp_path / "one", tmp_path / "two"]
    try:
        with (
            served_in_thread(homes[0], ledger=redis.url) as one,
            served_in_thread(homes[1], ledger=redis.url) as two,
        ):
            for server in (one, two):
                assert server.infer(digits()[:2])[0] == 200
            redis.kill()
            shutil.rmtree(redis.folder / "aof")
            redis.start()
            for server in (one, two):
                server.key = server.new_key("alice")
                wait_until(server, 503)
                assert server.infer(digits()[:1])[0] == 503
            known = one.service.guard.ledger._servers.epochs.witness
            home = ("--home", str(homes[0]))
            done = CliRunner().invoke(
                cli.app, ["ledger", "accept", known.id, "--ledger", redis.url, *home, "--actor", "boss"]
            )
            assert "the loss is accepted" in done.output
            for server in (one, two):
                wait_until(server, 200)
                assert server.infer(digits()[:1])[0] == 200
    finally:
        redis.kill()


def test_a_server_does_not_start_on_a_ledger_that_is_gone_and_its_home_says_so(tmp_path):
    file = tmp_path / "home" / "ledger.sqlite"
    settings = read_settings({"bundle": small_bundle(), "home": tmp_path / "home"})
    service = Service.open(settings)
    assert [path.suffix for path in sorted(file.parent.glob("*.witness"))] == [".witness"]
    service.guard.ledger.close()
    file.unlink()
    with pytest.raises(LostStateError, match=r"is empty.*queen ledger accept"):
        Service.open(settings)


def test_a_home_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    (tmp_path / "home").write_text("not a folder")
    settings = read_settings({
        "bundle": small_bundle(), "home": tmp_path / "home", "ledger": f"sqlite:///{tmp_path / 'ledger.sqlite'}",
    })  # fmt: skip
    with pytest.raises(Exception, match="home"):  # its keys are there, too
        Service.open(settings)
    assert "no witness" in [record.message for record in caplog.records]
