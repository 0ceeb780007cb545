"""Goal 22: bytes in flight and connections are bounded, and others are answered meanwhile."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from qa.serving.h2 import call_fields, exchange, opened, packed, sent, start
from qa.serving.memory import MIB, resident, watched
from qa.serving.rest import ask, get, post
from qa.serving.scenario import Check, none_of
from qa.serving.slow import open_files
from qa.serving.state import body_of
from qa.serving.withheld import FORMS, HALF_A_HEAD, half_sent, withholding
from tests.support.server import Server, started

OTHER = "127.0.0.2"  # where those come from who do nothing wrong
LIVE, READY = "/v2/health/live", "/v2/health/ready"
QUESTIONS = 5
KEYS = 8
FEW_FILES = 90  # beyond those that the server has open already


def run(folder: Path, quick: bool) -> list[Check]:
    """Large requests without their last byte, then half-sent heads, then the same with few files, on one server."""
    return _checked(folder, quick, "queen", tuple(FORMS))


def control(folder: Path, quick: bool) -> list[Check]:
    """The same on a server that takes what comes, and on one that reserves what heads announce for whoever is first."""
    boundless = _checked(folder, quick, "qa.broken.boundless", ("REST", "gRPC"))
    count, size, limits = _sizes(quick)
    with started(folder / "reserving", module="qa.broken.reserving", **limits) as server:
        return [*boundless, *crowded_out(server, server.new_key("bob"), (count, size))]


def _checked(folder: Path, quick: bool, module: str, forms: Sequence[str]) -> list[Check]:
    count, size, limits = _sizes(quick)
    heads = 600 if quick else 4200
    bound = int(limits.get("max_bytes", 24 * size))
    with started(folder, module=module, **limits) as server:
        bob = server.new_key("bob")
        polite(server, bob)
        return [
            *in_flight(server, bob, forms, (count, size), bound),
            *(crowded_out(server, bob, (count, size)) if module == "queen" else ()),
            *besieged(server, bob, heads),
            *(short_of_files(server, bob) if module == "queen" else ()),
        ]


def _sizes(quick: bool) -> tuple[int, int, dict[str, float]]:
    """Connections, bytes of each one's request, and the server's limits."""
    count, size = (40, 4 * MIB) if quick else (100, 16 * MIB)
    limits: dict[str, float] = {"max_bytes": 16 * size, "max_connections": 400} if quick else {}
    return count, size, {"max_body": size, "request_timeout": 30.0, **limits}


def in_flight(server: Server, bob: str, forms: Sequence[str], flood: tuple[int, int], bound: int) -> list[Check]:
    """Every form of large request, one after the other, on one server: what stays behind counts too."""
    (count, size), checks = flood, []
    idle, files = resident(server.process.pid), open_files(server)
    for form in forms:
        port = server.grpc if form == "gRPC" else server.rest
        with watched(server.process.pid) as most, withholding(form, port, [server.key], count, size) as senders:
            answers = polite(server, bob)
        wait_for_files(server, files)
        taken, grown = sum(sender.sent for sender in senders) / MIB, (most[0] - idle) / MIB
        statuses = Counter(sender.reply[9:].decode() if sender.reply[:4] == b"HTTP" else "none" for sender in senders)
        summary = f"{grown:.0f} MiB above idle, bound {bound / MIB:.0f}; {taken:.0f} MiB sent, answers {dict(statuses)}"
        checks.append(Check(f"memory, {count} x {size // MIB} MiB over {form}", grown <= bound / MIB, summary))
        checks.append(none_of(f"others not answered meanwhile, {form}", _wrong(answers), 4 * QUESTIONS))
    return [*checks, together(server, (count, size), idle, bound), logged(server, "requests refused")]


def together(server: Server, flood: tuple[int, int], idle: int, bound: int) -> Check:
    """The same by many keys at once, over REST and gRPC: they have their shares, and all together no more than all."""
    keys, files = [server.new_key(f"thief-{i}") for i in range(KEYS)], open_files(server)
    with (
        watched(server.process.pid) as most,
        withholding("REST", server.rest, keys, *flood),
        withholding("gRPC", server.grpc, keys, *flood),
    ):
        status = ask(server.rest, get(LIVE), source=OTHER).status
    wait_for_files(server, files)
    grown = (most[0] - idle) / MIB
    summary = f"{grown:.0f} MiB above idle, bound {bound / MIB:.0f}; health {status}"
    return Check(f"memory, by {KEYS} keys together", grown <= bound / MIB and status == 200, summary)


def crowded_out(server: Server, bob: str, flood: tuple[int, int]) -> list[Check]:
    """Three keys, whose shares are more than all there is: heads alone, and bodies without their last byte."""
    keys, files, checks = [server.new_key(f"crowd-{i}") for i in range(3)], open_files(server), []
    for form, port in (("heads alone", server.rest), ("REST", server.rest), ("gRPC", server.grpc)):
        with withholding(form, port, keys, *flood):
            answers = polite(server, bob)
        wait_for_files(server, files)
        checks.append(none_of(f"others not answered beside three keys, {form}", _wrong(answers), 4 * QUESTIONS))
    return checks


def besieged(server: Server, bob: str, count: int) -> list[Check]:
    """Half-sent heads from one address, then connections over gRPC that say nothing."""
    files, wrong, said = open_files(server), [], []
    for port, text in ((server.rest, HALF_A_HEAD), (server.grpc, start())):
        event = f"{'gRPC ' if port == server.grpc else ''}connections refused"
        with half_sent(port, count, text):
            time.sleep(2.5 if port == server.grpc else 0)  # gRPC's are counted once per second
            wrong.append(_wrong(polite(server, bob)))
            same = ask(server.rest, get(LIVE)).status
            said += [logged(server, event), Check("health from the same address", same == 200, str(same))]
        wait_for_files(server, files)
    return [
        none_of(f"others not answered beside {count} half-sent heads", wrong[0], 4 * QUESTIONS),
        none_of(f"others not answered beside {count} silent connections over gRPC", wrong[1], 4 * QUESTIONS),
        *said,
    ]


def short_of_files(server: Server, bob: str) -> list[Check]:
    """The same where files run out before places do."""
    files = open_files(server)
    limit = files + FEW_FILES
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (limit, limit))
    with half_sent(server.rest, 2 * FEW_FILES):
        said = logged(server, "connections refused", "no files left")
    wait_for_files(server, files)
    answers = polite(server, bob)
    return [said, none_of("others not answered once files are there again", _wrong(answers), 4 * QUESTIONS)]


def wait_for_files(server: Server, count: int) -> None:
    """Wait until the server has noticed that connections are closed."""
    end = time.monotonic() + 30
    while open_files(server) > count + 10 and time.monotonic() < end:
        time.sleep(0.05)


def polite(server: Server, key: str) -> Mapping[str, list[int]]:
    """Statuses of a client at another address that asks for health and for answers, each on a new connection."""
    infer = [ask(server.rest, post(body_of(i), key), source=OTHER).status for i in range(QUESTIONS)]
    health = [ask(server.rest, get(path), source=OTHER).status for path in (LIVE, READY) for _ in range(QUESTIONS)]
    calls = [_live_over_grpc(server, key) for _ in range(QUESTIONS)]
    return {"infer": infer, "health": health, "gRPC health": calls}


def _live_over_grpc(server: Server, key: str) -> int:
    text = start() + opened(call_fields(key, "ServerLive")) + sent(packed(b""))
    heard = exchange(server.grpc, text, patience=30, source=OTHER)
    return 200 if heard.replies.get(1) == packed(b"\x08\x01") else 0


def _wrong(answers: Mapping[str, list[int]]) -> list[str]:
    return [f"{name}: {status}" for name, statuses in answers.items() for status in statuses if status != 200]


def logged(server: Server, event: str, reason: str = "") -> Check:
    """Whether refusals are in the log, and no more than a line for each second."""
    time.sleep(1.5)  # those of the last second are written together
    lines = [line for line in server.lines() if line["event"] == event and reason in str(line["reasons"])]
    seconds = len({line["time"][:19] for line in lines})
    refused = sum(line["count"] for line in lines)
    named = f"{event}{', ' if reason else ''}{reason}: in the log"
    return Check(named, 0 < len(lines) <= 2 * seconds, f"{refused} in {len(lines)} lines")
