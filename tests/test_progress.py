from __future__ import annotations

import time
from itertools import count

import pytest

from queen.progress import Progress


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


def test_a_bar_knows_its_end_where_the_items_have_a_number(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    show = Progress(shown=True)
    with show:
        for expected, items in ((3, ["a", "b", "c"]), (None, iter("abc"))):
            each = show.each("items", items)
            next(each)
            assert show._progress.tasks[-1].total == expected
            list(each)


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
