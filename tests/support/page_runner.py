"""A document as its reader runs it: every Python and shell block, from the top down, in one folder.

A Python block that begins with the name of a file, `# ask.py: ...`, is saved as that file and nothing else; the others
are run, and share their names. A shell line is run as it stands, with these exceptions: `queen` runs in this process,
which saves its start; `queen serve` runs on until the next line that says Ctrl-C, on another port; a line that says
`# refused` must fail, and ID is the word that its error tells to accept; what installs things is left out.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from queen.errors import QueenError
from queen.serve import run as server
from queen.serve.service import Service
from queen.serve.settings import Settings
from tests.support.commands import invoke
from tests.support.waiting import PATIENCE

INSTALLS = ("python3 -m venv", "pip install")
ADDRESS = "127.0.0.1:8000"


def blocks(path: Path) -> list[tuple[str, str]]:
    """Language and text of the fenced blocks of a document."""
    return re.findall(r"^```(\w*)[^\n]*\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


class PageRunner:
    """Runs pages one after the other in the present folder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch, self._server = monkeypatch, ExitStack()
        self._names: dict[str, Any] = {"__name__": "page"}
        monkeypatch.syspath_prepend(Path.cwd())  # where a page's own files are
        self._port, self._id = _free_port(), "ID"
        self._address = f"127.0.0.1:{self._port}"

    def run(self, page: Path) -> int:
        """Run the blocks of a page; how many there were."""
        found = [(language, code) for language, code in blocks(page) if language in ("python", "sh")]
        for number, (language, code) in enumerate(found):
            where = f"{page.name}, block {number}"
            if language == "python":
                self._python(code.replace(ADDRESS, self._address), where)
            else:
                for line in code.replace("\\\n", " ").splitlines():
                    self._line(line.strip(), where)
        return len(found)

    def close(self) -> None:
        """Stop the server."""
        self._server.close()

    def _python(self, code: str, where: str) -> None:
        file = re.match(r"# (\w+\.py): ", code)
        if file is None:
            exec(compile(code, where, "exec"), self._names)
        else:
            Path(file[1]).write_text(code)

    def _line(self, line: str, where: str) -> None:
        if line.startswith("# Ctrl-C"):
            self._server.close()
        command, _, remark = line.partition("#")
        command = command.replace(ADDRESS, self._address).replace(" ID ", f" {self._id} ").strip()
        if not command or command.startswith(INSTALLS):
            return
        if remark.startswith(" refused"):
            with pytest.raises(QueenError) as refusal:
                self._command(command, where)
            [self._id] = re.findall(r"queen ledger accept (\w{16})", str(refusal.value))
        else:
            self._command(command, where)

    def _command(self, command: str, where: str) -> None:
        variable = re.fullmatch(r"export (\w+)=(.*)", command)
        if variable is not None:
            self._monkeypatch.setenv(variable[1], _bash(f"printf %s {variable[2]}", where))
        elif command.startswith("queen serve "):
            self._serve(shlex.split(command)[1:])
        elif command.startswith("queen ") and "|" not in command:
            words, _, file = command.partition(" > ")
            result = invoke(*shlex.split(words)[1:])
            if isinstance(result.exception, QueenError):
                raise result.exception
            assert result.exit_code == 0, f"{where}: {command}: {result.output} {result.exception!r}"
            if file:
                Path(file).write_text(result.stdout)
        else:
            _bash(command, where)

    def _serve(self, words: list[str]) -> None:
        given: list[Settings] = []
        with self._monkeypatch.context() as patch:
            patch.setattr(server, "serve", lambda settings, on_start: given.append(settings))
            result = invoke(*words)
        assert given, result.output
        changes = {"port": self._port, "grpc_port": 0, "threads": 1, "release_every": 0}
        self._server.enter_context(_served(given[0].model_copy(update=changes)))


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def _served(settings: Settings) -> Iterator[None]:
    """A server on an event loop in another thread. What it refuses is raised here."""
    service = Service.open(settings)
    ready, stop, loop = threading.Event(), asyncio.Event(), asyncio.new_event_loop()

    async def serve() -> None:
        async with server.running(service):
            ready.set()
            await stop.wait()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(PATIENCE)
    yield
    loop.call_soon_threadsafe(stop.set)
    thread.join(PATIENCE)
    assert not thread.is_alive()


def _bash(command: str, where: str) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        check=False,
    )
    assert done.returncode == 0, f"{where}: {command}: {done.stderr}"
    return done.stdout
