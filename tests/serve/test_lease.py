"""One server a ledger file: where its name is written down, and what happens to a second one."""

from __future__ import annotations

from pathlib import Path

import pytest

from queen.errors import OptionError
from queen.serve.lease import acquire, lease_path, owner


@pytest.mark.parametrize(
    ("ledger", "beside"),
    [
        ("sqlite:///state/ledger.sqlite", "state/ledger.sqlite.server"),
        ("sqlite:////var/a%20b.sqlite", "/var/a b.sqlite.server"),
        ("ledger.sqlite", "ledger.sqlite.server"),
        ("memory://", None),
        ("redis://localhost:6379/0", None),
    ],
)
def test_only_files_have_a_name_beside_them(ledger, beside):
    assert lease_path(ledger) == (None if beside is None else Path(beside))


def test_a_file_has_one_server_at_a_time(tmp_path):
    ledger = f"sqlite:///{tmp_path}/ledger.sqlite"
    with acquire(ledger, "127.0.0.1:1"):
        assert owner(ledger) == "127.0.0.1:1"
        with pytest.raises(OptionError, match=r"served already, at 127\.0\.0\.1:1"), acquire(ledger, "127.0.0.1:2"):
            pytest.fail("two servers have it")
    assert owner(ledger) is None


def test_a_ledger_in_memory_is_everybodys_own():
    with acquire("memory://", "127.0.0.1:1"), acquire("memory://", "127.0.0.1:2"):
        assert owner("memory://") is None
