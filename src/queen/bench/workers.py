"""Cells on this machine: in one process, or in several that live as long as the run.

They live that long because a process on a GPU is expensive to start: it loads the images, opens the device and compiles
networks. (Pools that end a process whose memory has grown, as joblib's does, start all of that again and again.)
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from queen.bench.ray import Outcome, Place, Task

RESTARTS = 3  # of all processes, after one of them died
DIED = (
    "its process died again and again: is there enough memory for --jobs? "
    "(In a script, run_spec belongs under if __name__ == '__main__', since processes import the script.)"
)

Work = Callable[[Task, Place], Outcome]


def on_cores(work: Work, tasks: Sequence[Task], place: Place) -> Iterator[Outcome]:
    """Results in the order in which they are ready; cells whose processes keep dying are error results."""
    if place.jobs == 1:
        yield from (work(task, place) for task in tasks)
        return
    remaining = {task[1]: task for task in tasks}
    for _ in range(1 + RESTARTS):
        try:
            for outcome in _in_processes(work, list(remaining.values()), place):
                del remaining[outcome[0]]
                yield outcome
        except BrokenProcessPool:
            continue
        return
    yield from ((index, {"error": DIED}) for index in remaining)


def _in_processes(work: Work, tasks: Sequence[Task], place: Place) -> Iterator[Outcome]:
    """Spread the tasks over processes; whoever stops listening ends them at once."""
    others, done = multiprocessing.active_children(), False
    # Not forked: CUDA does not survive that.
    pool = ProcessPoolExecutor(place.jobs, multiprocessing.get_context("spawn"), initializer=_end_quietly)
    try:
        for future in as_completed([pool.submit(work, task, place) for task in tasks]):
            yield future.result()
        done = True
    finally:
        if not done:
            for process in multiprocessing.active_children():
                if process not in others:
                    process.terminate()
        pool.shutdown(cancel_futures=True)


def _end_quietly() -> None:
    """Let this process end with the one that started it, even if that is killed, and by Ctrl-C without a stack trace,
    which reaches every process of a terminal."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # not sys.exit, which ends this thread alone
