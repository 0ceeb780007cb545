"""Goal 7: whatever is sent, the server answers 4xx at once, and neither the ledger nor anybody's answer changes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc

from qa.serving import fuzz
from qa.serving.cases_grpc import WireCase, messages, wire_cases
from qa.serving.cases_rest import Case, rest_cases
from qa.serving.h2 import PATH, exchange
from qa.serving.rest import HANG, HOST, SILENCE, ask
from qa.serving.scenario import Check, none_of
from qa.serving.state import State, failures_of, golden, queries_of, state_of
from queen.serve.access.key_store import open_keys
from tests.support.redis_server import redis_server
from tests.support.server import Server, started

MAX_BODY = 1 << 20
LIMITS = {"max_body": MAX_BODY, "max_rows": 4, "request_timeout": 2.0, "keep_alive": 2.0}
SETTINGS: dict[str, Any] = {**LIMITS, "on_alarm": "decoy", "after_alarm": -1}  # fuzz gets its sender accused
AT_ONCE = 16  # connections; some cases must wait for a deadline
PATIENCE = 60.0
CODE = grpc.StatusCode
REFUSALS = {
    CODE.INVALID_ARGUMENT, CODE.RESOURCE_EXHAUSTED, CODE.UNAUTHENTICATED, CODE.NOT_FOUND, CODE.UNIMPLEMENTED,
    CODE.PERMISSION_DENIED, CODE.DEADLINE_EXCEEDED,
}  # fmt: skip
One = TypeVar("One")


@dataclass(frozen=True)
class Stage:
    """A server to be hostile to, the ledger's files, and keys of the attacker and of somebody else."""

    server: Server
    ledger: tuple[Path, ...]
    attacker: str
    bystander: str
    redis: str = ""  # the ledger's address, if it is there

    def state(self) -> State:
        """What may not change."""
        return state_of(self.server, *self.ledger, redis=self.redis)


def staged(server: Server, ledger_url: str, *files: Path) -> Stage:
    """Keys for a running server."""
    keys = open_keys(server.home, ledger_url)
    attacker, bystander = keys.add("attacker")[0], keys.add("bystander")[0]
    keys.close()
    return Stage(server, files, attacker, bystander, ledger_url if ledger_url.startswith("redis") else "")


def named(stage: Stage, *, only: str = "") -> list[Check]:
    """Every named case once, or those over REST whose names begin so; nothing may change."""
    server = stage.server
    first = golden(server, stage.bystander)
    golden(server, stage.attacker)  # so that the attacker has a standing that could change
    before = stage.state()
    rest = [one for one in rest_cases(stage.attacker, server.admin, max_body=MAX_BODY) if one.name.startswith(only)]
    wires, texts = ([], {}) if only else (wire_cases(stage.attacker), messages())
    wrong = _each(lambda case: _rest(server, case), rest)
    wrong_wires = _each(lambda case: _wire(server, case), wires)
    wrong_messages = _messages(server, stage.attacker, texts.items())
    after = stage.state()
    count = len(rest) + len(wires) + len(texts)
    return [
        Check("named cases", count >= 80 and len({case.name for case in rest}) == len(rest), str(count)),
        none_of("REST requests not refused", wrong, len(rest)),
        none_of("gRPC connections not refused", wrong_wires, len(wires)),
        none_of("gRPC messages not refused", wrong_messages, len(texts)),
        none_of("changes of ledger, keys and standings", before.changes(after), len(before)),
        *_unharmed(stage, first),
    ]


