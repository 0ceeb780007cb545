"""The guard of one process: opened once, asked in threads, closed at the end."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import numpy as np
from torch import Tensor

from queen.errors import CalibrationError, OptionError, ProtectionWarning, ShapeError
from queen.guard import Guard, load
from queen.ledger import Ledger, MemoryLedger, open_ledger
from queen.types import Arrays, Inputs, Reply
from queen.web.clients import Client

MAX_ROWS = 1024  # of a question: the ledger takes one at a time, and the others wait
CHECK_EVERY = 0.5  # seconds between two looks at whether the ledger has lost records or was taken over
FORGETFUL = (
    "the ledger is in memory: every process counts for itself, and none remembers anything after a restart; give a "
    "ledger that all workers share: ledger='clients.sqlite' or ledger='redis://...'"
)

Asked = Inputs | Arrays
"""A batch (n, *input), a tensor or an array, or several of them by name."""
LedgerSource = str | PathLike[str] | Callable[[], Ledger]
"""Where the clients are remembered: the address of a ledger, or a function that opens one."""


@dataclass
class _Opened:
    """What is open in a process."""

    guard: Guard
    is_ours: bool  # whether the ledger is ours to close
    checked: float = field(default_factory=time.monotonic)


class ProcessGuard:
    """A guard that is made elsewhere, or a bundle's, which every process opens for itself when it first needs it.

    Nothing that is open crosses a fork: connections and threads would not work on the other side.
    """

    def __init__(
        self,
        guard: Guard | str | PathLike[str],
        *,
        ledger: LedgerSource | None = None,
        threads: int = 4,
        max_rows: int = MAX_ROWS,
        weak: bool = False,
        **options: Any,
    ) -> None:
        if isinstance(guard, Guard):
            if ledger is not None or options:
                raise OptionError("this guard has its ledger and options: give them where it is made, or give a bundle")
        elif isinstance(guard, str | PathLike):
            if ledger is None:
                raise OptionError(f"expected ledger=..., where clients are remembered, such as '{guard}.sqlite'")
        else:
            raise OptionError(f"expected a guard or the folder of a bundle, got {type(guard).__name__}")
        for name, number in (("threads", threads), ("max_rows", max_rows)):
            if not isinstance(number, int) or number < 1:
                raise OptionError(f"{name} must be a whole number from 1, got {number!r}")
        self._source, self._ledger, self._options = guard, ledger, options
        self._threads, self._max_rows, self._weak = threads, max_rows, weak
        self._lock = threading.Lock()
        self._opened: _Opened | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._pid = os.getpid()
        self._inherited: list[object] = []  # from the parent of a fork, which it belongs to: never closed here

    def open(self) -> Guard:
        """The guard of this process; the first call opens it and raises what is wrong with it."""
        with self._lock:
            self._forget_parent()
            if self._opened is None:
                self._opened = self._open()
            return self._opened.guard

    def close(self) -> None:
        """Wait for the last answers and close what `open` has opened; a later question opens it again."""
        with self._lock:
            self._forget_parent()
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()  # which answers what waits, with what is still open
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None and opened.is_ours:
            opened.guard.ledger.close()

    async def answer(self, x: Asked, client: Client) -> Reply[Any]:
        """The guard's answer to one batch of one client, from a thread, so that the event loop stays free.

        Whoever stops waiting gets no answer, but what a thread has begun goes on and stays on record.
        """
        if not isinstance(x, Tensor | np.ndarray | Mapping):
            raise TypeError(f"expected a tensor or an array to ask about, got {type(x).__name__}: np.asarray(...)")
        rows = max((len(part) for part in (x.values() if isinstance(x, Mapping) else [x]) if part.ndim), default=0)
        if rows > self._max_rows:
            raise ShapeError(f"expected at most {self._max_rows} rows in a question, got {rows}: ask in parts")
        return await asyncio.get_running_loop().run_in_executor(self._start_pool(), self._answer, x, client)

    def _answer(self, x: Asked, client: Client) -> Reply[Any]:
        guard = self.open()
        self._check(guard)
        return guard.answer(x, client=client.name, groups=client.groups)

    def _check(self, guard: Guard) -> None:
        """Raise where the ledger has lost records, or belongs to another bundle since it was opened."""
        opened, now = self._opened, time.monotonic()
        if opened is not None and now - opened.checked > CHECK_EVERY:
            guard.ledger.verify()
            guard.bind()
            opened.checked = now  # only after a look that found nothing

    def _open(self) -> _Opened:
        if isinstance(self._source, Guard):
            opened = _Opened(self._source, is_ours=False)
            self._accept(opened.guard)
            return opened
        ledger = self._ledger() if callable(self._ledger) else open_ledger(self._ledger or "")
        try:
            ledger.check()  # a read-only file can be opened too
            guard = load(self._source, ledger=ledger, **self._options)
            self._accept(guard)
        except BaseException:
            ledger.close()
            raise
        return _Opened(guard, is_ours=True)

    def _accept(self, guard: Guard) -> None:
        """Refuse a guard that would protect nothing, and one whose ledger is another bundle's."""
        guard.bind()
        if guard.weakness and not self._weak:
            raise CalibrationError(f"{guard.weakness}; or take it as it is: weak=True")
        for sentence in (guard.weakness, FORGETFUL if isinstance(guard.ledger, MemoryLedger) else None):
            if sentence:
                warnings.warn(sentence, ProtectionWarning, stacklevel=2)

    def _start_pool(self) -> ThreadPoolExecutor:
        with self._lock:
            self._forget_parent()
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, "queen-ask")
            return self._pool

    def _forget_parent(self) -> None:
        """After a fork, start anew; the lock is held."""
        if self._pid == os.getpid():
            return
        if isinstance(self._source, Guard):
            raise OptionError("this guard was made before the process forked: give the folder of its bundle instead")
        self._inherited += [self._opened, self._pool]
        self._opened = self._pool = None
        self._pid = os.getpid()
