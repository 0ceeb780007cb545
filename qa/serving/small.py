"""Small holes that a red team found, each shown on a real server or command line, and closed."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import grpc
import numpy as np
import torch

import queen
from qa.serving.faults import refusal
from qa.serving.h2 import PATH
from qa.serving.rest import HOST, ask, get, head, post
from qa.serving.scenario import Check, none_of
from qa.serving.state import failures_of
from qa.serving.text import text_bundle
from queen.ledger import SqliteLedger
from queen.secret import secret_path
from queen.serve.access.key_store import FileKeys
from queen.serve.protocol import oip_pb2 as oip
from queen.serve.querylog.writer import QueryLog
from tests.support.paths import ROOT
from tests.support.server import Server, started
from tests.support.waiting import PATIENCE

INFINITE = resource.RLIM_INFINITY
MODULE = "qa.broken.careless"
TEXT = "/v2/models/text/infer"
SHAPES = ([-1, -1], [-1, -3], [-3, -1], [-1], [1, -1], [0, 1], [1, 0], [], [1, 1, 1], [2**32, 2**32], [2**62, 4],
          [1, 2**63 - 1], [-(2**63), 1], [-1, 3], [1025, 1])  # fmt: skip
PAGES = ("/v2/models", "/v2/models/text", "/openapi.json", "/metrics", "/admin/overview", "/admin/clients")
EVIL = "eve\x1b[2J\x1b]0;owned\x07\u202eecila"
SECRET = "hush-hush-hush"  # of the webhook
DAY = 86400
WITHIN = 10.0  # seconds in which a revocation must hold, on a busy machine too; with a healthy disk it is one


def run(folder: Path, quick: bool) -> list[Check]:
    """Everything once, quick or not."""
    return [*on_a_server(folder), *on_a_terminal(folder / "terminal"), *lost_secret(folder)]


def control(folder: Path, quick: bool) -> list[Check]:
    """The same with the holes as they were; that of the secret in the long run only."""
    checks = [*on_a_server(folder, MODULE), *on_a_terminal(folder / "terminal", MODULE)]
    return checks if quick else [*checks, *lost_secret(folder, MODULE)]


def on_a_server(folder: Path, module: str = "queen") -> list[Check]:
    """Shapes, headers, the process list, old recorded queries and a full disk."""
    file = folder / "webhook.secret"
    file.touch(mode=0o600)
    file.write_text(f"{SECRET}\n")
    old = _record_long_ago(folder / "queries")
    options = {"webhook": "http://127.0.0.1:1/", "webhook_secret_file": file, "record": folder / "queries"}
    with started(folder, bundle=text_bundle(), module=module, **options) as server:
        checks = [*shapes(server), *two_keys(server), unlisted(server)]
        checks.append(remembered(server, old))
        return [*checks, *no_room(server, WITHIN if module == "queen" else 2.0)]


def shapes(server: Server) -> list[Check]:
    """Shapes that no tensor has: refused in JSON, in bytes, typed and raw over gRPC; a good one is answered."""
    wrong = []
    for shape in SHAPES:
        for count in (0, 1, 3):
            replies = _ask_all(server, shape, list(range(count)))
            wrong += [f"{form} {shape} of {count}: {got}" for form, got in replies.items() if got not in (400, 413)]
    good = _ask_all(server, [1, 3], [1, 2, 3])
    return [
        none_of("impossible shapes of token ids that are not refused", wrong, len(SHAPES) * 3 * len(good)),
        Check("a possible one is answered in every form", set(good.values()) == {200}, str(good)),
        Check("no 5xx counted", failures_of(server) == 0, str(failures_of(server))),
    ]


def _ask_all(server: Server, shape: list[int], numbers: list[int]) -> dict[str, int]:
    """What a server says to token ids of a shape, by the form in which they come, as HTTP statuses."""
    tensor, raw = {"name": "input", "datatype": "INT64", "shape": shape}, np.array(numbers, "<i8").tobytes()
    plain = json.dumps({"inputs": [tensor | {"data": numbers}]}).encode()
    start = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": len(raw)}}]}).encode()
    length = f"Inference-Header-Content-Length: {len(start)}"
    part = oip.ModelInferRequest.InferInputTensor(name="input", datatype="INT64", shape=shape)
    bare = oip.ModelInferRequest(model_name="text", inputs=[part], raw_input_contents=[raw])
    part.contents.int64_contents.extend(numbers)
    return {
        "json": ask(server.rest, post(plain, server.key, path=TEXT)).status,
        "binary": ask(server.rest, post(start + raw, server.key, length, path=TEXT)).status,
        "typed": _call(server, oip.ModelInferRequest(model_name="text", inputs=[part]), server.key),
        "raw": _call(server, bare, server.key),
    }


def _call(server: Server, message: oip.ModelInferRequest, *keys: str) -> int:
    codes = {grpc.StatusCode.INVALID_ARGUMENT: 400, grpc.StatusCode.RESOURCE_EXHAUSTED: 413,
             grpc.StatusCode.UNAUTHENTICATED: 401}  # fmt: skip
    metadata = tuple(("authorization", f"Bearer {key}") for key in keys)
    try:
        call = _channel(server.grpc).unary_unary(f"{PATH}ModelInfer")
        call(message.SerializeToString(), metadata=metadata, timeout=PATIENCE)
    except grpc.RpcError as error:
        return codes.get(error.code(), 500)
    return 200


@cache
def _channel(port: int) -> grpc.Channel:
    return grpc.insecure_channel(f"{HOST}:{port}")


def two_keys(server: Server) -> list[Check]:
    """A client's key and an operator's in one request, in either order: the same refusal on every page."""
    statuses: dict[str, set[int]] = {}
    body = json.dumps({"inputs": [{"name": "input", "datatype": "INT64", "shape": [1, 1], "data": [1]}]}).encode()
    tensor = oip.ModelInferRequest.InferInputTensor(name="input", datatype="INT64", shape=[1, 1])
    message = oip.ModelInferRequest(model_name="text", inputs=[tensor], raw_input_contents=[bytes(8)])
    for keys in ((server.key, server.admin), (server.admin, server.key)):
        headers = [f"Authorization: Bearer {key}" for key in keys]
        for page in PAGES:
            statuses.setdefault(page, set()).add(ask(server.rest, head("GET", page, *headers)).status)
        statuses.setdefault(TEXT, set()).add(
            ask(server.rest, head("POST", TEXT, *headers, length=len(body)) + body).status
        )
        statuses.setdefault("gRPC", set()).add(_call(server, message, *keys))
    wrong = [f"{page}: {sorted(got)}" for page, got in statuses.items() if got != {400}]
    return [none_of("pages that judge two Authorization headers otherwise than by 400", wrong, len(statuses))]


def unlisted(server: Server) -> Check:
    """The webhook's secret is not in the list of processes."""
    command = Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
    return Check("the webhook's secret is in no process list", SECRET.encode() not in command)


