"""The reference of the command line names every command and every option."""

from __future__ import annotations

import re

from typer.main import get_command

from queen.cli import app
from tools.cli_reference import cli_reference


def test_every_command_and_option_is_there():
    sections = dict(re.findall(r"^## (queen [\w ]+)\n(.*?)(?=^## |\Z)", cli_reference(), re.MULTILINE | re.DOTALL))
    commands = [(f"queen {name}", one) for name, one in get_command(app).commands.items()]
    while commands:
        name, command = commands.pop()
        commands += [(f"{name} {own}", one) for own, one in getattr(command, "commands", {}).items()]
        if hasattr(command, "commands"):
            continue
        text = sections.pop(name)
        assert command.help.split("\n")[0] in text
        options = [option for one in command.params for option in one.opts if option.startswith("-")]
        assert [option for option in options if option != "--help" and f"`{option}`" not in text] == []
    assert sections == {}


def test_defaults_and_what_is_needed_are_told():
    text = cli_reference()
    assert "queen protect [FACTORY] --data DATA --out OUT [OPTIONS]" in text
    assert "| `--seed` | `0` |" in text
    assert "| `--out` | needed |" in text
    assert "Or `QUEEN_LEDGER`." in text
