"""Answers that say nothing about the question: numbers of calibration images, shuffled by a secret.

A decoy is a function of the secret and of the exact input alone: no label, no feature and no honest number enters, so
nothing about the input can be read from one, and nothing from how decoys change along a path between two inputs. The
same input has the same decoy, whoever asks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BANK = 1000  # answers to calibration images that lend their numbers: enough that few decoys show the same ones
Answers = NDArray[np.float32]


def draw_decoys(digests: Sequence[int], key: bytes, bank: Answers) -> Answers:
    """(n, K) decoys for the digests (n,) of inputs: each a row of the bank (m, K), with its numbers in a random order.

    Both are drawn by a keyed hash of the digest; `key` has a fixed length and is used for nothing else.
    """
    classes = bank.shape[1]
    size = 4 * (1 + classes)
    drawn = b"".join(
        [hashlib.shake_256(key + digest.to_bytes(8, "little", signed=True)).digest(size) for digest in digests]
    )
    numbers = np.frombuffer(drawn, "<u4").reshape(-1, 1 + classes)
    orders = numbers[:, 1:].argsort(axis=1, kind="stable")
    decoys: Answers = bank[numbers[:, :1] % len(bank), orders]
    return decoys
