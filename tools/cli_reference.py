"""The reference of the command line, docs/reference/cli.md, from what every command says with --help."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from typer.main import get_command

from queen.bench.render.markdown import markdown_table
from queen.cli import app

PROGRAM = "queen"


def cli_reference() -> str:
    """Every command with its arguments, options, defaults and example."""
    commands = _commands(get_command(app), PROGRAM)
    return "\n".join(part for name, command in commands for part in _section(name, command))


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """All commands with their full names, in the order of --help."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for own, one in command.commands.items():
        yield from _commands(one, f"{name} {own}")


def _section(name: str, command: Any) -> Iterator[str]:
    parameters = [one for one in command.params if one.name != "help"]
    arguments = [one for one in parameters if one.param_type_name == "argument"]
    needed = [one for one in parameters if one.param_type_name == "option" and one.required]
    usage = [name, *map(_argument, arguments), *(f"{one.opts[0]} {_value(one)}" for one in needed)]
    more = " [OPTIONS]" if len(parameters) > len(arguments) + len(needed) else ""
    yield f"## {name}\n\n{command.help}\n\n```text\n{' '.join(usage)}{more}\n```\n"
    if parameters:
        rows = [(_name(one), _default(one), _meaning(one)) for one in parameters]
        yield markdown_table(("argument or option", "default", "meaning"), rows)
    if command.epilog:
        yield f"{command.epilog}\n"


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return str(name) if parameter.required else f"[{name}]"


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_argument(parameter).strip('[]')}`"
    return ", ".join(f"`{one}`" for one in [*parameter.opts, *parameter.secondary_opts])


def _value(parameter: Any) -> str:
    return str(parameter.opts[0]).lstrip("-").replace("-", "_").upper()


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "needed"
    if isinstance(value, Enum):
        value = value.value
    is_given = value is not None and value is not False and value not in ("", (), [])
    return f"`{value}`" if is_given and parameter.show_default else ""


def _meaning(parameter: Any) -> str:
    variable = f" Or `{parameter.envvar}`." if parameter.envvar else ""
    return f"{parameter.help or ''}{variable}"
