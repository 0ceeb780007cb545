"""Cells on this machine: in one process, or in several that live as long as the run.

They live that long because a process on a GPU is expensive to start: it loads the images, opens the device and compiles
networks. (Pools that end a process whose memory has grown, as joblib's does, start all of that again and again.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from functools import partial

from queen.bench.ray import Outcome, Place, Task
from queen.parallel.processes import in_processes

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
            for outcome in in_processes(partial(_at, place, work), list(remaining.values()), place.jobs):
                del remaining[outcome[0]]
                yield outcome
        except BrokenProcessPool:
            continue
        return
    yield from ((index, {"error": DIED}) for index in remaining)


def _at(place: Place, work: Work, task: Task) -> Outcome:
    """The work on one task, in the order of arguments that can be given beforehand."""
    return work(task, place)
