"""Requests that nobody should send over REST: bodies, heads, lengths, chunks, compression, keys, paths."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from qa.serving.rest import INFER, chunked, get, head, post
from tests.support.rest_hostile import BINARY, GOOD, JSON

MIB = 1 << 20
SPOILT = GOOD[:-1]  # refused also where the parser forgives everything else
LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class Case:
    """Bytes for a connection of their own, to be refused with a 4xx, or (if `may_close`) by hanging up."""

    name: str
    parts: tuple[bytes, ...]
    may_close: bool = False


def rest_cases(key: str, admin: str, *, max_body: int) -> list[Case]:
    """All of them; `key` and `admin` are good keys, so that no case is refused for the lack of one."""
    made = [_bodies(key), _not_http(key), _lengths(key), _chunks(key), _packed(key, max_body)]
    return [case for cases in (*made, _keys(key), _paths(key), _operators(admin), _heads(key)) for case in cases]


def _bodies(key: str) -> Iterator[Case]:
    for name, body in JSON.items():
        yield Case(f"json: {name}", (post(body, key),))
    for name, (body, length) in BINARY.items():
        headers = [] if length is None else [f"{LENGTH}: {length}"]
        yield Case(f"binary: {name}", (post(body, key, *headers),))
    for text in ("", "abc", "1.0", "1e3", "+5", "0x10", "1_0", "9" * 5000, "\xb2", "1, 2", "-0"):
        yield Case(f"header length '{text[:10]}'", (post(GOOD, key, f"{LENGTH}: {text}"),))


def _not_http(key: str) -> Iterator[Case]:
    good = post(SPOILT, key)
    texts = {
        "zeros": b"\x00" * 64 + b"\r\n\r\n",
        "a TLS greeting": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xab" * 64,
        "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00",
        "HTTP/9.9": good.replace(b"HTTP/1.1", b"HTTP/9.9", 1),
        "no version": b"GET /v2/models\r\n\r\n",
        "two spaces": good.replace(b"POST ", b"POST  ", 1).replace(b" HTTP/1.1", b"  HTTP/1.1", 1),
        "no such method": b"FETCH /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
        "method in lower case": good.replace(b"POST", b"post", 1),
        "method of a megabyte": b"G" * MIB,
        "field without a colon": good.replace(b"Host: queen", b"Host queen", 1),
        "field with a space in its name": good.replace(b"Host:", b"Ho st:", 1),
        "field without a name": good.replace(b"Host:", b":", 1),
        "field with a zero byte": good.replace(b"queen", b"que\x00en", 1),
        "field on two lines": good.replace(b"Host: queen", b"Host: queen\r\n folded", 1),
        "line ends without a return": good.replace(b"\r\n", b"\n"),
        "line ends without a line feed": good.replace(b"\r\n", b"\r"),
        "address with a zero byte": good.replace(b"/v2/", b"/v2/\x00", 1),
        "address that is not ASCII": good.replace(b"/v2/", b"/v2/\xc3\xa9", 1),
        "address with a space": good.replace(b"/infer", b"/in fer", 1),
        "a proxy's tunnel": b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: x\r\n\r\n",
        "another server's address": b"GET http://192.0.2.1/v2/models HTTP/1.1\r\nHost: x\r\n\r\n",
        "asterisk": b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
        "no end": b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: x\r\n",
    }
    for name, text in texts.items():
        yield Case(f"http: {name}", (text,), may_close=True)


def _heads(key: str) -> Iterator[Case]:
    own = f"Authorization: Bearer {key}"
    yield Case("head: one long field", (head("POST", INFER, own, f"X: {'a' * 20_000}", length=0),))
    yield Case("head: many fields", (head("POST", INFER, own, *(f"X{i}: a" for i in range(5000)), length=0),))
    yield Case("head: many empty fields", (head("POST", INFER, own, *["a:"] * 50_000, length=0),))
    yield Case("head: a field that never ends", (b"GET /v2 HTTP/1.1\r\nX: ", *[b"a" * 65_536] * 40))
    yield Case("head: long address", (get("/v2/" + "a" * 20_000),))
    yield Case("head: address that never ends", (b"GET /", *[b"a" * 65_536] * 40))
    yield Case("head: long query", (get("/v2/models?" + "&a=" * 8000, key),))
    yield Case("head: 5,000 pipelined requests", (post(b"{}", key) * 5000,))
    for name, wish in {"websocket": "websocket", "HTTP/2": "h2c", "nonsense": "\xff" * 50}.items():
        upgrade = (f"Upgrade: {wish}", "Connection: Upgrade", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")
        yield Case(f"head: upgrade to {name}", (post(b"", key, *upgrade),))
    yield Case("head: expects nonsense", (post(b"", key, "Expect: 200-maybe"),))
    yield Case("head: content type nonsense", (post(b"", key, "Content-Type: \xff/\xfe; charset=\xfd"),))


def _lengths(key: str) -> Iterator[Case]:
    good, own = post(GOOD, key), f"Authorization: Bearer {key}"
    length = f"Content-Length: {len(GOOD)}".encode()
    hidden = post(GOOD, key)
    for text in ("-1", "+5", "0x10", "1e3", "5 5", "5, 5", "", "a", "9" * 30, "18446744073709551616", "\xb2"):
        sent = good.replace(length, f"Content-Length: {text}".encode("latin-1"))
        yield Case(f"length: '{text[:22]}'", (sent,), may_close=True)
    yield Case("length: longer than the body", (good.replace(length, b"Content-Length: %d" % (len(GOOD) + 9)),))
    yield Case("length: shorter than the body", (good.replace(length, b"Content-Length: 20"),))
    yield Case("length: a terabyte", (good.replace(length, b"Content-Length: 1099511627776"),))
    yield Case("length: none", (head("POST", INFER, own) + GOOD,))
    yield Case("length: twice", (good.replace(length, length + b"\r\nContent-Length: 9"),))
    yield Case("length: twice the same", (good.replace(length, length + b"\r\n" + length),))
    both = head("POST", INFER, own, "Transfer-Encoding: chunked", length=4)
    yield Case("length: and chunks", (both + b"0\r\n\r\n",))
    yield Case("length: and chunks, hiding a request", (both + b"0\r\n\r\n" + hidden,))
    yield Case("length: hiding a request behind a large head", (get("/v2?" + "a" * 20_000) + hidden,))
    yield Case("length: hiding a request behind nonsense", (b"\x00\x01\r\n\r\n" + hidden,), may_close=True)


def _chunks(key: str) -> Iterator[Case]:
    start = head("POST", INFER, f"Authorization: Bearer {key}", "Transfer-Encoding: chunked")
    body = b"%x\r\n%b\r\n" % (len(GOOD), GOOD)
    texts = {
        "size is no number": b"zz\r\n",
        "size is negative": b"-5\r\nhello\r\n",
        "size overflows": b"ffffffffffffffffff\r\n",
        "size with 0x": b"0x5\r\nhello\r\n0\r\n\r\n",
        "size is missing": b"\r\nhello\r\n",
        "size is too small": b"2\r\n" + GOOD + b"\r\n0\r\n\r\n",
        "no line end": b"5\r\nhelloX0\r\n\r\n",
        "no last chunk": body,
        "size of a terabyte": b"10000000000\r\n" + GOOD,
        "65,537 chunks": chunked([b"x"] * 65_537),
        "65,537 chunks after a query": chunked([GOOD, *[b"x"] * 65_537]),
        "no chunk": b"0\r\n\r\n",
    }
    for name, text in texts.items():
        yield Case(f"chunks: {name}", (start, text), may_close=True)
    yield Case("chunks: fields at the end without end", (start + body + b"0\r\n", *[b"a:b\r\n" * 13_000] * 40))
    yield Case("chunks: a field at the end without end", (start + body + b"0\r\na: ", *[b"a" * 65_536] * 40))
    yield Case("chunks: an extension without end", (start + b"5;", *[b"a" * 65_536] * 40))
    for coding in ("gzip", "gzip, chunked", "chunked, gzip", "chunked, chunked", "xchunked", "identity", "\x0bchunked"):
        sent = head("POST", INFER, f"Authorization: Bearer {key}", f"Transfer-Encoding: {coding}")
        spoilt = b"5\r\nhello\r\n0\r\n\r\n"
        yield Case(f"chunks: coding '{coding.strip()}'", (sent + spoilt,), may_close=True)


def _packed(key: str, max_body: int) -> Iterator[Case]:
    packed = gzip.compress(GOOD)
    bodies = {
        "gzip bomb": ("gzip", gzip.compress(bytes(64 * max_body))),
        "gzip bomb of spaces": ("gzip", gzip.compress(GOOD + b" " * (16 * max_body))),
        "deflate bomb": ("deflate", zlib.compress(bytes(64 * max_body))),
        "gzip, cut": ("gzip", packed[:-9]),
        "gzip, one byte": ("gzip", packed[:1]),
        "gzip of nothing": ("gzip", b""),
        "gzip, wrong checksum": ("gzip", packed[:-8] + bytes(8)),
        "gzip with bytes behind": ("gzip", packed + b"abc"),
        "gzip of a million empty parts": ("gzip", gzip.compress(b"") * (max_body // 40)),
        "gzip twice": ("gzip", gzip.compress(packed)),
        "gzip that is not": ("gzip", GOOD),
        "deflate that is not": ("deflate", b"\x78\x9c" + GOOD),
        "other coding": ("br", GOOD),
        "two codings": ("gzip, gzip", gzip.compress(packed)),
        "coding that is no text": ("\xff\xfe", GOOD),
        "plain with bytes behind": ("identity", GOOD + b"x"),
    }
    for name, (coding, body) in bodies.items():
        yield Case(f"packed: {name}", (post(body, key, f"Content-Encoding: {coding}"),))


def _keys(key: str) -> Iterator[Case]:
    fields = {
        "none": [],
        "empty": ["Authorization:"],
        "no key": ["Authorization: Bearer"],
        "basic": ["Authorization: Basic YWxpY2U6YWxpY2U="],
        "no scheme": [f"Authorization: {key}"],
        "two keys": [f"Authorization: Bearer {key} {key}"],
        "cut": [f"Authorization: Bearer {key[:-1]}"],
        "longer": [f"Authorization: Bearer {key}x"],
        "upper case": [f"Authorization: Bearer {key.upper()}"],
        "id alone": [f"Authorization: Bearer {key[:19]}"],
        "not ASCII": ["Authorization: Bearer \xff\xfe\xfd"],
        "10,000 letters": [f"Authorization: Bearer {'a' * 10_000}"],
        "good, then bad": [f"Authorization: Bearer {key}", "Authorization: Bearer bad"],
        "in a cookie": [f"Cookie: Authorization=Bearer {key}"],
        "format string": ["Authorization: Bearer %s%s%n{0}{{}}"],
    }
    for name, lines in fields.items():
        yield Case(f"key: {name}", (head("POST", INFER, *lines, length=len(GOOD)) + GOOD,))


def _paths(key: str) -> Iterator[Case]:
    own = f"Authorization: Bearer {key}"
    for path in (
        "/v2/models/other/infer", "/v2/models/digits/versions/2/infer", "/v2/models/digits/infer/", "//v2/models",
        "/v2/models/%2e%2e/infer", "/v2/models/digits%00/infer", "/v2/models/digits/../digits/infer", "/V2/models",
        "/v2/models/" + "a" * 5000 + "/infer", "/v2/models/%ff%fe/infer", "/v2/repository/models/digits/load",
    ):  # fmt: skip
        yield Case(f"path: {path[:50]}", (post(GOOD, key, path=path),))
    for path in (
        "/dashboard/../keys.json", "/dashboard/%2e%2e/%2e%2e/keys.json", "/dashboard/..%2fadmin.py", "/dashboard//etc/",
        "/admin", "/admin/overview", "/admin/clients?limit=1", "/metrics", "/docs", "/.env", "/v2/models/digits/config",
    ):  # fmt: skip
        yield Case(f"path: {path}", (get(path, key),))
    for method in ("PUT", "DELETE", "PATCH", "TRACE", "OPTIONS"):
        yield Case(f"method: {method}", (head(method, INFER, own, length=len(GOOD)) + GOOD,))
    for page in ("pardon", "allow", "budget", "revoke", "acknowledge"):
        yield Case(f"operator's {page} with a client's key", (post(b'{"name":"alice"}', key, path=f"/admin/{page}"),))


def _operators(admin: str) -> Iterator[Case]:
    bodies = {
        "nothing": b"",
        "depth bomb": b"[" * 4000,
        "large": b" " * 100_000,
        "NaN": b'{"name":"alice","extra_answers":NaN,"threshold":null}',
        "negative": b'{"name":"alice","extra_answers":-1,"threshold":null}',
        "huge": b'{"name":"alice","extra_answers":null,"threshold":1e999}',
        "name of a million": b'{"name":"' + b"a" * 3000 + b'","extra_answers":1,"threshold":null}',
        "name is empty": b'{"name":"","extra_answers":1,"threshold":null}',
        "half a letter": b'{"name":"\\ud800","extra_answers":1,"threshold":null}',
    }
    for name, body in bodies.items():
        yield Case(f"operator: budget, {name}", (post(body, admin, path="/admin/budget"),))
    yield Case("operator: event 0", (post(b'{"event":0}', admin, path="/admin/acknowledge"),))
    yield Case("operator: event 2^70", (post(b'{"event":%d}' % 2**70, admin, path="/admin/acknowledge"),))
    for query in ("limit=-1", "limit=1e3", "limit=99999999999", "sort=;drop", "search=" + "a" * 9000, "search=%00"):
        yield Case(f"operator: clients?{query[:20]}", (get(f"/admin/clients?{query}", admin),))
    for query in ("", "name=", "name=%00", "name=" + "a" * 5000, "name=alice&group=2"):
        yield Case(f"operator: client?{query[:20]}", (get(f"/admin/client?{query}", admin),))
