"""Imports go one way, as pyproject.toml says."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.skipif(
    any(find_spec(f"queen.{name}") is None for name in ("cli", "demo", "bench")), reason="not all layers are there yet"
)


def lint(*options: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    command = [sys.executable, "-c", code, "--no-cache", *options]
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_imports_go_one_way():
    done = lint()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_the_linter_would_notice_an_upward_import(tmp_path):
    (tmp_path / "lint.ini").write_text(
        "[importlinter]\nroot_package = queen\n"
        "[importlinter:contract:turned]\nname = turned\ntype = layers\nlayers =\n    queen.types\n    queen.guard\n"
    )
    done = lint("--config", str(tmp_path / "lint.ini"))
    assert done.returncode == 1
    assert "1 broken" in done.stdout
