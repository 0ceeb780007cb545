"""Dataclasses from YAML, checked key by key; a mistake is named with its place and the nearest known word."""

from __future__ import annotations

import dataclasses
from collections import abc
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import yaml

from queen.defenses.base import nearest
from queen.errors import OptionError

Checked = TypeVar("Checked")


class SpecError(OptionError):
    """A benchmark spec that cannot be read or makes no sense."""


def read_yaml(path: Path) -> object:
    """The content of a YAML file."""
    try:
        return yaml.safe_load(path.read_text())
    except OSError as error:
        raise SpecError(f"cannot read spec '{path}': {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError(f"spec '{path}' is not YAML: {' '.join(str(error).split())}") from error


def make_checked(kind: type[Checked], content: object, where: str) -> Checked:
    """A dataclass from a mapping, checked key by key."""
    if not isinstance(content, Mapping):
        raise SpecError(f"{where}: expected keys and values, got {type(content).__name__}")
    hints = get_type_hints(kind)
    fields = {f.name: hints[f.name] for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in content:
        if key not in fields:
            raise SpecError(f"{where}: no key '{key}'{nearest(str(key), fields)}")
    missing = [
        f.name
        for f in dataclasses.fields(kind)  # type: ignore[arg-type]
        if f.name not in content and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise SpecError(f"{where}: key '{missing[0]}' is missing")
    try:
        return kind(**{key: _value(fields[key], value, f"{where}: {key}") for key, value in content.items()})
    except (OptionError, TypeError) as error:
        raise SpecError(f"{error}" if isinstance(error, SpecError) else f"{where}: {error}") from error


def _value(hint: Any, value: Any, where: str) -> Any:
    """A value as the annotation wants it: nested dataclasses, lists as tuples, whole numbers as floats."""
    choices = [h for h in get_args(hint) if h is not type(None)] if get_origin(hint) is UnionType else [hint]
    if value is None and type(None) in get_args(hint):
        return None
    for choice in choices:
        if dataclasses.is_dataclass(choice) and isinstance(choice, type):
            if isinstance(value, Mapping) or len(choices) == 1:
                return make_checked(choice, value, where)
        elif get_origin(choice) is tuple:
            items = value if isinstance(value, list | tuple) else [value]
            return tuple(_value(get_args(choice)[0], item, where) for item in items)
        elif get_origin(choice) is abc.Mapping:
            return _mapping(value, where)
        elif choice is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        elif isinstance(value, choice) and isinstance(value, bool) == (choice is bool):
            return value
    wanted = " or ".join(getattr(choice, "__name__", str(choice)) for choice in choices)
    raise SpecError(f"{where}: expected {wanted}, got {value!r}")


def _mapping(value: Any, where: str) -> dict[str, Any]:
    """Names to options; a bare list of names has none."""
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        value = {name: {} for name in value}
    if not isinstance(value, Mapping):
        raise SpecError(f"{where}: expected names, got {value!r}")
    return {str(name): {} if options is None else options for name, options in value.items()}
