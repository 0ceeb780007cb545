"""How specs and what they describe are said in JSON, and the short names that come of it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from queen.training.schedule import LATER


def digest(value: object) -> str:
    """A short name for anything that JSON can say."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def as_json(value: Any) -> Any:
    """Dataclasses as plain dictionaries, tuples as lists.

    Fields marked `LATER` are left out where they have their default: a spec written before they existed says the same.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        said = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        unsaid = {f.name for f in dataclasses.fields(value) if f.metadata == LATER and said[f.name] == f.default}
        return {name: as_json(inner) for name, inner in said.items() if name not in unsaid}
    if isinstance(value, Mapping):
        return {str(k): as_json(v) for k, v in value.items()}
    return [as_json(v) for v in value] if isinstance(value, tuple | list) else value
