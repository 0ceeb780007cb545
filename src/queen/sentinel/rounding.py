"""Rounded answers: few decimals, and still probabilities that add up to one and name the same class.

All decimals of an answer are of little use to a client and of much use to a thief: who owns the same encoder solves for
the head with a few exact answers.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def round_answers(probabilities: Tensor, digits: int) -> Tensor:
    """(n, K) probabilities as whole multiples of 10^-digits that add up to one, by the method of largest remainders.

    Every number is rounded down, and what is missing goes to those that lost most, the first of equal ones first. So no
    number changes by a whole unit, unless the answer would then name another class: where an earlier class has come to
    equal the largest number (the first of equal ones), one unit goes from that class to it.
    """
    given = probabilities.cpu().numpy()  # by numpy, which takes less than half of torch's time for a single query
    units = 10**digits
    exact = given.astype(np.float64)
    exact *= units / exact.sum(axis=1, keepdims=True)
    whole = np.floor(exact)
    missing = (units - whole.sum(axis=1)).astype(np.intp)
    most_lost = (whole - exact).argsort(axis=1, kind="stable")
    rows = np.arange(len(given)).repeat(missing)
    whole[rows, most_lost[np.arange(given.shape[1]) < missing[:, None]]] += 1
    labels, tops = given.argmax(axis=1), whole.argmax(axis=1)
    changed = (tops != labels).nonzero()[0]
    if len(changed):
        whole[changed, labels[changed]] += 1
        whole[changed, tops[changed]] -= 1
    return torch.from_numpy((whole / units).astype(given.dtype)).to(probabilities.device)
