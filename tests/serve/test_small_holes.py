"""The scenario of small holes, as far as one server shows them."""

from __future__ import annotations

import pytest

from qa.serving import small
from qa.serving.scenario import failed

pytestmark = pytest.mark.slow


def test_a_server_has_none_of_them(tmp_path):
    checks = small.on_a_server(tmp_path)
    assert len(checks) == 9
    assert [str(check) for check in failed(checks)] == []
