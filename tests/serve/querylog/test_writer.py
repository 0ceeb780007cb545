"""The query log: what is written is read again bit for bit, and nothing else ever is."""

from __future__ import annotations

import json
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
import zlib
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from queen.core import inputs
from queen.errors import OptionError
from queen.serve.querylog import clock, writer
from queen.serve.querylog import folder as log_folder
from queen.serve.querylog.folder import read_log
from queen.serve.querylog.format import PREFIX, TYPES, Damage, LoggedRequest, encode, make_header, read_segment
from queen.serve.querylog.writer import QueryLog
from queen.serve.telemetry.metrics import Metrics
from queen.types import Inputs
from tests.support.metrics import values

BATCH = torch.arange(6.0).view(2, 3)


@contextmanager
def opened(folder: Path, **options):
    log = QueryLog(folder, **options)
    try:
        yield log
    finally:
        log.close()


def write(folder: Path, *entries: LoggedRequest, **options) -> None:
    with opened(folder, **options) as log:
        for entry in entries:
            log.write(entry.client, entry.groups, entry.inputs, entry.at)


def numbered(count: int, *, start: float = 1e9, client: str = "a", size: int = 3) -> list[LoggedRequest]:
    """Requests that differ in every byte that matters."""
    return [LoggedRequest(start + i, f"{client}{i}", (), torch.full((1, size), float(i))) for i in range(count)]


def same_inputs(one: Inputs, other: Inputs) -> bool:
    if isinstance(one, Tensor) != isinstance(other, Tensor):
        return False
    left, right = inputs.tensors(one), inputs.tensors(other)
    return list(left) == list(right) and all(
        left[n].dtype == right[n].dtype
        and left[n].shape == right[n].shape
        and left[n].reshape(-1).view(torch.uint8).equal(right[n].reshape(-1).view(torch.uint8))
        for n in left
    )


def same(one: LoggedRequest, other: LoggedRequest) -> bool:
    return (one.at, one.client, one.groups) == (other.at, other.client, other.groups) and same_inputs(
        one.inputs, other.inputs
    )


def all_same(entries: list[LoggedRequest], expected: list[LoggedRequest]) -> bool:
    return len(entries) == len(expected) and all(map(same, entries, expected))


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.queries"))


def read_file(path: Path) -> tuple[list[LoggedRequest], list[Damage]]:
    damage: list[Damage] = []
    return list(read_segment(path, damage.append)), damage


# What goes in comes out.


@st.composite
def tensors(draw) -> Tensor:
    dtype = TYPES[draw(st.sampled_from(sorted(TYPES)))]
    shape = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    size = torch.Size(shape).numel() * dtype.itemsize
    data = bytes(b % 2 for b in draw(st.binary(min_size=size, max_size=size))) if dtype == torch.bool else None
    data = draw(st.binary(min_size=size, max_size=size)) if data is None else data
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
BATCHES = tensors() | st.dictionaries(NAMES | st.just("x"), tensors(), min_size=1, max_size=3)
ENTRIES = st.builds(
    LoggedRequest, st.floats(0, 4e9), NAMES, st.lists(NAMES, max_size=2).map(tuple), BATCHES
)  # fmt: skip


@settings(max_examples=60)
@given(st.lists(ENTRIES, min_size=1, max_size=6), st.booleans(), st.integers(300, 3000))
def test_every_batch_comes_back_bit_for_bit(entries, compress, segment_bytes):
    entries = sorted(entries, key=lambda entry: entry.at)
    with TemporaryDirectory() as folder:
        write(Path(folder), *entries, compress=compress, segment_bytes=segment_bytes)
        assert all_same(list(read_log(folder)), entries)


def test_the_comparison_is_not_vacuous():
    entry = LoggedRequest(1.0, "a", (), BATCH)
    for other in (
        LoggedRequest(2.0, "a", (), BATCH),
        LoggedRequest(1.0, "b", (), BATCH),
        LoggedRequest(1.0, "a", ("g",), BATCH),
        LoggedRequest(1.0, "a", (), BATCH + 1),
        LoggedRequest(1.0, "a", (), BATCH.double()),
        LoggedRequest(1.0, "a", (), BATCH.view(3, 2)),
        LoggedRequest(1.0, "a", (), {"x": BATCH}),
    ):
        assert not same(entry, other)
    assert same(entry, LoggedRequest(1.0, "a", (), BATCH.clone()))


