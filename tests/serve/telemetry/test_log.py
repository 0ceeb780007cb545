"""Log lines: one JSON object each, whatever is in it, and never a key."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen.errors import OptionError
from queen.serve.telemetry import log as module
from queen.serve.telemetry.log import HIDDEN, MAX_TEXT, Formatter, Handler, access, hide_secrets, log, sanitize, setup

KEY = "qk_0123456789abcdef_" + "Ab-_9" * 8 + "xyz"
SECRET = KEY.split("_", 2)[2]


@pytest.fixture(autouse=True)
def untouched():
    """Leave logging as it was."""
    root, level = logging.getLogger(), module.LOGGER.level
    yield
    for handler in [h for h in root.handlers if isinstance(h, Handler)]:
        root.removeHandler(handler)
    module.LOGGER.setLevel(level)


@pytest.fixture
def lines(capsys):
    """All lines so far, parsed."""

    def read() -> list[dict]:
        out, err = capsys.readouterr()
        assert out == ""
        return [json.loads(line) for line in err.splitlines()]

    return read


def formatted(as_json: bool = True, event: str = "e", **fields: object) -> str:
    record = logging.LogRecord(module.LOGGER.name, logging.INFO, "", 0, event, None, None)
    record.fields = fields
    return Formatter(as_json).format(record)


def test_a_line_says_when_how_bad_what_and_the_facts(lines):
    setup("info")
    log("server_started", port=8000, host="127.0.0.1", ready=True, share=0.5, nothing=None, groups=("a", "b"))
    [line] = lines()
    when = datetime.fromisoformat(line.pop("time"))
    assert when.utcoffset() == timedelta(0)
    assert abs(when.timestamp() - datetime.now().timestamp()) < 60
    assert line == {
        "level": "info",
        "event": "server_started",
        "port": 8000,
        "host": "127.0.0.1",
        "ready": True,
        "share": 0.5,
        "nothing": None,
        "groups": ["a", "b"],
    }


def test_times_are_rfc_3339_in_utc():
    record = logging.LogRecord("queen.serve", logging.INFO, "", 0, "e", None, None)
    record.created = 0.0625
    assert json.loads(Formatter().format(record))["time"] == "1970-01-01T00:00:00.062Z"


def test_only_what_is_bad_enough_is_said(lines):
    setup("warning")
    log("quiet")
    log("loud", level="error")
    logging.getLogger("uvicorn.error").info("quiet")
    logging.getLogger("uvicorn.error").warning("loud %s", "too")
    logged = lines()
    assert [(one["event"], one.get("logger")) for one in logged] == [("loud", None), ("loud too", "uvicorn.error")]


def test_a_second_setup_replaces_the_first(lines):
    setup("info")
    setup("error")
    setup("info")
    log("once")
    assert [line["event"] for line in lines()] == ["once"]
    with pytest.raises(OptionError, match="known: debug, info, warning, error"):
        setup("loud")


def test_text_lines_are_for_people(capsys):
    setup("info", json=False)
    log("server_started", port=8000, note="two words", evil="a\nb")
    [line] = capsys.readouterr().err.splitlines()
    assert line.split(" ", 1)[1] == 'info    server_started port=8000 note="two words" evil="a\\nb"'


TEXT = st.text(st.characters(), max_size=50) | st.sampled_from(
    ["\n", "\r\n", "\x1b[2J", "\x85", "\u2028", "\x7f", "\u202e", "\0", "\ud800", '"}\n{"level":"error"', "a=b c=d"]
)
VALUES = st.recursive(
    TEXT | st.integers() | st.floats() | st.booleans() | st.none() | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(event=TEXT, name=TEXT, value=VALUES, as_json=st.booleans())
def test_nothing_can_start_a_line_of_its_own(event, name, value, as_json):
    line = formatted(as_json, event, **{name: value})
    assert line.isascii()
    assert line.isprintable()
    assert len(line.splitlines()) == 1
    if as_json:
        fields = json.loads(line, parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))
        assert fields["level"] == "info"  # whatever the fields are called
        assert len(fields) == 4


def test_a_field_cannot_pass_for_time_level_or_event():
    fields = json.loads(formatted(**{"time": "never", "level_": 1}))
    assert fields["time"] != "never"
    assert fields["time_"] == "never"


@pytest.mark.parametrize(
    "text",
    [
        KEY,
        f"Bearer {KEY}",
        f"authorization: bearer   {KEY}",
        f"[(b'authorization', b'Bearer {KEY}')]",
        f"x{KEY}.",
        f"no such key '{KEY}' here",
        "Basic " + SECRET,
        f"redis://user:{SECRET}@host:6379/0",
        f"redis://:{SECRET}@host",
    ],
)
def test_no_key_or_password_gets_into_a_line(text):
    for field in (text, [text], {"deep": {"deeper": text}}, Exception(text), text.encode(), {text: 1}):
        for as_json in (True, False):
            line = formatted(as_json, event=f"failed: {text}", field=field)
            assert SECRET not in line
            assert "hidden" in line
    assert SECRET not in hide_secrets(text)


@pytest.mark.parametrize("name", ["authorization", "Authorization", "api_key", "apikey", "webhook_secret", "token"])
def test_fields_with_telling_names_are_hidden(name):
    for fields in ({name: "hunter2"}, {"headers": {name: b"hunter2"}}):
        line = formatted(**fields)
        assert "hunter2" not in line
        assert HIDDEN in line
    assert json.loads(formatted(**{name: None}))[name] is None  # that there is none is no secret


def test_the_check_for_secrets_is_not_vacuous():
    assert "hunter2" in formatted(animal="hunter2")
    assert json.loads(formatted(key_id="0123456789abcdef"))["key_id"] == "0123456789abcdef"
    assert hide_secrets("the bearer") == "the bearer"
    assert hide_secrets(KEY) == f"qk_0123456789abcdef_{HIDDEN}"  # the id is public


def test_exceptions_are_told_in_one_line_without_keys(lines):
    setup("info")
    try:
        raise ValueError(f"bad key {KEY}\nsecond line")
    except ValueError:
        log("failed", level="error", id="7")
        logging.getLogger("elsewhere").exception("oh")
    logged = lines()
    assert [line["event"] for line in logged] == ["failed", "oh"]
    for line in logged:
        assert "ValueError: bad key" in line["traceback"]
        assert SECRET not in json.dumps(line)
    log("calm", level="error")
    assert "traceback" not in lines()[0]


def test_long_and_deep_things_are_cut():
    fields = json.loads(formatted(text="x" * 10**6, deep=[[[[[["x" * 10**6]]]]]]))
    assert fields["text"].startswith("x" * MAX_TEXT)
    assert len(fields["text"]) < MAX_TEXT + 50
    assert fields["deep"] == [[[["..."]]]]
    assert sanitize(float("nan")) == "nan"


def test_access_lines_say_who_by_public_id_and_no_verdicts(lines):
    setup("info")
    access(id="r1\n", protocol="rest", status=200, rows=2, seconds=0.0123456, key="0123456789abcdef")
    [line] = lines()
    del line["time"]
    assert line == {
        "level": "info",
        "event": "request",
        "id": "r1\n",
        "protocol": "rest",
        "status": 200,
        "rows": 2,
        "ms": 12.346,
        "key_id": "0123456789abcdef",
    }


@pytest.mark.slow
def test_lines_go_to_standard_error_of_a_real_process():
    script = (
        "from queen.serve.telemetry.log import *; setup(); log('hello', path='\\u2028'); log('quiet', level='debug')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == ""
    assert json.loads(done.stderr)["event"] == "hello"
    assert len(done.stderr.splitlines()) == 1


def test_writing_is_what_the_handler_does():
    handler = Handler(json=True)
    handler.setStream(stream := io.StringIO())
    handler.emit(logging.LogRecord("queen.serve", logging.INFO, "", 0, "e", None, None))
    assert stream.getvalue().endswith("}\n")
