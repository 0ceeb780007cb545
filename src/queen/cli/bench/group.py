"""The group of commands `queen bench`."""

from __future__ import annotations

from queen.cli.shared import app, make_group

bench = make_group("Attack defended models and compare.")
app.add_typer(bench, name="bench")