def _record_long_ago(folder: Path) -> Path:
    """A file of the query log, 40 days old if the clock is right."""
    log = QueryLog(folder)
    log.write("alice", (), torch.ones(1, 3, dtype=torch.long), time.time())
    log.close()
    [path] = folder.glob("*.queries")
    os.utime(path, (time.time() - 40 * DAY,) * 2)
    return path


def remembered(server: Server, old: Path) -> Check:
    """A query was recorded since, so the folder was cleaned up; but the clock may be the one that is wrong."""
    _wait(lambda: len(list(old.parent.glob("*.queries"))) > 1 or not old.exists())
    jumps = [line for line in server.lines() if line["event"] == "recording_clock_jumped"]
    name = "a clock that seems to have jumped by 40 days deletes no recorded query, and is said"
    return Check(name, old.exists() and len(jumps) == 1, f"{len(jumps)} lines in the log")


def no_room(server: Server, within: float = WITHIN) -> list[Check]:
    """A key is revoked while its file cannot be written: dead at once, said, and stored when there is room."""
    body = json.dumps({"name": "alice"}).encode()
    request = head("POST", "/admin/revoke", f"Authorization: Bearer {server.admin}", length=len(body)) + body
    before = ask(server.rest, get("/v2/models", server.key)).status
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (64, INFINITE))
    try:
        reply = ask(server.rest, request)
        dead = _wait(lambda: ask(server.rest, get("/v2/models", server.key)).status == 401, within)
    finally:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (INFINITE, INFINITE))
    stored = _wait(
        lambda: not any(k.active for k in FileKeys(server.home).keys().values() if k.name == "alice"), within
    )
    text = reply.body.decode()
    return [
        Check(
            "a revocation that cannot be stored is 503 and says so", reply.status == 503 and "NOT STORED" in text, text
        ),
        Check("the key is dead at once all the same", before == 200 and dead),
        Check("it is stored as soon as there is room", stored),
    ]


def on_a_terminal(folder: Path, module: str = "queen") -> list[Check]:
    """Names of keys with escape sequences: refused when made, harmless where they exist."""
    folder.mkdir()
    keys = FileKeys(folder)
    keys.add("eve")
    file = folder / "keys.json"
    file.write_text(json.dumps(json.loads(file.read_text())).replace('"eve"', json.dumps(EVIL)))
    refused = _queen(module, "keys", "new", EVIL, "--home", str(folder))
    listed = _queen(module, "keys", "list", "--home", str(folder))
    shown = refused.stderr + listed.stdout + listed.stderr
    bad = [ascii(character) for character in shown if not character.isprintable() and character != "\n"]
    return [
        Check("a key with such a name is refused", refused.returncode == 2, refused.stderr.strip()),
        Check("the list of keys is printed", listed.returncode == 0 and "ecila" in listed.stdout),
        none_of("characters on the terminal that it would obey", bad, len(shown)),
    ]


def _queen(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)


def lost_secret(folder: Path, module: str = "queen") -> list[Check]:
    """A ledger that was used, and a bundle whose secret is gone: refused with the way out, and fine once it is back."""
    bundle, ledger = folder / "text", f"sqlite:///{folder / 'used.sqlite'}"
    shutil.copytree(text_bundle(), bundle)
    shutil.copy(secret_path(text_bundle()), secret_path(bundle))
    store = SqliteLedger(folder / "used.sqlite")
    queen.load(bundle, ledger=store).answer(torch.ones(1, 3, dtype=torch.long), client="alice")
    store.close()
    secret = secret_path(bundle).rename(folder / "backup")
    message = refusal(folder, ledger, bundle=bundle, module=module)
    made = secret_path(bundle).exists()
    if not made:
        secret.rename(secret_path(bundle))
    return [
        Check("a server without the secret does not start, and says the way out", "--new-secret" in message, message),
        Check("no new secret is made by the way", not made),
        Check("with the secret it starts", not refusal(folder, ledger, bundle=bundle, module=module)),
    ]


def _wait(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return holds
