"""Work spread over processes of this machine, which end with the one that started them, however that ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")


def in_processes(work: Callable[[Task], Outcome], tasks: Iterable[Task], jobs: int) -> Iterator[Outcome]:
    """What `work` makes of every task, in the order in which it is ready, from `jobs` processes that live on till then.

    Whoever stops listening ends them at once. A process that dies raises `BrokenProcessPool`. Each process gets `work`,
    and all that it holds, once, and not with every task.
    """
    others, done = multiprocessing.active_children(), False
    # Not forked: CUDA does not survive that.
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(work,))
    try:
        with _deaf_children():
            futures = [pool.submit(_do, task) for task in tasks]
        for future in as_completed(futures):
            yield future.result()
        done = True
    finally:
        if not done:
            for process in multiprocessing.active_children():
                if process not in others:
                    process.terminate()
        pool.shutdown(cancel_futures=True)


@contextmanager
def at_the_same_time(work: Callable[[Task], object], tasks: Iterable[Task]) -> Iterator[None]:
    """Do `work` on every task in a process of its own while the caller does something else; then end them.

    They help, and nobody waits for them: one that fails is missed by nobody.
    """
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_try, args=(work, task), daemon=True) for task in tasks]
    try:
        with _deaf_children():
            for process in processes:
                process.start()
        yield
    finally:
        for process in processes:
            if process.pid is not None:
                process.terminate()
                process.join()


def _try(work: Callable[[Any], object], task: Any) -> None:
    threading.Thread(target=_wait_for_parent, daemon=True).start()
    with suppress(Exception):
        work(task)


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach, from their first instruction on: it goes to every process of a
    terminal, and the one that started the others decides what it means."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which new processes inherit
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)  # a signal that came meanwhile is raised here


_given: list[Callable[[Any], Any]] = []  # in a process of a pool: its work


def _begin(work: Callable[[Any], Any]) -> None:
    """Take the work, and let this process end with the one that started it, even if that is killed."""
    _given.append(work)
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _do(task: Any) -> Any:
    """The work of this process on one task."""
    return _given[0](task)


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # not sys.exit, which ends this thread alone
