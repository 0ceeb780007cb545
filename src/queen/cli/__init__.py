"""The command line: thin commands over the library. Results go to standard output, the rest to standard error.

One file per command or group of commands; heavy imports wait until their command runs. Nothing imports this package
but `queen.__main__`.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import TracebackType

# `queen --help` lists the commands in the order in which their modules are imported, and groups last.
# isort: off
from queen.cli import demo, protect, ask, inspect, certify, price, calibrate, serve, operate, audit, speed  # noqa: F401
from queen.cli import keys, ledger, bench  # noqa: F401
# isort: on

from queen.cli.shared import app, err, secret_warnings, visible
from queen.errors import QueenError, reason
from queen.extras import missing

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2, never a stack trace."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # so that package.module:factory finds modules beside the user
    sys.excepthook = _print_crash
    for warning in secret_warnings(sys.argv[1:]):
        err.print(f"warning: {warning}", style="yellow", soft_wrap=True)
    try:
        app()
    except ModuleNotFoundError as error:
        err.print(f"error: {missing(error)}", style="red", soft_wrap=True)
        sys.exit(2)
    except QueenError as error:
        err.print(f"error: {' '.join(str(error).split())}", style="red", soft_wrap=True)
        sys.exit(2)
    except OSError as error:  # a full disk, say
        where = f": '{error.filename}'" if error.filename else ""
        err.print(f"error: {reason(error)}{where}", style="red", soft_wrap=True)
        sys.exit(2)


def _print_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Python's stack trace of a mistake of ours, whose texts may be a client's."""
    sys.stderr.write(visible("".join(traceback.format_exception(kind, error, trace)), "\n"))
