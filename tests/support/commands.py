"""Commands run in the process of the tests."""

from __future__ import annotations

import json
from typing import Any

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
    """What a command that must succeed prints with --json."""
    return json.loads(run(*args, "--json").stdout)


def mistake(*args: object) -> str:
    """The message of a command that must fail with an error of ours."""
    result = invoke(*args)
    assert isinstance(result.exception, QueenError), result.output
    return str(result.exception)


def protect_args(*options: object, factory: str = FACTORY, weights="mlp.safetensors", data="train.npz") -> list[object]:
    """The arguments of a `queen protect` in the folder of the fixture `here`."""
    return ["protect", factory, "--weights", weights, "--data", data, *options]