def test_slices_and_transposed_tensors_are_recorded_as_they_look(tmp_path):
    whole = torch.arange(24.0).view(4, 6)
    write(tmp_path, LoggedRequest(1.0, "a", (), whole[1:3]), LoggedRequest(2.0, "a", (), whole.T))
    first, second = (entry.inputs for entry in read_log(tmp_path))
    assert first.equal(whole[1:3])
    assert second.equal(whole.T)


def test_what_is_read_may_be_written_to(tmp_path):
    write(tmp_path, LoggedRequest(1.0, "a", (), BATCH))
    [entry] = read_log(tmp_path)
    entry.inputs.add_(1)  # a tensor over read-only memory would warn or crash
    assert entry.inputs.equal(BATCH + 1)


def test_the_format_is_as_documented(tmp_path):
    write(tmp_path, LoggedRequest(1.5, "alice", ("tenant:7",), BATCH), compress=False)
    [path] = files(tmp_path)
    assert path.name.startswith("0000000001500-")
    line, _, rest = path.read_bytes().partition(b"\n")
    header = json.loads(line)
    assert (header["format"], header["version"]) == ("queen-query-log", 1)
    assert rest[:8] == bytes.fromhex(header["marker"])
    assert int.from_bytes(rest[8:12], "little") == len(rest) - PREFIX
    head, _, body = rest[PREFIX:].partition(b"\n")
    assert json.loads(head) == {
        "at": 1.5,
        "client": "alice",
        "groups": ["tenant:7"],
        "tensors": [[None, "FP32", [2, 3]]],
        "zlib": False,
    }
    assert body == BATCH.numpy().astype("<f4").tobytes()


def test_compression_is_used_where_it_helps(tmp_path):
    zeros, noise = torch.zeros(1, 10_000), torch.rand(1, 8)
    write(tmp_path, LoggedRequest(1.0, "a", (), zeros), LoggedRequest(2.0, "a", (), noise))
    assert files(tmp_path)[0].stat().st_size < 2000
    assert [entry.inputs.shape[1] for entry in read_log(tmp_path)] == [10_000, 8]


# Order and time.


def test_queries_are_read_in_order_of_time_over_files_and_servers(tmp_path):
    first, second = numbered(40, start=1000.0, client="a"), numbered(40, start=1000.5, client="b")
    for half in (slice(0, 20), slice(20, None)):  # two servers, each restarted once
        write(tmp_path, *first[half], segment_bytes=700)
        write(tmp_path, *second[half], segment_bytes=700)
    assert len(files(tmp_path)) > 8
    entries = list(read_log(tmp_path))
    assert all_same(entries, sorted(first + second, key=lambda entry: entry.at))


def test_a_clock_that_was_set_back_does_not_change_the_order_of_arrival(tmp_path):
    times = [5000.0, 5001.0, 100.0, 101.0, 5002.0]
    write(tmp_path, *(LoggedRequest(at, f"c{i}", (), BATCH) for i, at in enumerate(times)), segment_bytes=400)
    assert [entry.client for entry in read_log(tmp_path)] == ["c0", "c1", "c2", "c3", "c4"]


def test_a_span_of_time_is_read_with_its_start_and_without_its_end(tmp_path):
    write(tmp_path, *numbered(10, start=0.0))
    assert [entry.at for entry in read_log(tmp_path, 3.0, 6.0)] == [3.0, 4.0, 5.0]
    assert [entry.at for entry in read_log(tmp_path, since=8.0)] == [8.0, 9.0]
    assert [entry.at for entry in read_log(tmp_path, until=2.0)] == [0.0, 1.0]
    assert list(read_log(tmp_path, since=10.0)) == []


def test_only_files_of_their_time_are_open_at_once(tmp_path, monkeypatch):
    for i in range(30):  # thirty restarts
        write(tmp_path, *numbered(2, start=1000.0 * i))
    opens = []
    real = log_folder.read_segment
    monkeypatch.setattr(log_folder, "read_segment", lambda path, *a, **k: opens.append(path) or real(path, *a, **k))
    reading = read_log(tmp_path)
    next(reading)
    assert len(opens) <= 2
    assert len(list(reading)) == 59
    assert len(opens) == 30


def test_a_log_that_is_not_there_is_named(tmp_path):
    for folder in (tmp_path / "nothing", tmp_path):
        with pytest.raises(OptionError, match=r"no query log in .* --record"):
            read_log(folder)


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    write(tmp_path, *numbered(50), max_bytes=4000, segment_bytes=1000)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert list(read_log(tmp_path))


