"""Calls of a running server: its REST API with the standard library, and operators' commands as processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request

import torch

from tests.support.paths import ROOT
from tests.support.server import Server
from tests.support.waiting import PATIENCE


def request(x: torch.Tensor) -> bytes:
    """The body that asks for rows (n, 1, 8, 8)."""
    tensor = {"name": "input", "datatype": "FP32", "shape": list(x.shape), "data": x.flatten().tolist()}
    return json.dumps({"inputs": [tensor]}).encode()


def call(url: str, key: str | None = None, data: bytes | None = None) -> tuple[int, dict[str, str], dict]:
    """Status, headers and JSON of a reply; with data it is a POST."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=PATIENCE) as reply:
            return reply.status, dict(reply.headers), json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), json.load(error)


def infer(server: Server, x: torch.Tensor, key: str | None = None) -> tuple[int, dict[str, str], dict]:
    """Ask for rows (n, 1, 8, 8), as alice unless there is another key."""
    return call(f"{server.url}/v2/models/digits/infer", key or server.key, request(x))


def queen(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    command = [sys.executable, "-m", "queen", *arguments]
    settings = os.environ | environment
    return subprocess.run(
        command, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
