"""docs/apps.md alone leads to a guarded application: its files are those of examples/, and its script runs."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from starlette.testclient import TestClient

from tests.support.paths import ROOT
from tests.support.waiting import PATIENCE

EXAMPLES, DOCUMENT = ROOT / "examples", ROOT / "docs" / "apps.md"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
PYTHON, SHELL = ([text for language, text in BLOCKS if language == wanted] for wanted in ("python", "sh"))


@pytest.mark.parametrize(("number", "name"), [(0, "protect_digits.py"), (1, "fastapi_app.py"), (2, "app_clients.py")])
def test_the_files_of_the_document_are_those_of_the_examples(number, name):
    assert PYTHON[number] == (EXAMPLES / name).read_text()


def test_the_lines_of_the_document_are_those_of_the_script():
    script = (EXAMPLES / "protected_app.sh").read_text()
    script = script.replace('"$examples/', "").replace('.py"', ".py").replace("$port", "8000").replace('"', "")
    lines = [line.partition("  #")[0] for block in SHELL for line in block.splitlines()]
    ours = [line for line in lines if re.match(r"python \w+\.py|queen ", line) and "pardon" not in line]
    assert len(ours) == 4
    assert [line for line in ours if line not in script.splitlines()] == []
    assert "fastapi_app:app --workers 2" in script


def test_five_lines_protect_the_application():
    assert (EXAMPLES / "fastapi_app.py").read_text().count("  # queen") == 5


@pytest.mark.slow
def test_the_script_makes_a_guarded_application_and_catches_a_thief(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, module in (("python", ""), ("queen", "-m queen")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (programs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    command = ["sh", str(EXAMPLES / "protected_app.sh"), str(tmp_path / "app"), str(port)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^alice +200 \[\d(, \d){9}\]$", done.stdout, re.MULTILINE)
    assert re.search(r"^mallory +403 after \d+ answers: no answer: .* accused", done.stdout, re.MULTILINE)
    assert re.search(r"alarm +mallory", done.stdout)
    assert_the_starlette_application_runs(tmp_path / "app", monkeypatch)


def assert_the_starlette_application_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the document, on the bundle and the ledger that the script has left."""
    monkeypatch.chdir(folder)
    namespace = {"torch": torch, "OWNERS": {"key-of-alice": "alice"}}
    exec(compile(PYTHON[3], "docs/apps.md", "exec"), namespace)
    with TestClient(namespace["app"]) as http:
        answers = http.post("/predict", json=[[[[0.0] * 8] * 8]], headers={"Authorization": "Bearer key-of-alice"})
        assert answers.status_code == 200
        assert len(answers.json()[0]) == 10
        assert http.post("/predict", json=[[[[0.0] * 8] * 8]]).status_code == 401