# Damage.


def test_every_single_flipped_bit_is_noticed_and_never_becomes_data(tmp_path):
    expected = numbered(3, size=1)
    write(tmp_path, *expected, compress=False)
    [path] = files(tmp_path)
    data = path.read_bytes()
    header = data.index(b"\n") + 1
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        entries, damage = read_file(path)
        assert all(any(same(one, entry) for entry in expected) for one in entries), bit
        if bit >= 8 * header:
            assert damage, bit
            assert len(entries) == 2, bit  # the other two records are still there
    path.write_bytes(data)
    assert read_file(path)[1] == []


def test_a_file_cut_anywhere_gives_all_records_before_the_cut(tmp_path):
    expected = numbered(5)
    write(tmp_path, *expected, compress=False)
    [path] = files(tmp_path)
    data = path.read_bytes()
    size = PREFIX + len(encode(expected[0], b"", compress=False)) - (PREFIX - 8)
    ends = [len(data) - size * (5 - i) for i in range(6)]  # where records end
    assert ends[0] == data.index(b"\n") + 1
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        entries, damage = read_file(path)
        whole = sum(end <= cut for end in ends[1:])
        assert all_same(entries, expected[:whole]), cut
        assert bool(damage) == (cut not in ends), cut


def test_random_damage_never_becomes_data(tmp_path):
    rng = random.Random(0)
    expected = numbered(20, size=20)
    write(tmp_path, *expected)
    [path] = files(tmp_path)
    data = path.read_bytes()
    survivors = 0
    for _ in range(300):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            kind = rng.randrange(3)
            if kind == 0:
                changed[at : at + rng.randint(1, 60)] = rng.randbytes(rng.randint(1, 60))  # may change the length
            elif kind == 1:
                changed[at : at + 30] = bytes(30)
            else:
                changed[at:at] = data[: rng.randint(1, 400)]  # a header in the middle
        path.write_bytes(changed)
        entries, _ = read_file(path)
        survivors += len(entries)
        numbers = [int(entry.client[1:]) for entry in entries]
        assert all(same(entry, expected[n]) for n, entry in zip(numbers, entries, strict=True))
    assert survivors > 300 * 10  # most records survive damage elsewhere


def test_a_query_cannot_smuggle_in_a_record_of_somebody_else(tmp_path):
    """After damage the reader looks for the next record, and the tensor of a query may look just like one."""
    forged = encode(LoggedRequest(1.0, "victim", (), BATCH), b"guessed!", compress=False)
    evil = torch.frombuffer(bytearray(forged * 3), dtype=torch.uint8).view(1, -1)
    write(tmp_path, LoggedRequest(1.0, "mallory", (), evil), LoggedRequest(2.0, "alice", (), BATCH), compress=False)
    [path] = files(tmp_path)
    data = bytearray(path.read_bytes())
    data[data.index(b"\n") + 1 + 9] ^= 255  # the length of mallory's record
    path.write_bytes(data)
    assert [entry.client for entry in read_file(path)[0]] == ["alice"]
    # The control: with a marker that the client knew, it would have worked.
    path.write_bytes(make_header(b"guessed!", 0.0) + b"damage" + forged)
    assert [entry.client for entry in read_file(path)[0]] == ["victim"]


@pytest.mark.parametrize("content", [b"", b"{}", b"[]\n", b"\xff\xfe", b'{"format":"queen-query-log"}\n', b"x" * 10_000,
                                     make_header(bytes(8), 0.0).replace(b'"version":1', b'"version":2'),
                                     make_header(bytes(7), 0.0)])  # fmt: skip
def test_a_file_without_a_header_is_skipped_with_a_note(tmp_path, content):
    write(tmp_path, *numbered(2))
    (tmp_path / f"{0:013d}-{'0' * 16}-000000.queries").write_bytes(content)
    damage: list[Damage] = []
    assert len(list(read_log(tmp_path, on_damage=damage.append))) == 2
    assert [one.offset for one in damage] == [0]


