"""Settings from flags, environment and file, in that order; mistakes name the setting and never show a secret."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from queen.errors import OptionError
from queen.options import Limits
from queen.serve.settings import Settings, read_settings

WRONG = ("sometimes", "", "5 ms", "-0.1", "1.5", "nan", "inf", -1, 2.0, True)  # texts and numbers for release_every


def read(config: Path | None = None, **given) -> Settings:
    return read_settings({"bundle": "b", **given}, config)


def test_flags_win_over_the_environment_which_wins_over_the_file(tmp_path, monkeypatch):
    file = tmp_path / "serve.yaml"
    file.write_text("port: 1\ngrpc_port: 2\nmax_rows: 3\ngroups: {tenant: {extra_answers: 7}}\n")
    monkeypatch.setenv("QUEEN_PORT", "4")
    monkeypatch.setenv("QUEEN_GRPC_PORT", "5")
    found = read(file, port=6, max_batch=None)
    assert (found.port, found.grpc_port, found.max_rows, found.max_batch) == (6, 5, 3, 64)
    assert found.groups["tenant"].extra_answers == 7


def test_defaults_bind_to_loopback_with_a_file_as_ledger():
    found = read()
    assert found.host == "127.0.0.1"
    assert found.is_loopback
    assert found.ledger_url == "sqlite:///.queen/ledger.sqlite"
    assert not found.shares_ledger
    assert found.model_name == "b"
    assert not found.anonymous


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"port": 70000}, "port"),
        ({"port": "many"}, "port"),
        ({"prot": 1}, "no such setting; known: bundle"),
        ({"policy": "none", "host": "0.0.0.0"}, "loopback"),
        ({"policy": "none", "host": "example.org"}, "loopback"),
        ({"ray": True}, "redis"),
        ({"ray": True, "ledger": "memory://"}, "redis"),
        ({"tls_cert": "x.pem"}, "go together"),
        ({"trusted_proxy": ("10.0.0.0/99",)}, "trusted_proxy"),
        ({"log_level": "loud"}, "log_level"),
        ({"max_wait": 0}, "max_wait"),
        ({"digits": 7}, "digits"),
        ({"digits": -1}, "digits"),
        ({"after_alarm": -2}, "after_alarm"),
        *(({"release_every": value}, "release_every.*expected auto, or seconds from 0") for value in WRONG),
        ({"groups": {"tenant": {"extra": 1}}}, "groups.tenant.extra"),
    ],
)
def test_mistakes_are_one_line(given, says):
    with pytest.raises(OptionError, match=says) as error:
        read(**given, webhook_secret="do-not-show")
    assert "\n" not in str(error.value)
    assert "do-not-show" not in str(error.value)


@pytest.mark.parametrize(("text", "meant"), [("auto", "auto"), ("0", 0.0), ("0.005", 0.005), ("1", 1.0)])
def test_answers_leave_as_the_server_chooses_or_every_so_many_seconds(monkeypatch, text, meant):
    assert read().release_every == "auto"
    assert read(release_every=text).release_every == meant
    monkeypatch.setenv("QUEEN_RELEASE_EVERY", text)
    assert read().release_every == meant


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ({"max_body": 1024, "max_bytes": 10_000}, "max_bytes"),
        ({"max_body": 1024, "max_client_bytes": 1000}, "max_client_bytes"),
    ],
)
def test_too_few_bytes_are_blamed_on_the_setting_that_was_given_and_the_fix_helps(given, fix):
    with pytest.raises(OptionError, match="3 x max_body = 3072") as error:
        read(**given)
    [enough] = re.findall(rf"raise {fix} to (\d+)", str(error.value))
    assert read(**given | {fix: int(enough)}).client_bytes == 3072


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(OptionError, match=r"no settings file .*nothing\.yaml"):
        read(tmp_path / "nothing.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("port: [1\n")
    with pytest.raises(OptionError, match=r"broken\.yaml"):
        read(broken)
    typo = tmp_path / "typo.yaml"
    typo.write_text("prot: 1\n")
    with pytest.raises(OptionError, match="no such setting"):
        read(typo)


def test_the_bundle_must_be_given():
    with pytest.raises(OptionError, match=r"bundle.*must be given"):
        read_settings({})


def test_secrets_are_not_shown_and_redis_is_shared():
    found = read(webhook_secret="do-not-show", ledger="redis://localhost", ray=True)
    assert "do-not-show" not in repr(found)
    assert found.shares_ledger


def test_groups_take_the_guards_limits_where_they_have_none():
    groups = read(groups={"tenant": {"extra_answers": 7, "enforce_alarm": True}, "net": {}}).groups
    limits = Limits(radius=(0.1, 0.2), threshold=0.5, extra_answers=9)
    tenant, net = groups["tenant"].with_defaults(limits), groups["net"].with_defaults(limits)
    assert tenant.limits == Limits(radius=(0.1, 0.2), threshold=0.5, extra_answers=7)
    assert tenant.enforce_alarm
    assert net.limits == limits


def test_every_setting_is_described():
    assert all(field.description for field in Settings.model_fields.values())
