"""Progress bars on standard error, so that standard output stays clean for results."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

Item = TypeVar("Item")


class Progress:
    """Progress bars and the seconds every stage took; silent unless standard error is a terminal or `shown` is True."""

    def __init__(self, shown: bool | None = None) -> None:
        self.shown = sys.stderr.isatty() if shown is None else shown
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
