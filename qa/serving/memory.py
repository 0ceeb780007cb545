"""How large a process is, and how large it has been."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 1 << 20


def resident(process: int) -> int:
    """Bytes of memory that a process holds now."""
    return _status(process, "VmRSS")


def peak(process: int) -> int:
    """The most bytes it has had since `forget_peak`."""
    return _status(process, "VmHWM")


def forget_peak(process: int) -> None:
    """Begin anew: the peak is what the process holds now."""
    Path(f"/proc/{process}/clear_refs").write_text("5")


@contextmanager
def watched(process: int, every: float = 0.01) -> Iterator[list[int]]:
    """The most bytes it had meanwhile, as the only item of a list; sampled, should peaks not be forgotten here."""
    most = [resident(process)]
    try:
        forget_peak(process)
    except OSError:
        stop = threading.Event()

        def look() -> None:
            while not stop.wait(every):
                most[0] = max(most[0], resident(process))

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield most
        finally:
            stop.set()
            thread.join()
        return
    yield most
    most[0] = max(most[0], peak(process))


def _status(process: int, name: str) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))
