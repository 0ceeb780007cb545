"""Goal 25: a retrained bundle takes over from the old one under load, and is rolled back."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from qa.serving.rest import HOST, SILENCE, ask, get, post
from qa.serving.scenario import Check, none_of
from qa.serving.state import body_of
from queen import load
from queen.bundle.binding import rebind
from queen.ledger import Budget, open_ledger
from queen.ledger.redis.admin import STOP_SECONDS
from tests.support import redis_server
from tests.support.evidence import evidence_of
from tests.support.server import Server, run_queen, started
from tests.support.serving import digits, inference_body, noise, recalibrated_bundle, retrained_bundle, small_bundle

GIVE_UP = 120.0  # seconds after which a client that is told to come again, or finds nobody, gives up: a dropped request
AGAIN = 0.2  # seconds until a client tries again that found nobody
CLIENTS = 4
ON_MAP = 1e-3  # a record nearer to a point of a map than this is of that map; different points are much farther apart
PICTURES = len(digits())
GIVEN = Budget(extra_answers=12_345)


@dataclass
class PatientClients:
    """Clients that ask without end, at any of the ports in turn, and try again when they are told to or find nobody."""

    key: str
    ports: Sequence[int]
    answered: int = 0
    waits: list[float] = field(default_factory=list)  # seconds of the requests that had to be sent again
    dropped: list[str] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Ask while the block runs, and then until every request has come to its end."""
        self._threads = [threading.Thread(target=self._ask_on, args=(number,)) for number in range(CLIENTS)]
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in self._threads:
                thread.join()

    def reach(self, more: int) -> None:
        """Wait until so many more requests have been answered."""
        goal, deadline = self.answered + more, time.monotonic() + GIVE_UP
        while self.answered < goal and time.monotonic() < deadline and not self.dropped:
            time.sleep(0.01)

    def _ask_on(self, number: int) -> None:
        for turn in count(number, CLIENTS):
            if self._ended.is_set():
                return
            self._ask(turn)

    def _ask(self, turn: int) -> None:
        begin = time.monotonic()
        for attempt in count():
            status, pause = self._try(self.ports[(turn + attempt) % len(self.ports)], turn % PICTURES)
            waited = time.monotonic() - begin
            if status == 200 or pause is None or waited > GIVE_UP:
                break
            time.sleep(pause)
        with self._lock:
            self.answered += status == 200
            if status != 200:
                self.dropped.append(f"status {status} after {waited:.1f} s")
            elif attempt:
                self.waits.append(waited)

    def _try(self, port: int, picture: int) -> tuple[int, float | None]:
        """A status, and after how many seconds to try again; None where there is no reason to."""
        try:
            reply = ask(port, post(body_of(picture), self.key))
        except OSError:  # nobody listens
            return SILENCE, AGAIN
        if reply.status == SILENCE and not reply.body:
            return SILENCE, AGAIN
        after = reply.headers.get("retry-after") if reply.status == 503 else None
        return reply.status, None if after is None else float(after)

    def check(self, name: str) -> Check:
        """Whether nobody was dropped."""
        checked = none_of(f"{name}: dropped requests", self.dropped, self.answered + len(self.dropped))
        longest = max(self.waits, default=0.0)
        return Check(
            checked.name, checked.holds, f"{checked.found}; {len(self.waits)} came again, {longest:.1f} s at most"
        )


def run(folder: Path, quick: bool) -> list[Check]:
    """With a file, where one server follows the other; and with Redis, where replicas are replaced one by one."""
    checks = list[Check]()
    for number in range(1 if quick else 3):
        checks += updated_file(folder / f"file-{number}", by_command=not quick)
    if not quick and shutil.which("redis-server"):
        redis = redis_server.redis_server(folder / "redis")
        try:
            checks += updated_replicas(folder / "replicas", redis.url)
        finally:
            redis.kill()
    return checks


def control(folder: Path, quick: bool) -> list[Check]:
    """The retrained bundle on a server that does not ask whose the ledger is."""
    url, port = f"sqlite:///{folder / 'ledger.sqlite'}", free_port()
    with started(folder, bundle=small_bundle(), ledger=url, port=port) as old:
        prepare(old, url)
        old.stop()
    checks = [refused(folder, url, port=port, module="qa.broken.unbound")]
    return [*checks, only_of("on the new server", url, retrained_bundle())]


def updated_file(folder: Path, *, by_command: bool) -> list[Check]:
    """Old server, retrained one, old one again: stop, rebind, start, on one port and under load."""
    folder.mkdir()
    url, port = f"sqlite:///{folder / 'ledger.sqlite'}", free_port()
    with ExitStack() as stack:
        server = stack.enter_context(started(folder, bundle=small_bundle(), ledger=url, port=port))
        prepare(server, url)
        clients = PatientClients(server.key, [server.rest])
        checks = list[Check]()
        with clients.asking():
            clients.reach(50)
            checks.append(refused(folder, url))  # while the old one answers
            for name, bundle in (("update", retrained_bundle()), ("roll-back", small_bundle())):
                server.stop()
                checks.append(taken_over(f"file, {name}", url, bundle, by_command=by_command))
                server = stack.enter_context(started(folder, bundle=bundle, ledger=url, port=port))
                clients.reach(50)
                checks += [only_of(f"file, {name}", url, bundle), *nothing_lost(f"file, {name}", url)]
        server.stop()
    return [*checks, clients.check("file, update and roll-back")]


