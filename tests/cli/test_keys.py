"""The commands for keys: shown once, listed without secrets, revoked for good."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from queen import cli
from queen.errors import QueenError
from queen.ledger import Budget
from queen.serve.access.auth import Authenticator
from queen.serve.access.key import parse
from queen.serve.access.key_store import FileKeys, RedisKeys
from queen.serve.types import ServeError

COMMANDS = ["new", "list", "revoke"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QUEEN_HOME", raising=False)
    monkeypatch.delenv("QUEEN_LEDGER", raising=False)
    return tmp_path


def run(*args: object):
    """A command that must succeed."""
    result = CliRunner().invoke(cli.app, ["keys", *map(str, args)])
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result


def as_json(*args: object):
    return json.loads(run(*args, "--json").stdout)


def mistake(*args: object) -> str:
    """The message of a command that must fail with an error of ours."""
    result = CliRunner().invoke(cli.app, ["keys", *map(str, args)])
    assert isinstance(result.exception, QueenError), result.output
    return str(result.exception)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_shows_an_example_that_parses(command):
    shown = " ".join(run(command, "--help").stdout.split())
    assert f"Example: `queen keys {command}" in shown
    click_command = get_command(cli.app).commands["keys"].commands[command]
    words = shlex.split(click_command.epilog.partition("`")[2].partition("`")[0])
    assert words[:3] == ["queen", "keys", command]
    click_command.make_context(command, words[3:])  # raises where an option does not exist
    assert [p.name for p in click_command.params if p.param_type_name == "option" and not p.help] == []


def test_the_commands_are_those():
    assert sorted(get_command(cli.app).commands["keys"].commands) == sorted(COMMANDS)


def test_a_new_key_is_shown_once_on_standard_output_and_opens_the_door(here):
    result = run("new", "alice", "--group", "tenant:7", "--group", "region:eu")
    text = result.stdout.strip()
    assert result.stdout == text + "\n"
    assert "not shown again" in result.stderr
    found = Authenticator(FileKeys(here / ".queen")).caller(f"Bearer {text}")
    assert (found.client, found.groups, found.admin) == ("alice", ("tenant:7", "region:eu"), False)
    secret = parse(text)[1]
    for shown in (run("list").output, run("list", "--json").output, (here / ".queen" / "keys.json").read_text()):
        assert secret not in shown


def test_json_holds_the_key_and_what_it_says(here):
    made = as_json("new", "root", "--admin", "--extra-answers", "20000", "--threshold", ".5")
    name, _ = parse(made["key"])
    assert {key: made[key] for key in made if key not in ("key", "created")} == {
        "id": name,
        "name": "root",
        "groups": [],
        "admin": True,
        "revoked": None,
        "budget": {"threshold": 0.5, "extra_answers": 20000},
    }
    stored = FileKeys(here / ".queen").keys()[name]
    assert (stored.admin, stored.budget) == (True, Budget(threshold=0.5, extra_answers=20000))
    assert as_json("new", "bob")["budget"] is None
    assert as_json("new", "eve", "--extra-answers", "0")["budget"] == {"threshold": None, "extra_answers": 0}


def test_the_list_shows_states_oldest_first_and_no_digests(here):
    ids = [as_json("new", name, *options)["id"] for name, options in (("b", ["--admin"]), ("a", ["--group", "t:1"]))]
    run("revoke", ids[1])
    shown = run("list").stdout
    first, second = shown.splitlines()[-2:]
    assert [word in first for word in (ids[0], "active", "admin", " b ")] == [True] * 4
    assert [word in second for word in (ids[1], "revoked", "t:1", " a ")] == [True] * 4
    listed = as_json("list")
    assert [(one["id"], one["revoked"] is None) for one in listed] == [(ids[0], True), (ids[1], False)]
    for key in FileKeys(here / ".queen").keys().values():
        assert key.digest.hex() not in shown + json.dumps(listed)


def test_a_long_name_does_not_hide_the_id_or_the_state(here):
    made = as_json("new", "x" * 200, "--group", "tenant:" + "y" * 200)
    shown = run("list").stdout
    for word in (made["id"], "active", "x" * 200, "y" * 200):
        assert word in shown


def test_an_empty_list_is_no_error_and_makes_no_folder(here):
    assert as_json("list") == []
    run("list")
    assert list(here.iterdir()) == []


def test_revoke_takes_an_id_or_a_name(here):
    texts = [as_json("new", "alice")["key"] for _ in range(3)]
    assert parse(texts[0])[0] in run("revoke", parse(texts[0])[0]).stdout
    door = Authenticator(FileKeys(here / ".queen"))
    with pytest.raises(ServeError):
        door.caller(f"Bearer {texts[0]}")
    assert door.caller(f"Bearer {texts[1]}").client == "alice"
    gone = as_json("revoke", "alice")
    assert {one["id"] for one in gone} == {parse(text)[0] for text in texts[1:]}
    assert all(one["revoked"] for one in gone)
    assert run("revoke", "alice").stdout == (
        "Nothing was revoked: 'alice' has no active key, all of them are revoked already.\n"
    )
    assert as_json("revoke", "alice") == []
    assert as_json("revoke", "alice") == []


def test_keys_live_in_the_home_that_is_named_or_in_the_environment(here, monkeypatch):
    run("new", "alice", "--home", here / "one")
    monkeypatch.setenv("QUEEN_HOME", str(here / "two"))
    run("new", "bob")
    assert [key.name for key in FileKeys(here / "one").keys().values()] == ["alice"]
    assert [key.name for key in FileKeys(here / "two").keys().values()] == ["bob"]
    assert not (here / ".queen").exists()


def test_with_a_redis_ledger_they_live_there(here, redis_url, monkeypatch):
    made = as_json("new", "alice", "--ledger", redis_url)
    monkeypatch.setenv("QUEEN_LEDGER", redis_url)
    assert [one["id"] for one in as_json("list")] == [made["id"]]
    run("revoke", "alice")
    assert not RedisKeys(redis_url).keys()[made["id"]].active
    assert list(here.iterdir()) == []
    assert as_json("list", "--ledger", f"sqlite:///{here}/l.sqlite") == []


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["new", ""], "1 to 256 bytes"),
        (["new", "net:10.0.0.0/24"], "must not begin with"),
        (["new", "anonymous"], "must not begin with"),
        (["new", "alice", "--group", "tenant"], "kind:name"),
        (["new", "alice", "--group", "net:1"], "net group"),
        (["new", "alice", "--group", "t:1", "--group", "t:2"], "one group of each kind"),
        (["new", "alice", "--extra-answers", "-1"], "extra_answers"),
        (["new", "alice", "--threshold", "nan"], "threshold"),
        (["new", "alice", "--ledger", "redis://127.0.0.1:1"], "127.0.0.1:1"),
        (["list", "--ledger", "redis://host:port"], "redis://HOST"),
        (["revoke", "nobody"], "queen keys list"),
    ],
)
def test_mistakes_say_what_is_wrong_and_make_nothing(here, args, says):
    assert says in mistake(*args)
    assert list(here.iterdir()) == []


@pytest.mark.slow
def test_a_mistake_is_one_line_and_exit_code_2(here):
    (here / ".queen").mkdir()
    (here / ".queen" / "keys.json").write_text("{")
    (here / ".queen" / "keys.json").chmod(0o600)
    done = subprocess.run(
        [sys.executable, "-m", "queen", "keys", "list"], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert "damaged" in done.stderr
    assert done.stderr.count("\n") == 1
