"""Good requests with random damage, the same for the same seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from qa.serving.h2 import call_fields, opened, packed, sent, start
from qa.serving.rest import head, post
from queen.serve.protocol import oip_pb2 as oip
from tests.support.grpc_stub import message, typed, wanting
from tests.support.rest_bodies import ask as ask_json
from tests.support.rest_bodies import ask_raw, pictures

SPICE = (
    b"NaN", b"Infinity", b"-1", b"1e999", b"null", b"true", b"[]", b"{}", b'"', b"\\u0000", b"\x00", b"\xff", b"[" * 50,
    b"18446744073709551616", b"\r\n", b"\r\n\r\n", b",", b":", b"0x", b"e", b"\xc3\x28", b"%s", b"-0",
    b"]" * 3, b"}" * 3,
)  # fmt: skip


def rest_requests(key: str, count: int, seed: int) -> list[bytes]:
    """Requests of every form, most with damage in the body, some in the head."""
    chance = random.Random(seed)
    raw, length = ask_raw(pictures().tobytes())
    forms: list[tuple[bytes, tuple[str, ...]]] = [
        (ask_json(), ()),
        (ask_json(id="a", outputs=[{"name": "probabilities", "parameters": {"classification": 3}}]), ()),
        (raw, (f"Inference-Header-Content-Length: {length}",)),
    ]
    return [_rest(key, *chance.choice(forms), chance) for _ in range(count)]


def messages(count: int, seed: int) -> list[bytes]:
    """Damaged messages for ModelInfer."""
    chance = random.Random(seed + 1)
    numbers = pictures().ravel().tolist()
    forms = [
        message(),
        typed("FP32", "fp32_contents", numbers),
        wanting(classification=oip.InferParameter(int64_param=2)),
    ]
    return [_damage(chance.choice(forms).SerializeToString(), chance) for _ in range(count)]


def connections(key: str, count: int, seed: int) -> list[bytes]:
    """Whole gRPC connections, damaged anywhere but in the key (which a bad one would stop at once)."""
    chance = random.Random(seed + 2)
    call = opened(call_fields(key)) + sent(packed(message().SerializeToString()))
    return [
        start() + _damage(call, chance) if chance.random() < 0.9 else _damage(start() + call, chance)
        for _ in range(count)
    ]


def rows_in(body: bytes) -> int:
    """Rows that a REST answer has; its JSON ends where raw bytes begin."""
    content, _ = json.JSONDecoder().raw_decode(body.decode("latin-1"))
    return int(content["outputs"][0]["shape"][0])


def rows_in_message(raw: bytes) -> int:
    """Rows that a gRPC answer has."""
    return int(oip.ModelInferResponse.FromString(raw).outputs[0].shape[0])


def _rest(key: str, body: bytes, headers: tuple[str, ...], chance: random.Random) -> bytes:
    if chance.random() < 0.75:
        return post(_damage(body, chance), key, *headers)
    own = head("POST", "/v2/models/digits/infer", *headers, f"Authorization: Bearer {key}", length=len(body))
    return _damage(own, chance) + body


def _damage(text: bytes, chance: random.Random) -> bytes:
    kinds: tuple[Callable[[bytes, random.Random], bytes], ...] = (_flip, _cut, _insert, _double, _swap, _spice)
    for _ in range(chance.randint(1, 3)):
        text = chance.choice(kinds)(text, chance)
    return text


def _at(text: bytes, chance: random.Random) -> int:
    return chance.randrange(len(text) + 1)


def _flip(text: bytes, chance: random.Random) -> bytes:
    if not text:
        return text
    at = chance.randrange(len(text))
    return text[:at] + bytes([text[at] ^ 1 << chance.randrange(8)]) + text[at + 1 :]


def _cut(text: bytes, chance: random.Random) -> bytes:
    at = _at(text, chance)
    return text[:at] + text[at + chance.randint(1, 40) :]


def _insert(text: bytes, chance: random.Random) -> bytes:
    at = _at(text, chance)
    return text[:at] + chance.randbytes(chance.randint(1, 20)) + text[at:]


def _double(text: bytes, chance: random.Random) -> bytes:
    at = _at(text, chance)
    end = at + chance.randint(1, 60)
    return text[:end] + text[at:end] + text[end:]


def _swap(text: bytes, chance: random.Random) -> bytes:
    a, b, c = sorted(_at(text, chance) for _ in range(3))
    return text[:a] + text[b:c] + text[a:b] + text[c:]


def _spice(text: bytes, chance: random.Random) -> bytes:
    at = _at(text, chance)
    return text[:at] + chance.choice(SPICE) + text[at + chance.choice((0, 1, 4)) :]
