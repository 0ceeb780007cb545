"""Which code made a result: a hash of the source, and the commit where there is a repository."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

import queen
from queen.cache import code_version

DEFENDING = (
    "queen.allowance",
    "queen.bundle",
    "queen.core",
    "queen.defenses",
    "queen.fit",
    "queen.guard",
    "queen.ledger",
    "queen.models",
    "queen.options",
    "queen.perturber",
    "queen.policy",
    "queen.price",
    "queen.recipe",
    "queen.secret",
    "queen.sentinel",
    "queen.training",
    "queen.types",
    "queen.zoo",
)
"""The modules that what a defense answers depends on: all that it imports, but those that only write, show and complain
(a test compares)."""
TRYING = (*DEFENDING, "queen.attacks", "queen.bench.trials")
"""The modules that a trial's figures depend on."""
COMMIT = "QUEEN_COMMIT"  # environment: the commit of a copy without its repository


def defending_code() -> str:
    """The version of all code that answers of a defense depend on."""
    return code_version(*DEFENDING)


def trying_code() -> str:
    """The version of all code that the figures of a trial depend on."""
    return code_version(*TRYING)


def describe_code() -> dict[str, str | None]:
    """The version of the whole package, and the commit it was checked out from, if any."""
    return {"code": code_version("queen"), "commit": _commit()}


@lru_cache(maxsize=1)
def _commit() -> str | None:
    """The commit of the checkout that the package runs from; "+" follows where files of the package were changed."""
    given, git = os.environ.get(COMMIT), shutil.which("git")
    if given or git is None:
        return given

    def ask_git(*command: str) -> str:
        folder = Path(queen.__file__).parent
        done = subprocess.run([git, *command], cwd=folder, capture_output=True, text=True, check=True)  # noqa: S603
        return done.stdout.strip()

    try:
        return ask_git("rev-parse", "HEAD") + ("+" if ask_git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.CalledProcessError):  # installed without its repository
        return None
