"""Every command of the command line: help that helps, JSON with documented keys, flags that win, nothing cut off."""

from __future__ import annotations

import io
import json
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

import queen.serve.run
from queen.cli import shared
from queen.errors import OptionError
from queen.serve.settings import GroupLimits, Settings, read_settings
from tests.support.commands import all_commands, documented_keys, invoke, run

COMMANDS = all_commands()
NAMES = st.text(st.characters(categories=["L", "N", "P"], include_characters=" "), max_size=50)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_and_documents_its_json(name):
    command = COMMANDS[name]
    assert f"`queen {name}" in command.epilog
    assert command.epilog.startswith("Example: ")
    assert len(command.help.split()) > 3
    assert documented_keys(command)[1]
    flags = {flag: option for option in command.params for flag in option.opts}
    assert "--json" in flags
    assert [flag for flag, option in flags.items() if len((option.help or "").split()) < 2] == []


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_every_option_whole_however_wide_the_terminal(name, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = run(*name.split(), "--help").stdout
    assert "Pydantic" not in shown
    flat = re.sub(r"\s", "", shown)
    assert [
        flag for option in COMMANDS[name].params for flag in option.opts if flag[0] == "-" and flag not in flat
    ] == []
    assert "…" not in shown
    assert "<bool>" not in shown


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
@pytest.mark.parametrize("group", ["", *sorted({name.partition(" ")[0] for name in COMMANDS if " " in name})])
def test_a_list_of_commands_says_in_whole_sentences_what_they_do(group, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = " ".join(run(*group.split(), "--help").stdout.split())
    own = {name.removeprefix(group).strip(): command for name, command in COMMANDS.items() if name.startswith(group)}
    listed = {name: " ".join(command.help.split("\n\n")[0].split()) for name, command in own.items() if " " not in name}
    assert listed
    assert [name for name, text in listed.items() if f"{name} {text.partition('. ')[0].rstrip('.')}" not in shown] == []


# Tables


@given(st.lists(st.tuples(NAMES, NAMES, NAMES), min_size=1, max_size=4), st.integers(40, 200))
def test_a_table_shows_every_character_however_narrow_the_terminal(rows, width):
    printed = io.StringIO()
    terminal = shared.VisibleConsole(file=printed, force_terminal=True, width=width, highlight=False, markup=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared, "out", terminal)
        patch.setattr("sys.stdout", printed)
        shared.print_table(("name", "group", "coverage"), rows, left=1)
    text = re.sub(r"\x1b\[[0-9;]*m", "", printed.getvalue())
    assert max(map(cell_len, text.splitlines())) <= width
    squeezed = re.sub(r"\s", "", text)
    assert [cell for row in rows for cell in row if re.sub(r"\s", "", cell) not in squeezed] == []


def test_a_pipe_gets_one_line_for_every_line_of_a_table(capsys):
    shared.print_table(("name", "why"), [("x" * 150, "y" * 150)], left=2)
    assert any("x" * 150 in line and "y" * 150 in line for line in capsys.readouterr().out.splitlines())


def test_a_table_without_lines_is_a_sentence(capsys):
    shared.print_table(("name", "why"), [], left=2, empty="There are no keys yet.")
    assert capsys.readouterr().out == "There are no keys yet.\n"


# Flags against the environment and the settings file

GROUP = {name: {name: {"extra_answers": 5}} for name in ("tenant", "net")}
VALUES = {  # of every setting: one for the flag, and another one
    "bundle": ("mine", "theirs"),
    "model": ("a.b:c", "d.e:f"),
    "name": ("mine", "theirs"),
    "device": ("cpu", "cuda"),
    "host": ("127.0.0.1", "0.0.0.0"),
    "tls_cert": None,  # needs files: below
    "tls_key": None,
    "home": ("mine", "theirs"),
    "ledger": ("memory://", "redis://elsewhere"),
    "trusted_proxy": (("10.0.0.0/8",), ("192.168.0.0/16",)),
    "policy": ("sentinel", "paper"),
    "threshold": ("0.2/week", 0.5),
    "extra_answers": ("2000/day", 7),
    "on_alarm": ("refuse", "decoy"),
    "on_spent": ("refuse", "decoy"),
    "digits": (2, 3),
    "groups": (GROUP["tenant"], GROUP["net"]),
    "release_every": (0.25, "auto"),
    "max_body": (1 << 20, 2 << 20),
    "max_bytes": (1 << 29, 1 << 30),
    "max_client_bytes": (1 << 26, 1 << 27),
    "record": ("mine", "theirs"),
    "record_bytes": (1 << 21, 1 << 22),
    "webhook": ("http://mine", "http://theirs"),
    "webhook_secret": ("mine", "theirs"),
    "webhook_secret_file": ("mine", "theirs"),
    "log_level": ("info", "debug"),
    "log_format": ("json", "text"),
}
GARBAGE = ("{", "", "not a number")


def values_of(name: str) -> tuple[object, object]:
    """A value for the flag and another one."""
    kinds = (Settings.model_fields[name].annotation, *getattr(Settings.model_fields[name].annotation, "__args__", ()))
    if name in VALUES:
        return VALUES[name]
    if bool in kinds:
        return False, True
    return (1025, 2000) if int in kinds else (0.5, 1.5)


def as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(list(value) if isinstance(value, tuple) else value)


def as_flags(name: str, value: object) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if name == "bundle":
        return [str(value)]
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    if isinstance(value, tuple):
        return [word for one in value for word in (flag, one)]
    return [flag, as_text(value)]


def plain(value: object) -> object:
    """A setting's value as it was given."""
    if isinstance(value, dict) or hasattr(value, "items"):
        return {
            name: one.model_dump(exclude_none=True, exclude_defaults=True) if isinstance(one, GroupLimits) else one
            for name, one in value.items()
        }
    return value if isinstance(value, bool | int | float | tuple) else str(value)


@pytest.fixture
def started(monkeypatch) -> list[Settings]:
    """The settings of the servers that are started, which no server is."""
    settings: list[Settings] = []
    monkeypatch.setattr(queen.serve.run, "serve", lambda given, on_start: settings.append(given))
    return settings


@pytest.mark.parametrize("name", [name for name in Settings.model_fields if VALUES.get(name, 0) is not None])
def test_an_explicit_flag_wins_whatever_environment_and_file_say(name, started, monkeypatch, tmp_path):
    mine, theirs = values_of(name)
    assert mine != theirs
    bundle = [] if name == "bundle" else ["somewhere"]
    config = tmp_path / "serve.yaml"
    config.write_text(yaml.safe_dump({name: list(theirs) if isinstance(theirs, tuple) else theirs}))
    monkeypatch.setenv(f"QUEEN_{name.upper()}", as_text(theirs))
    run("serve", *bundle, *as_flags(name, mine), "--config", config)
    assert plain(getattr(started.pop(), name)) == plain(mine)
    for nonsense in GARBAGE:
        monkeypatch.setenv(f"QUEEN_{name.upper()}", nonsense)
        assert plain(getattr(read_settings({"bundle": "b", name: mine}, config), name)) == plain(mine)


def test_flags_for_tls_win_too(started, monkeypatch, tmp_path):
    mine, theirs = tmp_path / "mine.pem", tmp_path / "theirs.pem"
    mine.touch()
    for name in ("QUEEN_TLS_CERT", "QUEEN_TLS_KEY"):
        monkeypatch.setenv(name, str(theirs))
    run("serve", "somewhere", "--tls-cert", mine, "--tls-key", mine)
    assert (started[0].tls_cert, started[0].tls_key) == (mine, mine)


@pytest.mark.parametrize("flag", ["webhook_secret", "webhook_secret_file"])
def test_a_flag_wins_over_the_variable_that_says_the_same_in_another_way(flag, started, monkeypatch):
    other = ({"webhook_secret", "webhook_secret_file"} - {flag}).pop()
    monkeypatch.setenv(f"QUEEN_{other.upper()}", "theirs")
    run("serve", "somewhere", f"--{flag.replace('_', '-')}", "mine")
    assert str(getattr(started[0], flag)) == "mine"
    assert getattr(started[0], other) is None


def test_nonsense_in_a_variable_is_one_line_where_nothing_else_is_given(started, monkeypatch):
    monkeypatch.setenv("QUEEN_TRUSTED_PROXY", "10.0.0.0/8")
    error = invoke("serve", "somewhere").exception
    assert isinstance(error, OptionError)
    assert str(error).startswith("cannot read QUEEN_TRUSTED_PROXY: lists and mappings are JSON there")
    assert started == []


def test_variables_do_not_mix_with_a_mapping_of_the_file(started, monkeypatch, tmp_path):
    (tmp_path / "serve.yaml").write_text(yaml.safe_dump({"groups": GROUP["net"]}))
    monkeypatch.setenv("QUEEN_GROUPS", json.dumps(GROUP["tenant"]))
    run("serve", "somewhere", "--config", tmp_path / "serve.yaml")
    assert set(started[0].groups) == {"tenant"}


def test_a_home_or_ledger_that_is_typed_wins_over_a_server_or_redis_of_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("QUEEN_LEDGER", "redis://127.0.0.1:1")
    monkeypatch.setenv("QUEEN_SERVER", "http://127.0.0.1:1")
    monkeypatch.setenv("QUEEN_ADMIN_KEY", "key")
    run("keys", "new", "alice", "--home", tmp_path)
    assert "alice" in run("keys", "list", "--home", tmp_path).stdout
    assert run("revoke", "alice", "--home", tmp_path).stdout.startswith("revoked: ")
    again = run("revoke", "alice", "--home", tmp_path).stdout
    assert again == "Nothing was revoked: 'alice' has no active key, all of them are revoked already.\n"
