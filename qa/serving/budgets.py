"""Goal 31: a budget that comes to its end is no surprise to anybody, and nobody pays for what it does not get."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor

from qa.serving.rest import Told, ask, get, post
from qa.serving.scenario import Check, none_of
from tests.support.redis_server import redis_server
from tests.support.server import Server, started
from tests.support.serving import digits, inference_body, noise

PATIENCE = 20.0  # seconds in which a notice must have arrived
WIDE_DISCS = {"radius": 0.5, "threshold": 100.0}  # nearly every digit lies near an earlier one: an extra answer each
BEYOND = 6  # rows that are asked after the last extra answer


class Receiver:
    """A service that takes posts; unless it is `ready` it says 503. Remembers the notices that it has accepted."""

    def __init__(self) -> None:
        self.ready, self.accepted, self.asked = True, list[dict[str, Any]](), 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.asked += 1
                if receiver.ready:
                    receiver.accepted.append(body)
                self.send_response(204 if receiver.ready else 503)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/notices"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def wait(self, count: int, patience: float = PATIENCE) -> list[tuple[int, str, str]]:
        """Number, kind and client of every notice, once there are so many or the time is up."""
        end = time.monotonic() + patience
        while len(self.accepted) < count and time.monotonic() < end:
            time.sleep(0.02)
        return [(body["id"], body["event"], body["name"]) for body in self.accepted]

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver for a while."""
    receiver = Receiver()
    try:
        yield receiver
    finally:
        receiver.close()


def run(folder: Path, quick: bool) -> list[Check]:
    """All of it on every ledger; what survives a kill on those that do. When quick, without the ledger in memory."""
    extra, kills = (20, 1) if quick else (200, 20)
    checks = [] if quick else comes_to_its_end(_make(folder / "memory"), "memory://", extra)
    file = f"sqlite:///{_make(folder / 'sqlite') / 'ledger.sqlite'}"
    checks += comes_to_its_end(folder / "sqlite", file, extra) + survives(folder / "sqlite", file, kills)
    if not shutil.which("redis-server"):
        return [*checks, Check("redis-server is not installed: nothing was tested with it", holds=True)]
    redis = redis_server(_make(folder / "redis") / "data")
    try:
        checks += comes_to_its_end(folder / "redis", redis.url, extra)
        checks += [] if quick else survives(folder / "redis", redis.url, kills)
    finally:
        redis.kill()
    return checks


def control(folder: Path, quick: bool) -> list[Check]:
    """The same on a server that neither notes nor remembers."""
    file = f"sqlite:///{folder / 'ledger.sqlite'}"
    checks = comes_to_its_end(folder, file, 20, module="qa.broken.forgetful", patience=2.0)
    return checks + survives(folder, file, 1, module="qa.broken.forgetful", patience=2.0)


def comes_to_its_end(
    folder: Path, ledger: str, extra: int, module: str = "queen", patience: float = PATIENCE
) -> list[Check]:
    """A busy honest client uses up its extra answers."""
    limits = {**WIDE_DISCS, "extra_answers": extra}
    with receiving() as hook, started(folder, ledger=ledger, module=module, webhook=hook.url, **limits) as server:
        key = server.new_key("busy")
        answered, refused = exhaust(server, key, extra)
        standing = client_facts(server, "busy")
        expected = [("budget low", "busy"), ("budget spent", "busy")]
        posted = hook.wait(2, patience)
        listed = [
            (e["id"], e["what"], e["name"]) for e in reversed(server.get("/admin/events", server.admin)[2]["events"])
        ]
        where = ledger.partition(":")[0]
        return [
            Check(f"{where}: it was answered and then refused", bool(answered and refused), f"{len(answered)} answers"),
            Check(f"{where}: extra answers used", standing["extra_answers"] == extra, f"{standing['extra_answers']}"),
            Check(f"{where}: two notices in the ledger", [e[1:] for e in listed] == expected, f"{listed}"),
            Check(
                f"{where}: and at the webhook, with the same numbers", posted == listed and bool(posted), f"{posted}"
            ),
            Check(f"{where}: counted", counted(server) == {"budget low": 1, "budget spent": 1}, f"{counted(server)}"),
            Check(f"{where}: a state", standing["budget_state"] == ["budget spent"], f"{standing['budget_state']}"),
            *check_refusals(where, refused, extra),
            *costs_nothing(server, where, key, answered, [row for row, _ in refused]),
        ]


def exhaust(server: Server, key: str, extra: int) -> tuple[list[int], list[tuple[int, Told]]]:
    """Ask one row after the other: numbers of the rows answered, and those refused with what was said."""
    answered, refused = list[int](), list[tuple[int, Told]]()
    for row in range(len(stream())):
        reply = query(server, key, [row])
        if reply.status == 200:
            answered.append(row)
        else:
            refused.append((row, reply))
        if len(refused) == BEYOND:
            break
    return answered, refused


def stream() -> Tensor:
    """Held-out digits; the later ones are the same, a hair brighter, and so other inputs."""
    return (digits()[:, None] * Tensor([1.0, 0.999, 0.998]).reshape(1, 3, 1, 1, 1)).transpose(0, 1).flatten(0, 1)


