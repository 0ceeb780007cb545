"""How many files the process may have open: every connection is one, and beside them the server needs some itself."""

from __future__ import annotations

import resource

from queen.errors import OptionError
from queen.serve.telemetry.log import log

SPARE = 128  # files for the ledger, keys, logs, and connections that are just being refused


def file_limit() -> int:
    """Most files that the process may have open now."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def fit_connections(wanted: int, ports: int) -> int:
    """How many connections each of the ports that the server listens on may have: as many as wanted, or as files allow.

    The limit of this process is raised for it as far as its hard limit goes. If that is too low, the log says so.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted * ports + SPARE
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    possible = min(wanted, (soft - SPARE) // ports)
    if possible < 1:
        raise OptionError(f"expected a limit of at least {SPARE + ports} open files, got {soft}: ulimit -n {needed}")
    if possible < wanted:
        log(
            "fewer connections than wanted",
            level="warning",
            max_connections=possible,
            wanted=wanted,
            why=f"the process may open {soft} files: ulimit -n {needed}, or LimitNOFILE={needed} for systemd",
        )
    return possible