def test_a_record_that_contradicts_itself_is_skipped_whatever_its_checksum(tmp_path):
    good = LoggedRequest(1.0, "a", (), BATCH)
    record_ = encode(good, b"marker!!", compress=False)
    lies = [b"[2,4]", b"[2,1]", b"[-2,-3]", b'"2,3"', b"[[2],3]"]  # of as many numbers as there are not
    forged = [_signed(record_[PREFIX:].replace(b"[2,3]", lie)) for lie in lies]
    forged.append(_signed(record_[PREFIX:].replace(b"FP32", b"FP33")))
    forged.append(_signed(record_[PREFIX:].replace(b'"zlib":false', b'"zlib":true')))
    path = tmp_path / f"{0:013d}-{'0' * 16}-000000.queries"
    path.write_bytes(make_header(b"marker!!", 0.0) + b"".join(forged) + record_)
    entries, damage = read_file(path)
    assert all_same(entries, [good])
    assert len(damage) == len(forged)


def _signed(payload: bytes) -> bytes:
    length = len(payload).to_bytes(4, "little")
    return b"marker!!" + length + zlib.crc32(length + payload).to_bytes(4, "little") + payload


def test_a_file_that_retention_deletes_while_the_log_is_read_is_passed_over(tmp_path):
    write(tmp_path, *numbered(20), segment_bytes=400)
    reading = read_log(tmp_path)
    next(reading)
    for path in files(tmp_path)[2:4]:
        path.unlink()
    assert 10 < len(list(reading)) < 19


def test_what_cannot_be_read_is_named(tmp_path):
    (tmp_path / f"{0:013d}-{'0' * 16}-000000.queries").mkdir()
    with pytest.raises(OptionError, match=r"cannot read .*directory"):
        list(read_log(tmp_path))


@pytest.fixture
def believed(monkeypatch):
    """A clock that is believed at once."""
    monkeypatch.setattr(clock, "STEADY", 0.0)


def test_two_servers_may_delete_the_same_file(tmp_path, monkeypatch, believed):
    write(tmp_path, *numbered(2))
    [path] = files(tmp_path)
    os.utime(path, (0, 0))
    real = log_folder._stat

    def stat(file: Path) -> os.stat_result | None:
        result = real(file)
        path.unlink(missing_ok=True)  # the other server, between our look and our deletion
        assert real(path) is None
        return result

    monkeypatch.setattr(log_folder, "_stat", stat)
    write(tmp_path, *numbered(2, start=2e9), max_days=1)
    assert [entry.at for entry in read_log(tmp_path)] == [2e9, 2e9 + 1]


