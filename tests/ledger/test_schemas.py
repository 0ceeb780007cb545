"""Goal 26 small: every released version of a ledger is migrated whole or refused by name, whoever is killed."""

from __future__ import annotations

import pytest

from qa.serving import schemas
from qa.serving.scenario import failed
from tests.support.redis_server import redis_server

pytestmark = pytest.mark.slow


def test_files_of_every_version(tmp_path):
    checks = [*schemas.files(tmp_path), *schemas.killed_files(tmp_path, kills=2)]
    assert len(checks) == 16
    assert [str(check) for check in failed(checks)] == []


@pytest.mark.real
def test_layouts_of_every_version(tmp_path):
    server = redis_server(tmp_path)
    try:
        assert [str(check) for check in failed(schemas.layouts(server))] == []
    finally:
        server.kill()


def test_a_migration_without_a_transaction_is_caught(tmp_path):
    assert failed(schemas.control(tmp_path, quick=True))
