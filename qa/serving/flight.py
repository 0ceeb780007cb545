"""Goal 22: bytes in flight and connections are bounded, and others are answered meanwhile."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from qa.serving.h2 import call_fields, exchange, opened, packed, sent, start
from qa.serving.memory import MIB, resident, watched
from qa.serving.rest import ask, get, post
from qa.serving.scenario import Check, none_of
from qa.serving.state import body_of
from qa.serving.withheld import FORMS, half_sent, withholding
from tests.support.server import Server, started

OTHER = "127.0.0.2"  # where those come from who do nothing wrong
LIVE, READY = "/v2/health/live", "/v2/health/ready"
QUESTIONS = 10
FEW_FILES = 200  # beyond those that the server has open already


def run(folder: Path, quick: bool) -> list[Check]:
    """Large requests without their last byte, then half-sent heads, then the same with few files."""
    return _checked(folder, quick, "queen")


def control(folder: Path, quick: bool) -> list[Check]:
    """The same on a server that takes what comes."""
    return _checked(folder, quick, "qa.broken.boundless")


def _checked(folder: Path, quick: bool, module: str) -> list[Check]:
    count, size = (40, 4 * MIB) if quick else (100, 16 * MIB)
    limits = {"max_body": size, "request_timeout": 30.0}
    if quick:
        limits |= {"max_bytes": 16 * size}
    checks = []
    with started(folder, module=module, **limits) as server:
        checks += in_flight(server, count, size, 16 * size if quick else 24 * size)
    heads, places = (600, {"max_connections": 400}) if quick else (4200, {})
    with started(folder, module=module, request_timeout=30.0, **places) as server:
        checks += besieged(server, heads)
    with started(folder, module=module, request_timeout=30.0) as server:
        return [*checks, *short_of_files(server)]


def in_flight(server: Server, count: int, size: int, bound: int) -> list[Check]:
    """Every form of large request, one after the other, on one server: what stays behind counts too."""
    bob, checks = server.new_key("bob"), []
    polite(server, bob)
    idle = resident(server.process.pid)
    for form in FORMS:
        port = server.grpc if form == "gRPC" else server.rest
        with watched(server.process.pid) as most, withholding(form, port, server.key, count, size) as senders:
            answers = polite(server, bob)
        taken, grown = sum(sender.sent for sender in senders) / MIB, (most[0] - idle) / MIB
        told = Counter(sender.reply[9:].decode() or "nothing" for sender in senders)
        summary = f"{grown:.0f} MiB above idle, bound {bound / MIB:.0f}; {taken:.0f} MiB sent, answers {dict(told)}"
        checks.append(Check(f"memory, {count} x {size // MIB} MiB over {form}", grown <= bound / MIB, summary))
        checks.append(none_of(f"others not answered meanwhile, {form}", _wrong(answers), len(answers)))
    return [*checks, logged(server, "requests refused")]


def besieged(server: Server, count: int) -> list[Check]:
    """Half-sent heads from one address."""
    bob = server.new_key("bob")
    polite(server, bob)
    with half_sent(server.rest, count):
        answers = polite(server, bob)
        same = ask(server.rest, get(LIVE)).status
    checks = [
        none_of(f"others not answered beside {count} half-sent heads", _wrong(answers), len(answers)),
        Check("health from the same address", same == 200, str(same)),
        logged(server, "connections refused"),
    ]
    with half_sent(server.grpc, min(count, 500)):
        answers = polite(server, bob)
    return [*checks, none_of("others not answered beside half-sent greetings over gRPC", _wrong(answers), len(answers))]


def short_of_files(server: Server) -> list[Check]:
    """The same where files run out before places do."""
    bob, files = server.new_key("bob"), len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (files + FEW_FILES, files + FEW_FILES))
    with half_sent(server.rest, 2 * FEW_FILES):
        time.sleep(0.5)
    said = logged(server, "connections refused", "no files left")
    answers = polite(server, bob)
    return [said, none_of("others not answered once files are there again", _wrong(answers), len(answers))]


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
    lines = [line for line in server.lines() if line["event"] == event and reason in str(line["reasons"])]
    seconds = len({line["time"][:19] for line in lines})
    refused = sum(line["count"] for line in lines)
    named = f"{event}{', ' if reason else ''}{reason}: in the log"
    return Check(named, 0 < len(lines) <= 2 * seconds, f"{refused} in {len(lines)} lines")
