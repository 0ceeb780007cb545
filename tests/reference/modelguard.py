"""ModelGuard as it is defined: W as a linear program for HiGHS, S as a loop over queries."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog

MARGIN = 1e-4


def costs(y: np.ndarray) -> np.ndarray:
    return np.log(y + 1e-6)


def minimum_by_highs(y: np.ndarray, epsilon: float) -> float:
    """The program's minimum for one row y (K,), with one more variable a class for |x_k - y_k|."""
    classes, top = len(y), int(np.argmax(y))
    one, none = np.eye(classes), np.zeros((classes, classes))
    behind = np.delete(one, top, axis=0) - one[top]
    found = linprog(
        np.concatenate([costs(y), np.zeros(classes)]),
        A_ub=np.vstack(
            [
                np.hstack([one, -one]),
                np.hstack([-one, -one]),
                np.concatenate([np.zeros(classes), np.ones(classes)])[None],
                np.hstack([behind, none[1:]]),
            ]
        ),
        b_ub=np.concatenate([y, -y, [epsilon], np.full(classes - 1, -MARGIN)]),
        A_eq=np.concatenate([np.ones(classes), np.zeros(classes)])[None],
        b_eq=[1.0],
        bounds=[(0, 1)] * classes + [(0, None)] * classes,
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert found.status == 0, found.message
    return float(found.fun)


def repeat_one_by_one(y: np.ndarray, told: dict[int, list[np.ndarray]], epsilon: float) -> np.ndarray:
    """ModelGuard-S for rows in order; `told` grows."""
    answers = []
    for row in y:
        earlier = told.setdefault(int(np.argmax(row)), [])
        near = [old for old in earlier if np.abs(row - old).sum() <= epsilon]
        if not near:
            earlier.append(row)
        answers.append(near[0] if near else row)
    return np.array(answers)