def test_damage_is_logged_unless_somebody_else_takes_note(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(log_folder, "log", lambda event, **fields: lines.append((event, fields)))
    write(tmp_path, *numbered(2))
    [path] = files(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    assert len(list(read_log(tmp_path))) == 1
    [(event, fields)] = lines
    assert (event, fields["level"], fields["file"]) == ("query_log_damaged", "warning", path)


KILLED = """
import sys, time, torch
from queen.serve.querylog.writer import QueryLog
log = QueryLog(sys.argv[1], segment_bytes=20_000)
i = 0
while True:
    log.write(f"c{i}", (), torch.full((1, 50), float(i)), 1e9 + i)
    i += 1
    if i % 20 == 0:
        log.flush()
        print(i, flush=True)
"""


@pytest.mark.slow
def test_a_server_that_is_killed_leaves_a_readable_log(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.2)
    os.kill(process.pid, signal.SIGKILL)
    written = ["20", *process.stdout.read().split()]
    process.wait(timeout=60)
    damage: list[Damage] = []
    entries = list(read_log(tmp_path, on_damage=damage.append))
    assert len(entries) >= int(written[-1])  # all that was written is there
    assert [entry.client for entry in entries] == [f"c{i}" for i in range(len(entries))]
    assert all(entry.inputs.equal(torch.full((1, 50), float(i))) for i, entry in enumerate(entries))
    assert len(damage) <= 1  # at most the tail
    write(tmp_path, LoggedRequest(3e9, "later", (), BATCH))  # and the next server goes on
    assert next(reversed(list(read_log(tmp_path)))).client == "later"


# Room and time.


def test_the_log_never_takes_more_room_than_allowed_and_the_newest_stay(tmp_path):
    limit = 20_000
    with opened(tmp_path, max_bytes=limit, segment_bytes=4000, compress=False) as log:
        for entry in numbered(400, size=20):
            log.write(entry.client, entry.groups, entry.inputs, entry.at)
            if int(entry.client[1:]) % 10 == 0:
                assert log.flush()
                assert sum(path.stat().st_size for path in files(tmp_path)) <= limit
    numbers = [int(entry.client[1:]) for entry in read_log(tmp_path)]
    assert numbers == list(range(numbers[0], 400))  # no holes
    assert 40 < len(numbers) < 200


def test_files_are_rotated_by_size_and_age(tmp_path):
    with opened(tmp_path / "size", segment_bytes=2000, compress=False) as log:
        for entry in numbered(40):
            log.write(entry.client, entry.groups, entry.inputs, entry.at)
    sizes = [path.stat().st_size for path in files(tmp_path / "size")]
    assert len(sizes) > 2
    assert all(1000 < size <= 2000 for size in sizes[:-1])
    with opened(tmp_path / "age", segment_seconds=0.01, sync_seconds=0.01) as log:
        for entry in numbered(3):
            log.write(entry.client, entry.groups, entry.inputs, entry.at)
            log.flush()
            time.sleep(0.1)
    assert len(files(tmp_path / "age")) == 3


def test_a_record_larger_than_a_file_gets_one_of_its_own(tmp_path):
    big = [LoggedRequest(1.0 + i, "a", (), torch.rand(1, 2000)) for i in range(3)]
    write(tmp_path, *big, segment_bytes=1000)
    assert len(files(tmp_path)) == 3
    assert all_same(list(read_log(tmp_path)), big)


def test_old_files_are_deleted_even_if_nobody_asks_anything(tmp_path, monkeypatch, believed):
    monkeypatch.setattr(writer, "REST", 0.05)
    write(tmp_path, *numbered(3))
    write(tmp_path, *numbered(2, start=2e9))
    old, young = files(tmp_path)
    os.utime(old, (time.time() - 8 * 86400,) * 2)
    os.utime(young, (time.time() - 6 * 86400,) * 2)
    with opened(tmp_path, max_days=7, sync_seconds=0.01):
        end = time.monotonic() + 60
        while old.exists() and time.monotonic() < end:
            time.sleep(0.01)
    assert files(tmp_path) == [young]


def test_a_file_that_another_server_writes_is_not_deleted(tmp_path, believed):
    with opened(tmp_path) as other:
        other.write("a", (), BATCH, 1.0)
        assert other.flush()
        [path] = files(tmp_path)
        os.utime(path, (0, 0))
        write(tmp_path, *numbered(3), max_days=1)
        assert path.exists()
    os.utime(path, (0, 0))
    write(tmp_path, *numbered(3), max_days=1)
    assert not path.exists()  # the control: now it is nobody's


def test_folder_and_files_are_private(tmp_path):
    old = os.umask(0)
    try:
        write(tmp_path / "new" / "log", *numbered(2))
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "new" / "log").stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in files(tmp_path / "new" / "log")] == [0o600]


def test_a_folder_that_others_can_enter_is_refused(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    with pytest.raises(OptionError, match=r"mode 755.*chmod 700"):
        QueryLog(tmp_path / "open")
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="cannot make the folder"):
        QueryLog(tmp_path / "file")


def test_a_folder_that_cannot_be_written_or_read_is_named(tmp_path, monkeypatch):
    write(tmp_path, *numbered(1))
    monkeypatch.setattr(log_folder.os, "access", lambda *_: False)  # root may write anywhere
    with pytest.raises(OptionError, match="cannot write to"):
        QueryLog(tmp_path)

    def listdir(_: Path) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(log_folder.os, "listdir", listdir)
    with pytest.raises(OptionError, match=r"cannot read the folder .*Permission denied"):
        read_log(tmp_path)


def test_numbers_that_make_no_sense_are_refused(tmp_path):
    for name in ("max_bytes", "max_days", "segment_bytes", "segment_seconds", "queue_bytes", "sync_seconds"):
        with pytest.raises(OptionError, match="positive"):
            QueryLog(tmp_path, **{name: 0})
    with opened(tmp_path) as log:
        with pytest.raises(OptionError, match="time"):
            log.write("a", (), BATCH, float("nan"))
        with pytest.raises(OptionError, match="complex64"):
            log.write("a", (), torch.zeros(1, dtype=torch.complex64), 1.0)
    assert files(tmp_path) == []


# Nobody waits for the disk.


