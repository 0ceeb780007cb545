"""Goal 14: the time of an answer tells next to nothing about how the guard judged the question.

Four clients of one server ask in turn, one request at a time. One asks new questions and is answered honestly; one asks
what it has asked before, a tiny bit changed; one asks the same again and again; and one stands accused and gets decoys.
`tell` is the chance to say from the times of two answers which of them was the honest, new one: 0.5 is luck, 1 certain.
"""

from __future__ import annotations

import itertools
import random
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.serve.models import mixtures
from qa.serving.rest import HOST, PATIENCE, Told, ask, get, post, talk
from qa.serving.scenario import Check, none_of
from tests.support.guards import digits as flat_digits
from tests.support.guards import images
from tests.support.rest_bodies import ask_raw
from tests.support.server import Server, started
from tests.support.serving import REST, noise

NUMBERS = itertools.count()
KINDS = ("new", "near", "again", "accused")
DECOYS: Mapping[str, Any] = {"on_alarm": "decoy", "after_alarm": -1, "digits": 2}
BARE: Mapping[str, Any] = {"uniform": False, "release_every": 0}
STEP = 1e-3  # by which a changed question differs in every number: another input, but the same picture
PATIENT = 100  # answers from which a patient client takes the median
TRIES = 20  # questions at each of 8 moments, to find the one at which an answer just misses a tick
AIMS = (-1e-4, -5e-5, 0.0, 5e-5, 1e-4)  # seconds around that moment at which a client asks
FOREIGN = 200  # rows of the thief, which accuse it
ROWS = 32  # of large requests


@dataclass(frozen=True)
class Size:
    """How many answers of each kind are compared, and what luck alone does not exceed with so many.

    `pairs` of answers to one row and their limit, that for medians, and the same for large requests.
    """

    pairs: int
    limit: float
    limit_of_medians: float | None  # None: there are too few
    large_pairs: int
    large_limit: float


QUICK = Size(200, 0.60, None, 60, 0.70)
LONG = Size(3000, 0.53, 0.70, 300, 0.60)  # once in a hundred times luck exceeds 0.70 in 27 medians of each kind


class Asker:
    """A client with a connection of its own and the questions of one kind, all written down before it begins."""

    def __init__(self, server: Server, kind: str, count: int, rows: int) -> None:
        self._key = server.new_key(f"{kind} {next(NUMBERS)}")  # a client that nobody knows yet
        self._requests = [post(body, self._key, header) for body, header in _questions(kind, count, rows)]
        self._wire = socket.create_connection((HOST, server.rest), timeout=PATIENCE)
        self._wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, number: int) -> Told:
        """The answer to one of the questions."""
        return talk(self._wire, self._requests[number])

    def be_accused(self) -> None:
        """Ask what no benign client would."""
        body, header = _write(noise(FOREIGN))
        talk(self._wire, post(body, self._key, header))

    def close(self) -> None:
        """Hang up."""
        self._wire.close()


def _questions(kind: str, count: int, rows: int) -> list[tuple[bytes, str]]:
    """Bodies of one length, each with its header; whoever asks again takes the first question of all."""
    parts = natural(count * rows).split(rows)
    if kind == "again":
        parts = (parts[0],) * count
    if kind == "near":
        noises = torch.rand(count, *parts[0].shape, generator=torch.Generator().manual_seed(0))
        parts = tuple((parts[0] + STEP * change).clamp(0, 1) for change in noises)
    return [_write(part) for part in parts]


def _write(x: Tensor) -> tuple[bytes, str]:
    """A question as raw bytes: how long numbers are in JSON would depend on the picture."""
    body, length = ask_raw(x.numpy().astype("<f4").tobytes(), shape=list(x.shape))
    return body, f"Inference-Header-Content-Length: {length}"


