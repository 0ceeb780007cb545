"""A stub of the admin server for each test, and one listening server for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.admin_stub import AdminStub, ExchangeableApp, busy_guard, listening


@pytest.fixture(scope="module")
def listener() -> Iterator[ExchangeableApp]:
    """A server that listens; a test gives it an application: `listener.app = stub.app()`."""
    app = ExchangeableApp()
    with listening(app) as app.url:
        yield app


@pytest.fixture
def stub(tmp_path) -> AdminStub:
    """A stub that the test may change."""
    return AdminStub(busy_guard(), tmp_path)
