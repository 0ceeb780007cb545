from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.redis_server import shared_server

settings.register_profile("queen", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("queen")

# What a test asks for by name says what it needs: a fixture, or the id of a parameter.
MARKS = {
    "redis_url": "real",
    "redis_server": "real",
    "redis": "real",
    "redis reopened": "real",
    "redis cluster": "real",
    "cluster": "real",
    "demo": "slow",
}


def pytest_configure(config: pytest.Config) -> None:
    """Before workers start, have ART write the file that its first import writes: two at once break each other."""
    starts_workers = getattr(config.option, "numprocesses", None)  # is None in a worker itself
    if starts_workers and not Path("~/.art/config.json").expanduser().exists():
        with suppress(ImportError):
            import art.config  # noqa: F401


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        names = {*getattr(item, "fixturenames", ()), *getattr(getattr(item, "callspec", None), "id", "").split("-")}
        for mark in {MARKS[name] for name in names & MARKS.keys()}:
            item.add_marker(mark)


@pytest.fixture
def redis_url() -> str:
    """The address of an empty, durable Redis; one server for all tests of a process, so it is safe to run several."""
    server = shared_server()
    with server.client() as client:
        client.flushall()
    return server.url
