"""Commands run in the process of the tests."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from torch import nn
from typer.main import get_command
from typer.testing import CliRunner, Result

from queen import cli
from queen.errors import QueenError

FACTORY = "tests.support.guards:make_mlp"


def invoke(*args: object) -> Result:
    """Run a command."""
    return CliRunner().invoke(cli.app, [str(a) for a in args])


def run(*args: object) -> Result:
    """Run a command that must succeed."""
    result = invoke(*args)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result


def as_json(*args: object) -> Any:
    """What a command that must succeed prints with --json; its keys must be those that its help documents."""
    found = json.loads(run(*args, "--json").stdout)
    listed, every, some = documented_keys(find_command(args))
    assert isinstance(found, list) == listed
    for keys in map(set, found if listed else [found]):
        assert every <= keys <= every | some
    return found


def crash() -> nn.Module:
    """A factory with a mistake."""
    return {}["width"]


@cache
def all_commands() -> dict[str, Any]:
    """Every command by its name, those of groups too."""
    commands, groups = {}, {"": get_command(cli.app)}
    while groups:
        name, group = groups.popitem()
        for word, found in group.commands.items():
            (groups if hasattr(found, "commands") else commands)[f"{name} {word}".strip()] = found
    return commands


def find_command(args: Sequence[object]) -> Any:
    """The command that a command line calls."""
    words, commands = [str(arg) for arg in args], all_commands()
    return commands[words[0]] if words[0] in commands else commands[" ".join(words[:2])]


def documented_keys(command: Any) -> tuple[bool, set[str], set[str]]:
    """What the help of a command says of its JSON: whether it is a list, the keys, and the keys that may be missing."""
    [text] = re.findall(r"With --json: (.*)", command.epilog)
    every, _, some = text.partition("; where it applies also ")
    return text.startswith("a list of"), set(re.findall(r"`(\w+)`", every)), set(re.findall(r"`(\w+)`", some))


def mistake(*args: object) -> str:
    """The message of a command that must fail with an error of ours."""
    result = invoke(*args)
    assert isinstance(result.exception, QueenError), result.output
    return str(result.exception)


def protect_args(*options: object, factory: str = FACTORY, weights="mlp.safetensors", data="train.npz") -> list[object]:
    """The arguments of a `queen protect` in the folder of the fixture `here`."""
    return ["protect", factory, "--weights", weights, "--data", data, *options]
