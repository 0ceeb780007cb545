"""Progress bars on standard error, so that standard output stays clean for results; in a notebook, changing lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

Item = TypeVar("Item")
PAUSE = 0.2  # seconds between two changes of a line in a notebook


class Progress:
    """Progress bars and the seconds every stage took.

    Silent unless standard error is a terminal, this is a notebook, or `shown` is True.
    """

    def __init__(self, shown: bool | None = None) -> None:
        self._display = None if shown is False else find_display()
        self.shown = sys.stderr.isatty() or self._display is not None if shown is None else shown
        self.seconds: dict[str, float] = {}
        self._console = Console(stderr=True)
        self.bars = self.shown and self._console.is_terminal  # in a log file a bar is only noise
        columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = RichProgress(*columns, console=self._console, disable=not self.bars)

    def __enter__(self) -> Progress:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, lines: Iterable[str]) -> None:
        """Print lines below the bars."""
        if self.shown:
            for line in lines:
                self._console.print(line, highlight=False, soft_wrap=True)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Remember how long a stage took."""
        start = time.perf_counter()
        yield
        self.seconds[stage] = round(time.perf_counter() - start, 3)

    @contextmanager
    def bar(self, name: str, total: int | None) -> Iterator[Callable[[], None]]:
        """A bar; gives a function that advances it by one."""
        if self._display is not None:
            line = NotebookLine(self._display, name, total)
            yield line.advance
            line.end()
            return
        task = self._progress.add_task(name, total=total)
        yield lambda: self._progress.advance(task)
        if total is None:  # now the number of steps is known
            done = self._progress.tasks[task].completed
            self._progress.update(task, total=done)

    def each(self, name: str, items: Iterable[Item], total: int | None = None) -> Iterator[Item]:
        """The items, with a bar up to `total`, or up to their number where they have one."""
        known = len(items) if total is None and isinstance(items, Sized) else total
        with self.bar(name, known) as advance:
            for item in items:
                yield item
                advance()


class NotebookLine:
    """One line of a notebook's output, which changes as the work goes on."""

    def __init__(self, display: Callable[..., Any], name: str, total: int | None) -> None:
        self._name, self._total, self._done = name, total, 0
        self._start = self._shown = time.monotonic()
        self._handle = display(self._content(), raw=True, display_id=True)

    def advance(self) -> None:
        """One step more."""
        self._done += 1
        if time.monotonic() > self._shown + PAUSE:
            self._show()

    def end(self) -> None:
        """No more steps; now their number is known."""
        self._total = self._total or self._done
        self._show()

    def _show(self) -> None:
        self._shown = time.monotonic()
        self._handle.update(self._content(), raw=True)

    def _content(self) -> dict[str, str]:
        of = "" if self._total is None else f"/{self._total}"
        return {"text/plain": f"{self._name:<24} {self._done}{of}  {time.monotonic() - self._start:.0f} s"}


def find_display() -> Callable[..., Any] | None:
    """What shows something in the notebook that this runs in; None elsewhere, also in IPython's own shell."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is None:
        return None
    display: Callable[..., Any] = sys.modules["IPython"].display.display
    return display
