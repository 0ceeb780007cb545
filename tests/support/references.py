"""References such as `core/perturb.py:reverse_gradient` in documents, and what they name."""

from __future__ import annotations

import importlib
import re


def references_in(text: str) -> list[str]:
    """All references of a document, as written."""
    return re.findall(r"`((?:\w+/)*\w+\.py:\w+(?:\.\w+)*)`", text)


def find_reference(reference: str) -> object:
    """What `core/x.py:name` or `core/x.py:Class.name` names; ImportError or KeyError if it does not exist."""
    path, _, names = reference.partition(":")
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    named: object = importlib.import_module(f"queen.{module}")
    for name in names.split("."):
        fields = getattr(named, "__annotations__", {})
        named = getattr(named, name) if hasattr(named, name) else fields[name]
    return named
