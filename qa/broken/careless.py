"""A server with the small holes that it once had: shapes, headers, revocations, the clock, and the secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import queen.guard
from queen.cli import main, shared
from queen.errors import OptionError
from queen.serve import app
from queen.serve.access.key import Key
from queen.serve.access.revocations import KeysWithRevocations
from queen.serve.protocol import grpc_messages, rest_read
from queen.serve.querylog.clock import SteadyClock
from queen.serve.types import TensorSpec


def check_shape(tensor: TensorSpec, shape: Any, *, max_rows: int) -> tuple[int, ...]:
    """The shape; -1 passes for -1."""
    if len(shape) != len(tensor.shape) or not all(
        got == size or (size == -1 and got > 0) for got, size in zip(shape, tensor.shape, strict=True)
    ):
        raise app.ServeError(400, "another shape was expected")
    return tuple(shape)


def read_headers(scope: Mapping[str, Any]) -> dict[bytes, bytes]:
    """The last header of each name."""
    return dict(scope["headers"])


def revoke(self: KeysWithRevocations, id_or_name: str) -> list[Key]:
    """Revoke, or say that the operator made a mistake."""
    try:
        return self._store.revoke(id_or_name)
    except Exception as error:
        raise OptionError(str(error)) from error


if __name__ == "__main__":
    rest_read.check_shape = grpc_messages.check_shape = check_shape
    app.read_headers = read_headers
    KeysWithRevocations.revoke = revoke  # type: ignore[method-assign]
    SteadyClock.is_believed = lambda self, recorded: True  # type: ignore[method-assign]
    queen.guard.check_not_lost = queen.guard.remember_secret = lambda *args, **options: None
    shared.visible = lambda text, keep="": text
    main()
