"""What every client script does alike: read its job, note answers and errors, print them.

The scripts import nothing of this package: the stubs of other people's clients and ours cannot be in one process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Job:
    """Where the server is, whose keys to use, and what to ask: images (n, 1, 8, 8), and noise that a thief sends."""

    rest: int
    grpc: int
    model: str
    key: str
    thief: str
    poor: str  # the key of a client whose budget does not suffice for all images
    images: Array
    noise: Array

    @property
    def bearer(self) -> dict[str, str]:
        return bearer(self.key)

    @property
    def bad_bearer(self) -> dict[str, str]:
        """A key of the right form that nobody has."""
        return bearer(self.key[:-1] + ("B" if self.key.endswith("A") else "A"))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def read_job() -> Job:
    given = json.load(sys.stdin)
    arrays = {name: np.array(given.pop(name), np.float32) for name in ("images", "noise")}
    return Job(**given, **arrays)


@dataclass
class Report:
    """All that a client was told."""

    facts: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)

    def part(self, form: str, probabilities: Array, refused: NDArray[np.bool_]) -> None:
        """Note an answer in part, to one who has used up its budget meanwhile."""
        kinds = [str(probabilities.dtype), str(refused.dtype)]
        self.parts[form] = {"dtypes": kinds, "rows": probabilities.tolist(), "refused": refused.tolist()}

    def answer(self, form: str, probabilities: Array) -> None:
        self.answers[form] = {"dtype": str(probabilities.dtype), "rows": probabilities.tolist()}

    def best(self, form: str, labels: NDArray[Any]) -> None:
        texts = [one.decode() if isinstance(one, bytes) else str(one) for one in labels.ravel()]
        self.labels[form] = {"shape": list(labels.shape), "texts": texts}

    def error(self, of: str, problem: Exception, status: object) -> None:
        self.errors[of] = {"type": type(problem).__name__, "status": str(status), "says": str(problem)}

    def attempt(self, of: str, call: Callable[[], object], expected: type[Exception]) -> None:
        """Note the error of a call that must fail; the error of a Triton client knows its status."""
        try:
            call()
        except expected as problem:
            self.error(of, problem, problem.status())  # type: ignore[attr-defined]

    def print(self) -> None:
        json.dump(vars(self), sys.stdout)
