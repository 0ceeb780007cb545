"""The bodies of requests: how much memory they take, and reading them as far as there is memory for them."""

from __future__ import annotations

import asyncio
import mmap
from typing import Any

from torch import Tensor

from queen.serve.limits.memory import Reservation
from queen.serve.types import ModelSpec, Query, ServeError

BUFFER = 1 << 17  # bytes of a body that wait in the connection's buffer, beside those that were read already
NUMBER = 40  # bytes of one number of an answer, with the text that it becomes


def memory_of_body(size: int) -> int:
    """What a body of so many bytes takes while it arrives: itself, an eighth to grow into, and a buffer."""
    return size + size // 8 + min(size, BUFFER)


def memory_to_parse(size: int, header_length: int | None, *, is_packed: bool, most: int) -> int:
    """What reading a body into tensors takes besides: 32 times its JSON and 8 times its raw tensors, `most` at most.

    What a packed body becomes is not known before. (Measured: 30 times for `[],[],...`, 8 for UINT8 as INT64.)
    """
    if is_packed:
        return most
    text = size if header_length is None else min(header_length, size)
    return min(32 * text + 8 * (size - text), most)


def memory_of_query(query: Query, spec: ModelSpec) -> int:
    """What a parsed request takes until its answer has left: its tensors, and the answer as numbers and as text."""
    given, best = query.inputs, query.answer_format.classification
    tensors = given.nbytes if isinstance(given, Tensor) else sum(tensor.nbytes for tensor in given.values())
    return tensors + query.rows * (spec.classes * NUMBER + (best * spec.longest_name if best else 0))


async def read_body(headers: dict[bytes, bytes], receive: Any, limit: int, reservation: Reservation) -> bytes:
    """A request's body, refused as soon as it is known to be too large, or its memory is not to be had."""
    try:
        declared = int(headers.get(b"content-length", b"0"))
    except ValueError as error:
        raise ServeError(400, "content-length must be a number") from error
    if declared > limit:
        raise ServeError(413, f"a request body may have {limit} bytes, got {declared}")
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False) and len(message["body"]) <= limit:
        body: bytes = message["body"]
        if not reservation.claim_at_once(memory_of_body(len(body))):
            await reservation.claim(memory_of_body(len(body)))
        return body
    return await read_parts(message, receive, declared or limit, limit, reservation)


async def read_parts(message: Any, receive: Any, size: int, limit: int, reservation: Reservation) -> bytes:
    """A body that comes in parts, of at most `size` bytes; while it comes it may have to leave for another one.

    It has pages of its own, which are taken as they are filled and given back at once: the heap would keep them.
    """
    store = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def evict() -> None:
        store.close()
        reservation.resize(min(reservation.size, BUFFER))  # which the connection still has
        interruption.reschedule(0)

    try:
        async with asyncio.timeout(None) as interruption:
            with reservation.arriving(evict), store:
                while message["type"] != "http.disconnect":
                    part: bytes = message.get("body", b"")
                    arrived = store.tell() + len(part)
                    if arrived > limit:
                        raise ServeError(413, f"a request body may have {limit} bytes, got more")
                    await reservation.claim(memory_of_body(arrived))
                    store.write(part)
                    if not message.get("more_body", False):
                        return store[:arrived]
                    message = await receive()
                    reservation.check()
    except TimeoutError:
        reservation.check()
        raise
    raise ConnectionResetError