def fuzzed(stage: Stage, count: int, seed: int = 0) -> list[Check]:
    """Good requests with random damage: some survive, and exactly those that were answered are on record."""
    server, first = stage.server, golden(stage.server, stage.bystander)
    sent, mixed = fuzz.rest_requests(stage.attacker, count // 2, seed), fuzz.messages(count // 4, seed)
    frames = fuzz.connections(stage.attacker, count - len(sent) - len(mixed), seed)
    counts = [queries_of(server, "attacker")]
    answers = _each(lambda text: ask(server.rest, text, patience=PATIENCE), sent)
    wrong = [f"{one.status} to {text[:60]!r}" for one, text in zip(answers, sent, strict=True) if not _fine(one.status)]
    codes, rows = _codes(server, stage.attacker, mixed)
    bad = [code not in REFUSALS | {CODE.OK} for code in codes]
    wrong += [f"{code} to {text[:60]!r}" for code, text, is_bad in zip(codes, mixed, bad, strict=True) if is_bad]
    answered = rows + sum(fuzz.rows_in(one.body) for one in answers if one.status == 200)
    counts.append(queries_of(server, "attacker"))
    exchanges = _each(lambda text: exchange(server.grpc, text, patience=3.0), frames)
    replies = sum(1 for one in exchanges for reply in one.replies.values() if reply)
    counts.append(queries_of(server, "attacker"))
    recorded, later = counts[1] - counts[0], counts[2] - counts[1]
    return [
        none_of("fuzzed requests with 5xx, or without an end", wrong, len(sent) + len(mixed)),
        Check(
            "recorded exactly what was answered",
            recorded == answered,
            f"{recorded} rows on record, {answered} answered",
        ),
        # A damaged connection may end after its query was recorded: then nobody is left to be answered.
        Check(
            f"the same of {len(frames)} connections", later >= replies, f"{later} rows on record, {replies} answered"
        ),
        *_unharmed(stage, first),
    ]


def run(folder: Path, quick: bool) -> list[Check]:
    """All named cases and many fuzzed ones on a server with its ledger in a file; the named ones also with Redis."""
    file = folder / "ledger.sqlite"
    with started(folder, ledger=f"sqlite:///{file}", **SETTINGS) as server:
        stage = staged(server, f"sqlite:///{file}", file, file.with_name("ledger.sqlite-wal"))
        checks = named(stage) + fuzzed(stage, 500 if quick else 20_000)
    return checks if quick or not shutil.which("redis-server") else checks + _with_redis(folder / "redis")


def _with_redis(folder: Path) -> list[Check]:
    redis = redis_server(folder)
    try:
        with started(folder, ledger=redis.url, **SETTINGS) as server:
            return named(staged(server, redis.url))
    finally:
        redis.kill()


def control(folder: Path, quick: bool) -> list[Check]:
    """The same named cases on a server that trusts what json.loads gives it."""
    with started(folder, module="qa.broken.trusting", **SETTINGS) as server:
        return named(staged(server, "memory://"))


def _unharmed(stage: Stage, first: bytes) -> list[Check]:
    server = stage.server
    failures = failures_of(server)
    return [
        Check("5xx as the server counts them", failures == 0, f"{failures:.0f}"),
        Check("the golden answer is the same", first.startswith(b"200 ") and golden(server, stage.bystander) == first),
        Check("the server lives", server.process.poll() is None),
        none_of("tracebacks in the log", [line for line in server.lines() if "traceback" in line], 1),
    ]


def _fine(status: int) -> bool:
    return status in (SILENCE, 200) or 400 <= status < 500


def _rest(server: Server, case: Case) -> str | None:
    answer = ask(server.rest, *case.parts, patience=PATIENCE)
    fine = 400 <= answer.status < 500 or (case.may_close and answer.status == SILENCE)
    return None if fine else f"{case.name}: {'hang' if answer.status == HANG else answer.status}"


def _wire(server: Server, case: WireCase) -> str | None:
    result = exchange(server.grpc, case.text, patience=1.0 if case.waits else PATIENCE)
    if any(result.replies.values()):
        return f"{case.name}: answered"
    return None if result.closed or result.ended or case.waits else f"{case.name}: hang"


def _messages(server: Server, key: str, texts: Iterable[tuple[str, bytes]]) -> list[str]:
    listed = list(texts)
    codes, _ = _codes(server, key, [raw for _, raw in listed])
    return [f"{name}: {code}" for (name, _), code in zip(listed, codes, strict=True) if code not in REFUSALS]


def _codes(server: Server, key: str, texts: Sequence[bytes]) -> tuple[list[grpc.StatusCode], int]:
    """What gRPC says to each message, and how many rows were answered."""
    codes, rows = list[grpc.StatusCode](), 0
    with grpc.insecure_channel(f"{HOST}:{server.grpc}") as channel:
        call = channel.unary_unary(f"{PATH}ModelInfer")
        for text in texts:
            try:
                rows += fuzz.rows_in_message(
                    call(text, metadata=(("authorization", f"Bearer {key}"),), timeout=PATIENCE)
                )
                codes.append(CODE.OK)
            except grpc.RpcError as error:
                codes.append(error.code())
    return codes, rows


def _each(function: Callable[[One], object], things: Sequence[One]) -> list:  # type: ignore[type-arg]
    """The results of the function for each, several at a time; Nones are left out."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [result for result in pool.map(function, things) if result is not None]
