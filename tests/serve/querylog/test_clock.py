"""A wall clock that jumps deletes no recorded query; one that goes steadily deletes what is old."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from queen.serve.querylog import clock
from queen.serve.querylog import folder as log_folder
from queen.serve.querylog.folder import LogFolder

HOUR, DAY, MAX_DAYS = 3600.0, 86400.0, 30.0
START = 1.7e9


@dataclass
class World:
    """A folder in which a file is recorded now and then, and two clocks, of which one may be set."""

    folder: Path
    at: float = START  # the true time
    ahead: float = 0.0  # of the wall clock
    writer: int = 0
    written: dict[Path, float] = field(default_factory=dict)  # files and their true times

    def restart(self) -> None:
        options = {"segment_bytes": 1 << 20, "segment_seconds": HOUR, "compress": False}
        self.log = LogFolder(self.folder, max_bytes=1 << 30, max_days=MAX_DAYS, **options)
        self.writer += 1

    def record(self) -> None:
        wall = self.at + self.ahead
        path = (
            self.folder / f"{int(wall * 1000):013d}-{self.writer:016x}-{len(list(self.folder.iterdir())):06d}.queries"
        )
        path.touch(mode=0o600)
        os.utime(path, (wall, wall))
        if self.ahead >= 0:  # what a clock behind time records says itself that it is old
            self.written[path] = self.at

    def wait(self, hours: float, *, quietly: bool = False) -> None:
        """Let time pass while the server runs; it looks at its folder at the end."""
        self.at += hours * HOUR
        if not quietly:
            self.record()
        self.log.retain()

    def lost_too_early(self) -> list[float]:
        """True ages in days of files that are gone though they are not old."""
        ages = [(self.at - at) / DAY for path, at in self.written.items() if not path.exists()]
        return [age for age in ages if age <= MAX_DAYS]


def new_world(folder: str) -> World:
    world = World(Path(folder))
    clocks = SimpleNamespace(time=lambda: world.at + world.ahead, monotonic=lambda: world.at - START)
    patch.object(clock, "time", clocks).start()
    world.restart()
    return world


@pytest.fixture(autouse=True)
def _real_clocks_again():
    yield
    patch.stopall()


JUMPS = st.lists(st.sampled_from([-400, -90, -40, -31, 31, 40, 80, 365, 4000]), max_size=4, unique=True)
HOURS = st.lists(st.floats(0.1, 12), max_size=3).filter(lambda hours: sum(hours) < 23)  # that a wrong clock goes on


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.5, 20), min_size=1, max_size=30), JUMPS, HOURS, st.booleans(), st.booleans())
@example([12.0] * 20, [40], [1.0], False, False)
@example([12.0] * 20, [40], [1.0], True, False)
@example([12.0] * 20, [40], [1.0, 1.0], True, True)
def test_a_jump_that_is_undone_within_a_day_deletes_nothing(before, jumps, hours, restarts, again):
    with TemporaryDirectory() as folder:
        world = new_world(folder)
        for pause in before:
            world.wait(pause)
        for days in jumps:
            world.ahead = days * DAY
            if restarts:
                world.restart()
            world.log.retain()
            for pause in hours:
                world.wait(pause)
                if again:
                    world.restart()
                    world.log.retain()
            world.ahead = 0.0
            if restarts:
                world.restart()
            world.wait(1.0)
        assert world.lost_too_early() == []


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.5, 200), min_size=1, max_size=30), st.booleans())
def test_what_is_old_goes_after_a_steady_day_however_seldom_somebody_asks(pauses, quietly):
    with TemporaryDirectory() as folder:
        world = new_world(folder)
        for pause in pauses:
            world.wait(pause)
        world.restart()
        for _ in range(26):
            world.wait(1.0, quietly=quietly)
        for path, at in world.written.items():
            age = (world.at - at) / DAY
            assert age < MAX_DAYS + 0.01 or not path.exists()
            assert age > MAX_DAYS or path.exists()


def test_a_new_clock_is_believed_after_a_day(tmp_path):
    world = new_world(str(tmp_path))
    for _ in range(10):
        world.wait(12.0)
    world.ahead = 40 * DAY
    world.wait(1.0, quietly=True)
    assert all(path.exists() for path in world.written)
    for _ in range(25):
        world.wait(1.0, quietly=True)
    assert not any(path.exists() for path in world.written)


def test_operators_are_told_once_with_the_way_out(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(log_folder, "log", lambda event, **fields: lines.append((event, fields)))
    world = new_world(str(tmp_path))
    world.wait(1.0)
    world.ahead = 40 * DAY
    for _ in range(3):
        world.log.retain()
    [(event, fields)] = lines
    assert (event, fields["level"], fields["files_that_look_old"]) == ("recording_clock_jumped", "warning", 1)
    assert "set the clock right" in fields["why"]


def test_a_clock_that_was_set_back_does_not_make_the_newest_files_the_oldest(tmp_path):
    names = [(900, 0), (1000, 1), (100, 2), (110, 3)]  # start and number: the clock was set back after the second
    for start, number in names:
        (tmp_path / f"{start:013d}-{1:016x}-{number:06d}.queries").write_bytes(bytes(1 << 18))
    options = {"segment_bytes": 1 << 18, "segment_seconds": HOUR, "compress": False}
    LogFolder(tmp_path, max_bytes=1 << 20, max_days=MAX_DAYS, **options).retain()
    left = sorted(int(path.name.split("-")[0]) for path in tmp_path.glob("*.queries"))
    assert left == [100, 110, 1000]