def test_a_slow_disk_holds_up_nobody_and_losses_are_counted(tmp_path, monkeypatch):
    free, waits = threading.Event(), threading.Event()
    real = os.write

    def slow(file: int, data: bytes) -> int:
        waits.set()
        free.wait(60)
        return real(file, data)

    metrics = Metrics()
    monkeypatch.setattr(log_folder.os, "write", slow)
    log = QueryLog(tmp_path, queue_bytes=20_000, metrics=metrics)
    log.write("a0", (), torch.zeros(2, 10), 1.0)
    assert waits.wait(60)
    for i in range(1, 1001):  # who waits for the disk here would lose less
        log.write(f"a{i}", (), torch.zeros(2, 10), 1.0 + i)
    lost = 1000 - 20_000 // (80 + writer.OVERHEAD)
    assert log.dropped == 2 * lost
    free.set()
    log.close()
    assert values(metrics)["queen_record_dropped_rows_total"] == 2 * lost
    assert [entry.client for entry in read_log(tmp_path)] == [f"a{i}" for i in range(1001 - lost)]


def test_a_request_larger_than_the_queue_is_still_recorded(tmp_path):
    with opened(tmp_path, queue_bytes=10) as log:
        log.write("a", (), torch.zeros(1, 1000), 1.0)
        assert log.flush()
        assert log.dropped == 0
    assert len(list(read_log(tmp_path))) == 1


FULL = """
import resource, sys, time, torch
from queen.serve.querylog import writer
from queen.serve.telemetry.log import setup
from queen.serve.telemetry.metrics import Metrics
writer.REST = 0.3
setup()
metrics = Metrics()
log = writer.QueryLog(sys.argv[1], compress=False, metrics=metrics)
resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, resource.RLIM_INFINITY))  # now no file may grow beyond
for i in range(100):
    log.write(f"c{i}", (), torch.full((1, 50), float(i)), 1e9 + i)
log.flush()
assert not log.recording and log.dropped == 100, (log.recording, log.dropped)
assert b"queen_recording 0.0" in metrics.render()[0]
log.write("lost", (), torch.zeros(1, 50), 2e9)
assert log.dropped == 101
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
time.sleep(0.5)
log.write("again", (), torch.zeros(1, 50), 3e9)
log.flush()
assert log.recording and b"queen_recording 1.0" in metrics.render()[0]
log.close()
assert b"queen_record_dropped_rows_total 101.0" in metrics.render()[0]
"""


@pytest.mark.slow
def test_recording_stops_on_a_full_disk_says_so_and_goes_on_when_there_is_room(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["recording_incomplete", "recording_stopped", "recording_resumed"]
    assert lines[1]["why"] == "File too large"
    assert lines[1]["level"] == "error"
    clients = [entry.client for entry in read_log(tmp_path, on_damage=lambda damage: None)]
    assert clients == ["again"]
    assert len(files(tmp_path)) == 1


def test_whatever_goes_wrong_the_thread_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "REST", 0.0)
    with opened(tmp_path) as log:
        monkeypatch.setattr(log_folder, "encode", lambda *a, **k: 1 / 0)
        log.write("a", (), BATCH, 1.0)
        assert log.flush()
        assert log.dropped == 2
        monkeypatch.undo()
        log.write("b", (), BATCH, 2.0)
        assert log.flush()
    assert [entry.client for entry in read_log(tmp_path)] == ["b"]


def test_threads_may_write_at_once_and_each_keeps_its_order(tmp_path):
    with opened(tmp_path, segment_bytes=5000) as log:

        def work(name: str) -> None:
            for i in range(200):
                log.write(name, (str(i),), BATCH, 1.0)

        threads = [threading.Thread(target=work, args=(f"t{k}",)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    entries = list(read_log(tmp_path))
    assert len(entries) == 800
    for k in range(4):
        numbers = [int(entry.groups[0]) for entry in entries if entry.client == f"t{k}"]
        assert all(b == a + 1 for a, b in pairwise(numbers))


def test_after_closing_nothing_is_recorded(tmp_path):
    log = QueryLog(tmp_path)
    log.write("a", (), BATCH, 1.0)
    log.close()
    log.write("b", (), BATCH, 2.0)
    assert (log.dropped, log.recording) == (2, False)
    log.close()
    assert [entry.client for entry in read_log(tmp_path)] == ["a"]


def test_a_log_can_be_read_while_it_is_written(tmp_path):
    with opened(tmp_path) as log:
        for entry in numbered(5):
            log.write(entry.client, entry.groups, entry.inputs, entry.at)
        assert log.flush()
        assert len(list(read_log(tmp_path))) == 5
        log.write("late", (), BATCH, 2e9)
    assert len(list(read_log(tmp_path))) == 6
