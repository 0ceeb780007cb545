from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import serving
from tests.support.upstreams import Upstream, kserve_upstream, write_weights


@pytest.fixture(scope="session")
def kserve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    with kserve_upstream(tmp_path_factory.mktemp("kserve")) as upstream:
        yield upstream


@pytest.fixture
def upstream(kserve: Upstream) -> Iterator[Upstream]:
    """KServe's model server with the digits network; whatever a test lets it do ends with the test."""
    yield kserve
    kserve.behave()
    write_weights(serving.trained(), kserve.folder / "weights.npz")