@cache
def natural(count: int) -> Tensor:
    """Images (count, 1, 8, 8) for which no benign client would be accused, no two alike."""
    x, y = flat_digits()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return mixtures(images(x[REST]), y[REST], 10 * -(-count // 10))[:count]


def ask_in_turn(server: Server, count: int, *, rows: int = 1, pause: float = 0.0) -> dict[str, list[Told]]:
    """`count` answers of each kind, the kinds in random order; the first tenth only warms up and is left out.

    Questions are asked `pause` seconds after the last answer, which came at a tick: so a client may try at which moment
    it must ask for an answer that just misses the next one.
    """
    askers = {kind: Asker(server, kind, count, rows) for kind in KINDS}
    askers["accused"].be_accused()
    answers: dict[str, list[Told]] = {kind: [] for kind in KINDS}
    order = random.Random(0)
    for number in range(count):
        for kind in order.sample(KINDS, len(KINDS)):
            _spin(pause)
            answers[kind].append(askers[kind].ask(number))
    for asker in askers.values():
        asker.close()
    return {kind: each[count // 10 :] for kind, each in answers.items()}


def _spin(seconds: float) -> None:
    """Wait exactly so long; to sleep would be less exact."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def tell(honest: Sequence[float], other: Sequence[float]) -> float:
    """The chance to say from two times which of them is of which kind (the area under the curve, folded at 0.5)."""
    ranks = np.argsort(np.argsort(np.concatenate([honest, other])))
    above = (ranks[len(honest) :].sum() - len(other) * (len(other) - 1) / 2) / (len(honest) * len(other))
    return float(max(above, 1 - above))


def medians(seconds: Sequence[float]) -> list[float]:
    """What a patient client compares: the medians of `PATIENT` answers each."""
    whole = len(seconds) // PATIENT * PATIENT
    return list(np.median(np.reshape(seconds[:whole], (-1, PATIENT)), axis=1))


def distances(answers: Mapping[str, Sequence[Told]]) -> dict[str, dict[str, float]]:
    """How well each kind can be told from the honest, new one: by one answer, by medians, and by microseconds."""
    times = {kind: [answer.seconds for answer in each] for kind, each in answers.items()}
    new = times.pop("new")
    return {
        kind: {
            "tell": round(tell(new, each), 3),
            "tell_medians": round(tell(medians(new), medians(each)), 3) if len(each) >= PATIENT else 0.5,
            "more_us": round(1e6 * float(np.median(each) - np.median(new)), 1),
        }
        for kind, each in times.items()
    }


def alarms(server: Server) -> int:
    """How many clients stand accused."""
    text = ask(server.rest, get("/metrics", server.admin)).body.decode()
    lines = (line for line in text.splitlines() if line.startswith("queen_alarms_total"))
    return int(sum(float(line.rpartition(" ")[2]) for line in lines))


def clock_line(server: Server) -> dict[str, Any]:
    """What the server has said of its release clock at the start; empty if it has none."""
    return next((line for line in server.lines() if line["event"] == "release clock"), {})


def run(folder: Path, quick: bool) -> list[Check]:
    """The server as it is by default, with decoys for the accused: what time tells, and what hiding it costs."""
    size, file = QUICK if quick else LONG, folder / "ledger.sqlite"
    with started(folder, **DECOYS, ledger=f"sqlite:///{file}", release_every="auto") as server:
        said, answers = clock_line(server), ask_in_turn(server, size.pairs)
        checks = [*same_form(server, answers), *hidden(answers, size), _cost(said, answers)]
        checks += hidden_among_rows(server, size)
        return checks if quick else checks + hidden_from_aim(server, said, size)


def control(folder: Path, quick: bool) -> list[Check]:
    """The same without equal work and without a clock; in the long run also with a clock whose ticks alone count."""
    size = QUICK if quick else LONG
    with started(folder, **DECOYS, **BARE) as server:
        checks = hidden(ask_in_turn(server, size.pairs), size) + hidden_among_rows(server, size)
    if not quick:
        prompt = {"module": "qa.broken.prompt", "home": folder / "prompt", "release_every": 0.005}
        with started(folder, **DECOYS, **prompt) as server:
            checks += hidden_among_rows(server, size) + hidden_from_aim(server, clock_line(server), size)
    return checks


def same_form(server: Server, answers: Mapping[str, Sequence[Told]]) -> list[Check]:
    """All answers are honest or decoys, of one length, and only the thief stands accused."""
    lengths = {len(answer.body) for each in answers.values() for answer in each}
    wrong = [answer.status for each in answers.values() for answer in each if answer.status != 200]
    accused = alarms(server)
    return [
        none_of("questions without an answer", wrong, sum(map(len, answers.values()))),
        Check("all answers have one length", len(lengths) == 1, f"{sorted(lengths)} bytes"),
        Check("only the thief stands accused", accused == 1, str(accused)),
    ]


def hidden(answers: Mapping[str, Sequence[Told]], size: Size) -> list[Check]:
    """One answer tells no kind from another, nor does the median of a hundred."""
    measured = distances(answers)
    checks = [_at_most(size.limit, "one answer", {kind: each["tell"] for kind, each in measured.items()})]
    if size.limit_of_medians is not None:
        of_medians = {kind: each["tell_medians"] for kind, each in measured.items()}
        checks.append(_at_most(size.limit_of_medians, f"medians of {PATIENT} answers", of_medians))
    return checks


def hidden_among_rows(server: Server, size: Size) -> list[Check]:
    """The same for requests of many rows, which take longer the more the guard does for each."""
    measured = distances(ask_in_turn(server, size.large_pairs, rows=ROWS))
    singles = {kind: each["tell"] for kind, each in measured.items()}
    return [_at_most(size.large_limit, f"one answer to {ROWS} rows", singles)]


def hidden_from_aim(server: Server, said: Mapping[str, Any], size: Size) -> list[Check]:
    """The same for clients who ask when an answer just makes a tick or just misses it: the best moment counts."""
    edge, largest = find_edge(server, said["period_ms"] / 1000), dict[str, float]()
    for aim in AIMS:
        for kind, each in distances(ask_in_turn(server, size.large_pairs, pause=max(0.0, edge + aim))).items():
            largest[kind] = max(largest.get(kind, 0.5), each["tell"])
    return [_at_most(size.large_limit, f"one answer, asked {1000 * edge:.2f} ms after a tick", largest)]


def find_edge(server: Server, period: float) -> float:
    """How long after a tick a new question must be asked to miss, every other time, the tick for which it was early."""
    asker = Asker(server, "new", 9 * TRIES, 1)
    questions = iter(range(9 * TRIES))

    def ticks_until_answer(pause: float) -> float:
        seconds = []
        for _ in range(TRIES):
            _spin(pause)
            seconds.append(pause + asker.ask(next(questions)).seconds)
        return float(np.median(seconds)) / period

    early, late, at_once = 0.0, period, ticks_until_answer(0.0)
    for _ in range(8):
        middle = (early + late) / 2
        is_missed = ticks_until_answer(middle) > at_once + 0.5
        early, late = (early, middle) if is_missed else (middle, late)
    asker.close()
    return (early + late) / 2


def _at_most(limit: float, what: str, values: Mapping[str, float]) -> Check:
    summary = ", ".join(f"{kind} {value:.3f}" for kind, value in values.items())
    return Check(f"what time tells, {what}: at most {limit}", max(values.values()) <= limit, summary)


def _cost(said: Mapping[str, Any], answers: Mapping[str, Sequence[Told]]) -> Check:
    median = 1000 * float(np.median([answer.seconds for answer in answers["new"]]))
    summary = f"{said.get('p50_cost_ms')} ms as printed at the start; an answer takes {median:.2f} ms in the median"
    return Check("the cost of the clock is printed", "p50_cost_ms" in said, summary)
