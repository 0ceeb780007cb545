"""Winnings as the SQLite ledger writes them: whole numbers in as few bytes as the largest of them needs.

The counts of `BLOCK` neighbouring classes share one entry: alone, the entry of a class would be half overhead, and all
classes together would be written again for every query.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from queen.sentinel.bets import LANES, STAKES, Ints
from queen.sentinel.wealth import Winnings

BLOCK = 16
POWER = 2  # the lane of each score whose sums are much larger than all other counts


def pack_numbers(numbers: Ints) -> tuple[int, bytes]:
    """Whole numbers, each in as many bytes as the largest needs; returns how many that are, and the bytes."""
    width = max(1, (int(numbers.max()).bit_length() + 7) // 8)
    return width, numbers.astype("<u8", order="C").view(np.uint8).reshape(-1, 8)[:, :width].tobytes()


def unpack_numbers(data: bytes, count: int) -> Ints:
    """The numbers that `pack_numbers` packed; `ValueError` if there are not so many."""
    width = len(data) // max(1, count)
    if width * count != len(data) or not 1 <= width <= 8:
        raise ValueError(f"{len(data)} bytes cannot be {count} numbers")
    wide = np.zeros((count, 8), np.uint8)
    wide[:, :width] = np.frombuffer(data, np.uint8).reshape(count, width)
    return wide.view("<i8")[:, 0].astype(np.int64)


def pack_block(winnings: Winnings, block: int) -> bytes:
    """The counts of the classes of one block: the width of power sums, which classes there are, then the numbers."""
    first, counts = block * BLOCK, winnings.counts
    used = [i for i in range(BLOCK) if first + i in counts]
    numbers = np.stack([counts[first + i] for i in used])
    power = _power_columns(numbers.shape[1])
    width, large = pack_numbers(numbers[:, power])
    _, small = pack_numbers(numbers[:, ~power])
    return bytes([width]) + sum(1 << i for i in used).to_bytes(BLOCK // 8, "little") + large + small


def unpack_block(winnings: Winnings, block: int, data: bytes) -> None:
    """Put the counts of one block into winnings; `ValueError` if these are not the bytes of `pack_block`."""
    scores = len(winnings.clocks) - 1
    columns = 1 + scores + scores * LANES
    power = _power_columns(columns)
    start = 1 + BLOCK // 8
    present = int.from_bytes(data[1:start], "little")
    used = [i for i in range(BLOCK) if present >> i & 1]
    end = start + data[0] * scores * len(used)
    numbers = np.empty((len(used), columns), np.int64)
    numbers[:, power] = unpack_numbers(data[start:end], scores * len(used)).reshape(-1, scores)
    numbers[:, ~power] = unpack_numbers(data[end:], (columns - scores) * len(used)).reshape(len(used), -1)
    for i, row in zip(used, numbers, strict=True):
        winnings.counts[block * BLOCK + i] = row


def pack_purses(winnings: Winnings) -> tuple[bytes, bytes]:
    """Clocks and purses."""
    return pack_numbers(winnings.clocks)[1], winnings.purses.astype("<f4").tobytes()


def unpack_purses(clocks: bytes, purses: bytes) -> Winnings:
    """Winnings without counts; `ValueError` if these are not the bytes of `pack_purses`."""
    numbers = np.frombuffer(purses, "<f4").astype(np.float32)
    scores = len(numbers) // (LANES * len(STAKES))
    if scores < 1 or scores * LANES * len(STAKES) != len(numbers):
        raise ValueError(f"{len(numbers)} purses are not those of a test")
    return Winnings(unpack_numbers(clocks, 1 + scores), numbers)


def _power_columns(columns: int) -> NDArray[np.bool_]:
    """Which of the columns of counts are power sums."""
    scores = (columns - 1) // (1 + LANES)
    power = np.zeros(columns, np.bool_)
    power[1 + scores + POWER :: LANES] = True
    return power
