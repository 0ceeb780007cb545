"""`queen serve`: flags become settings."""

from __future__ import annotations

import pytest

import queen.serve.run
from queen.errors import OptionError
from tests.support.commands import invoke, run


@pytest.mark.parametrize(("flags", "meant"), [([], "auto"), (["auto"], "auto"), (["0"], 0.0), (["0.005"], 0.005)])
def test_answers_leave_when_the_flag_says(monkeypatch, flags, meant):
    settings = []
    monkeypatch.setattr(queen.serve.run, "serve", lambda given, on_start: settings.append(given))
    run("serve", "somewhere", *(["--release-every", *flags] if flags else []))
    assert settings[0].release_every == meant


def test_a_wrong_time_is_named():
    error = invoke("serve", "somewhere", "--release-every", "soon").exception
    assert isinstance(error, OptionError)
    assert str(error) == (
        "setting 'release_every': expected auto, or seconds from 0 (answers leave at once) to 1, got 'soon'"
    )
