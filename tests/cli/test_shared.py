"""What reaches an operator's terminal: names are seen as what they are, whatever characters a client has put in."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen import cli
from queen.cli.shared import secret_warnings, visible
from queen.errors import OptionError
from queen.ledger import SqliteLedger
from queen.serve.access.key import new_key, to_plain
from tests.support.commands import as_json, invoke, mistake, run

EVIL = "eve\x1b[2J\x1b]0;owned\x07\r\n\x7f\x9b1m\u202eecila\u200b\u2066\u2028"
SPELLED = "eve<U+001B>[2J<U+001B>]0;owned<U+0007><U+000D><U+000A><U+007F><U+009B>1m<U+202E>ecila<U+200B>"


@given(st.text())
def test_what_is_printed_is_visible_and_what_is_visible_is_printed_as_it_is(text):
    assert visible(text).isprintable()
    assert (visible(text) == text) == text.isprintable()
    assert visible(text, "\n").replace("\n", "").isprintable()


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A ledger and keys with a name that an older version, or another program, has let in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    ledger = SqliteLedger("c.sqlite")
    ledger.allow(EVIL, EVIL)
    ledger.close()
    _, key = new_key("eve", ("tenant:7",), False, None)
    home = tmp_path / ".queen"
    home.mkdir(mode=0o700)
    keys = {key.id: to_plain(key) | {"name": EVIL, "groups": [f"tenant:{EVIL}"]}}
    (home / "keys.json").write_text(json.dumps({"format": 1, "keys": keys}))
    (home / "keys.json").chmod(0o600)
    return tmp_path


COMMANDS = {
    "keys list": ("keys", "list"),
    "clients": ("clients", "--ledger", "c.sqlite"),
    "alarms": ("alarms", "--ledger", "c.sqlite", "--all"),
    "allow": ("allow", EVIL, "--ledger", "c.sqlite"),
    "keys revoke": ("keys", "revoke", EVIL),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_no_command_prints_a_character_that_a_terminal_obeys(here, command, monkeypatch):
    monkeypatch.setattr(cli.shared.out, "width", 400)
    shown = run(*command).output
    assert all(line.isprintable() for line in shown.split("\n"))
    assert SPELLED.split("<U+000A>", maxsplit=1)[0] in shown


def test_json_is_visible_ascii_and_holds_the_name_as_it_is(here):
    assert [one["name"] for one in as_json("clients", "--ledger", "c.sqlite")] == [EVIL]
    shown = run("clients", "--ledger", "c.sqlite", "--json").stdout
    assert shown.isascii()
    assert shown.replace("\n", "").isprintable()


@pytest.mark.parametrize("error", [OptionError(f"no client '{EVIL}'"), RuntimeError(f"no client '{EVIL}'")], ids=repr)
def test_errors_and_stack_traces_are_visible_too(monkeypatch, capsys, error):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(cli, "app", lambda: (_ for _ in ()).throw(error))
    with pytest.raises((SystemExit, RuntimeError)) as ended:
        cli.main()
    if ended.type is RuntimeError:
        sys.excepthook(ended.type, ended.value, ended.tb)  # as Python does when a program ends so
    told = capsys.readouterr().err
    assert "<U+001B>[2J" in told
    assert all(line.isprintable() for line in told.split("\n"))


@pytest.mark.parametrize("name", ["a\x1b[2J", "a\nb", "a\x7f", "a\u202eb", "a\u200bb", "\u2066a", "a\x9b", "\ufeffa"])
def test_new_keys_have_visible_names(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    for arguments in ((name,), ("alice", "--group", f"tenant:{name}")):
        result = invoke("keys", "new", *arguments)
        assert isinstance(result.exception, OptionError)
        assert "visible characters" in str(result.exception)
        assert str(result.exception).isprintable()
    assert not (tmp_path / ".queen").exists()
    run("keys", "new", "Bob Ωmega <b> 女王")


def test_keys_made_before_that_still_open_the_door(here):
    assert [key["name"] for key in as_json("keys", "list")] == [EVIL]


KEY = "qk_0123456789abcdef_" + 43 * "s"


@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        (["serve", "b", "--webhook-secret", "s"], "--webhook-secret-file"),
        (["serve", "b", "--webhook-secret=s"], "QUEEN_WEBHOOK_SECRET"),
        (["clients", "--server", "http://h", "--key", KEY], "QUEEN_ADMIN_KEY"),
        (["clients", f"--key={KEY}"], "QUEEN_ADMIN_KEY"),
        (["serve", "b", "--ledger", "redis://:hunter2@host:6379/0"], "QUEEN_LEDGER"),
        (["migrate", "rediss://user:hunter2@host"], "QUEEN_LEDGER"),
    ],
    ids=str,
)
def test_secrets_on_the_command_line_are_noticed_and_not_repeated(arguments, instead):
    [told] = secret_warnings(arguments)
    assert instead in told
    assert "hunter2" not in told
    assert KEY not in told


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["serve", "b", "--webhook-secret-file", "s", "--ledger", "redis://host:6379/0"],
        ["serve", "b", "--ledger", "redis://user@host:6379/0", "--tls-key", "a.pem"],
        ["revoke", KEY],  # a key that leaked is revoked by its text
        ["keys", "new", "mail@host"],
    ],
    ids=str,
)
def test_other_command_lines_are_left_alone(arguments):
    assert secret_warnings(arguments) == []


def test_whoever_starts_a_command_so_is_warned(monkeypatch, capsys):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "argv", ["queen", "migrate", "redis://:hunter2@127.0.0.1:1"])
    with pytest.raises(SystemExit):
        cli.main()
    told = capsys.readouterr().err
    assert told.startswith("warning: a secret on the command line can be read in the list of processes")
    assert "hunter2" not in told


def test_the_ledger_may_come_from_the_environment_and_the_command_line_wins(here, monkeypatch):
    monkeypatch.setenv("QUEEN_LEDGER", "c.sqlite")
    assert len(as_json("clients")) == 1
    assert as_json("migrate")["scopes"] == 1
    assert "cannot reach" in mistake("clients", "--server", "http://127.0.0.1:1", "--key", KEY)
    monkeypatch.setenv("QUEEN_SERVER", "http://127.0.0.1:1")
    assert "say which clients" in mistake("clients")
    monkeypatch.setenv("QUEEN_LEDGER", "elsewhere.sqlite")
    assert len(as_json("clients", "--ledger", "c.sqlite")) == 1
    run("certify")
