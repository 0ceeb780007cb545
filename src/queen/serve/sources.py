"""Where settings come from behind the flags: environment variables, then a file. What a flag gives is final."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_settings import EnvSettingsSource, SettingsError, YamlConfigSettingsSource

EXAMPLES = '["10.0.0.0/8"] or {"tenant": {"extra_answers": 20000}}'
ONE_OF = ({"webhook_secret", "webhook_secret_file"},)  # whoever gives one setting of a set gives none of the others


class Environment(EnvSettingsSource):
    """Environment variables, without those of settings that flags give: nobody reads them, so they may be nonsense."""

    def __call__(self) -> dict[str, Any]:
        """The settings that no flag gives."""
        prefix, given = self.env_prefix.lower(), _decided(self.current_state)
        self.env_vars = {name: v for name, v in self.env_vars.items() if name.removeprefix(prefix) not in given}
        return super().__call__()


class SettingsFile(YamlConfigSettingsSource):
    """A file, without the settings that flags and environment give."""

    def __call__(self) -> dict[str, Any]:
        """The settings that neither gives; a mapping is never put together from both."""
        given = _decided(self.current_state)
        return {name: value for name, value in super().__call__().items() if name not in given}


def _decided(state: Mapping[str, Any]) -> set[str]:
    """The settings that sources above have decided: those that they give, and those that go with none of these."""
    return set(state).union(*(names for names in ONE_OF if not names.isdisjoint(state)))


def explain_variable(error: SettingsError) -> str:
    """What is wrong with the variable that holds a list or a mapping, in one line."""
    name = re.search(r'field "(\w+)"', str(error))
    where = f"QUEEN_{name[1].upper()}" if name else "the environment"
    return f"cannot read {where}: lists and mappings are JSON there, such as {EXAMPLES}"


def explain(error: Any, known: Iterable[str]) -> str:
    """What is wrong with a setting, in pydantic's words or ours."""
    if error["type"] == "extra_forbidden":
        return f"no such setting; known: {', '.join(known)}"
    if error["type"] == "missing":
        return "must be given"
    why = error["msg"].removeprefix("Value error, ")
    return f"{why}, got {error['input']!r}"[:300] if error["loc"] else why
