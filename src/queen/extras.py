"""What the package is called where it is installed from, and which extra brings which optional module."""

from __future__ import annotations

from collections.abc import Mapping

from queen.errors import MissingExtraError

DISTRIBUTION = "queen-guard"  # what pip installs; the import and the command are `queen`
MODULES: Mapping[str, str] = {
    "sklearn": "bench",
    "matplotlib": "bench",
    "PIL": "bench",
    "mlxtend": "demo",
    "ray": "ray",
    "redis": "redis",
    "starlette": "serve",
    "uvicorn": "serve",
    "orjson": "serve",
    "grpc": "serve",
    "google": "serve",
    "prometheus_client": "serve",
    "pydantic": "serve",
    "pydantic_settings": "serve",
}
"""Modules that are not there without an extra, and the extra."""


def install(extra: str) -> str:
    """The command that installs the package with an extra.

    >>> install("serve")
    "pip install 'queen-guard[serve]'"
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def missing(error: ModuleNotFoundError, extra: str | None = None) -> MissingExtraError | ModuleNotFoundError:
    """The error that says which extra brings the module; the same error again where it is none of ours."""
    extra = extra or MODULES.get((error.name or "").partition(".")[0])
    if extra is None:
        return error
    return MissingExtraError(f"this needs the module '{error.name}', which is not installed: {install(extra)}")
