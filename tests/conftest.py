import pytest
from hypothesis import HealthCheck, settings

from tests.support.redis_server import shared_server

settings.register_profile("queen", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("queen")


@pytest.fixture
def redis_url() -> str:
    """The address of an empty, durable Redis; one server for all tests of a process, so it is safe to run several."""
    server = shared_server()
    with server.client() as client:
        client.flushall()
    return server.url
