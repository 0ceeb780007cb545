"""The command line from inside a test."""

from __future__ import annotations

import json

from typer.testing import CliRunner, Result

from queen import cli

FACTORY = "tests.support.guards:make_mlp"


def run(*args: object) -> Result:
    """A command that must succeed."""
    result = CliRunner().invoke(cli.app, [str(a) for a in args])
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result


def as_json(*args: object) -> dict:
    return json.loads(run(*args, "--json").stdout)


def protect_args(*options: object, factory: str = FACTORY, weights="mlp.safetensors", data="train.npz") -> list[object]:
    """The arguments of a `queen protect` in the folder of the fixture `here`."""
    return ["protect", factory, "--weights", weights, "--data", data, *options]