def updated_replicas(folder: Path, url: str) -> list[Check]:
    """Two replicas on Redis: recalibrated one by one beside each other, then retrained."""
    folder.mkdir()
    ports = [free_port(), free_port()]
    with ExitStack() as stack:

        def start(port: int, bundle: Path) -> Server:
            return stack.enter_context(started(folder, bundle=bundle, ledger=url, port=port))

        servers = [start(port, small_bundle()) for port in ports]
        prepare(servers[0], url)
        clients = PatientClients(servers[0].key, ports)
        with clients.asking():
            clients.reach(100)
            before = covered(url)
            for i, port in enumerate(ports):  # meanwhile old and new calibration answer side by side
                servers[i].stop()
                servers[i] = start(port, recalibrated_bundle())
                clients.reach(100)
            checks = [
                Check("redis, recalibrated: coverage stays", covered(url) >= before > 0, f"{before} to {covered(url)}"),
                only_of("redis, recalibrated", url, small_bundle()),
                *nothing_lost("redis, recalibrated", url, small_bundle(), recalibrated_bundle()),
                taken_over("redis, retrained", url, retrained_bundle(), by_command=True),
            ]
            red = [ask(port, get("/v2/health/ready")).status for port in ports]
            checks.append(
                Check(
                    f"redis: old servers are red {STOP_SECONDS:g} s after the take-over began", 200 not in red, str(red)
                )
            )
            for i, port in enumerate(ports):
                servers[i].stop()
                servers[i] = start(port, retrained_bundle())
                clients.reach(100)
            checks.append(only_of("redis, retrained", url, retrained_bundle()))
            checks += nothing_lost("redis, retrained", url, small_bundle(), recalibrated_bundle(), retrained_bundle())
    return [*checks, clients.check("redis, replicas replaced one by one")]


def prepare(server: Server, url: str) -> None:
    """A thief that is accused, a client with a budget of its own, and alice with coverage and evidence."""
    thief = server.new_key("thief")
    for first in range(0, 100, 20):
        ask(server.rest, post(inference_body(noise(100)[first : first + 20]), thief))
    with closing(open_ledger(url)) as ledger:
        ledger.set_budget("bob", GIVEN, "olga")
    ask(server.rest, post(inference_body(digits()[:100]), server.key))


def refused(folder: Path, url: str, **settings: Any) -> Check:
    """Whether the retrained bundle is refused on the old one's ledger, by name and with the ways out."""
    try:
        with started(folder, bundle=retrained_bundle(), ledger=url, **settings) as server:
            ask(server.rest, post(inference_body(digits()[:50]), server.key))
            server.stop()
            message = "it started"
    except AssertionError as error:
        message = " ".join(str(error).split())[-600:]
    named = all(part in message for part in ("expected bundle", "got bundle", "queen ledger rebind"))
    return Check("the retrained bundle is refused on the old ledger", named, message)


def taken_over(name: str, url: str, bundle: Path, *, by_command: bool) -> Check:
    """`queen ledger rebind`, or what it does, without the seconds that a command takes to begin."""
    begin = time.monotonic()
    if by_command:
        done = run_queen("ledger", "rebind", str(bundle), "--ledger", url, "--actor", "olga")
        worked, said = done.returncode == 0, " ".join((done.stdout + done.stderr).split())
    else:
        with closing(open_ledger(url)) as ledger:
            result = rebind(ledger, load(bundle).binding, "olga")
        worked, said = result.changed, f"for {result.accepted[0]}"
    return Check(f"{name}: the ledger is taken over", worked, f"{time.monotonic() - begin:.1f} s: {said}")


def only_of(name: str, url: str, bundle: Path) -> Check:
    """Whether every record of alice is a point on the maps of this bundle."""
    measured = load(bundle).measure(digits())
    with closing(open_ledger(url)) as ledger:
        records = ledger.records("alice")
    wrong = [
        f"class {label}: {point}"
        for label, points in records.items()
        for point in points.tolist()
        if not (np.abs(measured.points[measured.labels == label] - point).max(axis=1, initial=0) < ON_MAP).any()
    ]
    checked = none_of(f"{name}: records of another map", wrong, sum(map(len, records.values())))
    return Check(checked.name, checked.holds and bool(records), checked.found)


def nothing_lost(name: str, url: str, *bundles: Path) -> list[Check]:
    """The alarm, the budget, and evidence in the tests of these bundles (by default the old and the retrained one).

    Of more than two tests a ledger keeps two: a new one takes the place of the poorer. So the last one is there.
    """
    tests = [load(bundle).bundle.test.id for bundle in bundles or (small_bundle(), retrained_bundle())]
    with closing(open_ledger(url)) as ledger:
        alarmed, budget = ledger.standing("thief").alarmed, ledger.standing("bob").budget
        evidence = set(evidence_of(ledger, "alice"))
    both = len(evidence) == 2 and evidence <= set(tests) and (len(tests) == 2 or tests[-1] in evidence)
    return [
        Check(f"{name}: the thief is still accused", alarmed),
        Check(f"{name}: the budget is still there", budget == GIVEN, str(budget)),
        Check(f"{name}: evidence of two versions", both, f"in {len(evidence)} of {len(tests)} tests"),
    ]


def covered(url: str) -> float:
    """Coverage of alice over all classes."""
    with closing(open_ledger(url)) as ledger:
        return sum(ledger.coverage("alice").values())


def free_port() -> int:
    """One that nobody uses now."""
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return int(sock.getsockname()[1])