def query(server: Server, key: str, rows: Sequence[int], **parameters: bool) -> Told:
    """Ask for these rows of the stream."""
    body = json.loads(inference_body(stream()[list(rows)])) | ({"parameters": parameters} if parameters else {})
    return ask(server.rest, post(json.dumps(body).encode(), key))


def check_refusals(where: str, refused: Sequence[tuple[int, Told]], extra: int) -> list[Check]:
    """What a refused client hears."""
    says = f"{extra:,} of {extra:,} extra answers are used"
    wrong = [reply.body for _, reply in refused if reply.status != 429 or says not in reply.json["error"]]
    late = [reply.headers for _, reply in refused if "retry-after" in reply.headers]
    unmarked = [reply.body for _, reply in refused if reply.json.get("rows") != [0]]
    return [
        none_of(f"{where}: refusals that do not name the budget", wrong, len(refused)),
        none_of(f"{where}: refusals with Retry-After, though nothing renews", late, len(refused)),
        none_of(f"{where}: refusals that do not list the refused row", unmarked, len(refused)),
    ]


def costs_nothing(server: Server, where: str, key: str, answered: list[int], refused: list[int]) -> list[Check]:
    """A mixed batch refused whole, in part, and its rest sent again: only `queries` changes."""
    mixed, before = [*answered[:5], *refused, *answered[5:9]], client_facts(server, "busy")
    places = [place for place, row in enumerate(mixed) if row in refused]
    whole, part = query(server, key, mixed), query(server, key, mixed, partial=True)
    rest = query(server, key, [row for row in mixed if row not in refused])
    after = client_facts(server, "busy")
    changed = [name for name in before if before[name] != after[name] and name != "queries"]
    outputs = {output["name"]: output for output in part.json.get("outputs", [])} if part.status == 200 else {}
    marked = [place for place, flag in enumerate(outputs["refused"]["data"]) if flag] if outputs else []
    numbers = outputs["probabilities"]["data"] if outputs else []
    width = len(numbers) // len(mixed)
    lines = [numbers[width * place : width * (place + 1)] for place in range(len(mixed))]
    others = [line for place, line in enumerate(lines) if place not in places]
    again = rest.json["outputs"][0]["data"] if rest.status == 200 else []
    return [
        Check(f"{where}: a batch with refused rows is 429 and lists them", whole.json.get("rows") == places),
        Check(f"{where}: in part, exactly those rows are marked", marked == places, f"{len(marked)} of {len(mixed)}"),
        Check(f"{where}: and hold zeros", all(not any(lines[place]) for place in places) and bool(lines)),
        Check(f"{where}: the others are answered as they are alone", bool(others) and list(chain(*others)) == again),
        none_of(f"{where}: what all that cost", changed, len(before)),
    ]


def survives(folder: Path, ledger: str, kills: int, module: str = "queen", patience: float = PATIENCE) -> list[Check]:
    """Alarms whose delivery fails, each followed by kill -9; then a start at which the receiver is there again."""
    with receiving() as hook:
        options = {"ledger": ledger, "home": folder / "killed", "module": module, "webhook": hook.url, **WIDE_DISCS}
        hook.ready = False
        for number in range(kills):
            with started(folder, **options) as server:
                asked = hook.asked
                query_noise(server, server.new_key(f"thief {number}"))
                end = time.monotonic() + PATIENCE
                while hook.asked == asked and time.monotonic() < end:
                    time.sleep(0.01)
                server.stop(signal.SIGKILL)
        hook.ready = True
        with started(folder, **options) as server:
            posted = {e for e in hook.wait(kills, patience) if e[1] == "alarm"}
            events = server.get("/admin/events", server.admin)[2]["events"]
            alarms = {(e["id"], e["what"], e["name"]) for e in events if e["what"] == "alarm"}
    where = ledger.partition(":")[0]
    return [
        Check(f"{where}: alarms on record after {kills} kills", len(alarms) == kills, f"{len(alarms)}"),
        none_of(f"{where}: alarms that were never delivered", sorted(alarms - posted), len(alarms)),
    ]


def query_noise(server: Server, key: str) -> None:
    """What a thief without data sends, until it stands accused."""
    for start in range(0, 150, 30):
        ask(server.rest, post(inference_body(noise()[start : start + 30]), key))


def client_facts(server: Server, name: str) -> dict[str, Any]:
    """How a client stands, without what happened to it."""
    facts: dict[str, Any] = ask(server.rest, get(f"/admin/client?name={name}", server.admin)).json
    return {key: value for key, value in facts.items() if key not in ("events", "keys")}


def counted(server: Server) -> dict[str, int]:
    """How many budgets of clients the server counts as low or spent, by kind."""
    text = ask(server.rest, get("/metrics", server.admin)).body.decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("queen_budgets_total")]
    kinds = ("budget low", "budget spent", "class low", "class spent")
    counts = {kind: sum(int(float(n)) for name, _, n in lines if f'what="{kind}"' in name) for kind in kinds}
    return {kind: count for kind, count in counts.items() if count}


def _make(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
