from __future__ import annotations

import sys
import time
from itertools import count

import pytest

from queen.progress import Progress
from tests.support.waiting import PATIENCE


def work(show: Progress) -> list[int]:
    with show:
        with show.bar("one", 2) as advance:
            advance()
            advance()
        items = list(show.each("items", iter([3, 1, 2])))
    show.say(["done"])
    return items


def test_silent_when_not_a_terminal(capsys):
    show = Progress()
    assert not show.shown
    assert work(show) == [3, 1, 2]
    assert tuple(capsys.readouterr()) == ("", "")


def test_bars_are_noise_in_a_log_file_but_lines_are_not(capsys):
    work(Progress(shown=True))
    assert tuple(capsys.readouterr()) == ("", "done\n")


def test_shown_on_standard_error_only(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert work(Progress(shown=True)) == [3, 1, 2]
    out, err = capsys.readouterr()
    assert out == ""
    assert "one" in err
    assert "2/2" in err
    assert err.endswith("done\n")
    assert "3/3" in err  # a bar without a total knows it in the end


def test_lines_are_said_one_by_one_and_never_broken(capsys):
    Progress(shown=True).say(["short: 12.5%", "x" * 300])
    assert tuple(capsys.readouterr()) == ("", "short: 12.5%\n" + "x" * 300 + "\n")


def test_shown_by_itself_on_a_terminal(monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert Progress().shown
    assert not Progress(shown=False).shown


def test_every_stage_is_timed(monkeypatch):
    clock = count()
    show = Progress(shown=False)
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    with show.timed("outer"), show.timed("inner"):
        pass
    assert show.seconds == {"inner": 1.0, "outer": 3.0}


def test_a_failing_stage_fails_as_if_there_were_no_bar():
    show = Progress(shown=False)
    with pytest.raises(KeyError), show, show.timed("stage"), show.bar("bar", 1):
        raise KeyError("k")
    assert show.seconds == {}


NOTEBOOK = """
from queen.progress import Progress
from tests.support.waiting import PATIENCE
with Progress({}) as show:
    print(show.shown, list(show.each("items", iter([3, 1, 2]))))
show.say(["done"])
"""


@pytest.fixture(scope="module")
def kernel():
    """A running notebook, without the page."""
    manager = pytest.importorskip("jupyter_client", reason="jupyter_client is not installed, so no notebook is tried")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed, so no notebook is tried")
    running = manager.KernelManager()
    running.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    running.start_kernel()
    client = running.client()
    client.start_channels()
    client.wait_for_ready(timeout=PATIENCE)
    yield client
    client.stop_channels()
    running.shutdown_kernel(now=True)


def shown_in(kernel, code: str) -> list[tuple[str, str]]:
    """What a cell shows: kinds and texts of its messages."""
    messages = []

    def note(message) -> None:
        content = message["content"]
        text = content.get("text") or content.get("data", {}).get("text/plain") or content.get("evalue")
        if text:
            messages.append((message["header"]["msg_type"], text))

    kernel.execute_interactive(code, output_hook=note, timeout=PATIENCE)
    return messages


@pytest.mark.slow
def test_a_notebook_shows_lines_that_change(kernel):
    shown = shown_in(kernel, NOTEBOOK.format(""))
    assert ("stream", "True [3, 1, 2]\n") in shown
    [begun] = [text for kind, text in shown if kind == "display_data" and text.startswith("items")]
    assert begun.split()[:2] == ["items", "0"]
    ended = [text for kind, text in shown if kind == "update_display_data"][-1]
    assert ended.split()[:2] == ["items", "3/3"]
    assert any("done" in text for _, text in shown)
    assert not [text for kind, text in shown if kind == "error"]


@pytest.mark.slow
def test_a_notebook_that_wants_none_shows_none(kernel):
    assert shown_in(kernel, NOTEBOOK.format("False")) == [("stream", "False [3, 1, 2]\n")]
