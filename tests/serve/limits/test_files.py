"""The number of open files is raised as far as it goes, and what does not fit is said."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, resource, sys
from queen.errors import OptionError
from queen.serve.limits.files import fit_connections
from queen.serve.telemetry import log
log.setup()
soft, hard, wanted, ports = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
try:
    found = fit_connections(wanted, ports)
except OptionError as error:
    found = str(error)
print(json.dumps([found, *resource.getrlimit(resource.RLIMIT_NOFILE)]))
"""


def fit(soft: int, hard: int, wanted: int, ports: int = 2) -> tuple[list[object], str]:
    """What is possible and the limits afterwards, in a process of its own, and its log."""
    command = [sys.executable, "-c", PROGRAM, *map(str, (soft, hard, wanted, ports))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ((1024, 4096, 100), [100, 1024, 4096]),  # enough as it is
        ((256, 4096, 1000), [1000, 2128, 4096]),  # raised
        ((256, 1128, 1000), [500, 1128, 1128]),  # not far enough
    ],
)
def test_the_limit_is_raised_if_need_be_and_fewer_connections_are_said(limits, found):
    result, log = fit(*limits)
    assert result == found
    assert ("fewer connections than wanted" in log) == (found[0] < limits[2])
    assert ("ulimit -n 2128" in log) == (found[0] < limits[2])


def test_too_few_files_for_anything_are_an_error():
    (told, *_), _ = fit(100, 100, 10)
    assert "expected a limit of at least 130 open files, got 100" in str(told)
