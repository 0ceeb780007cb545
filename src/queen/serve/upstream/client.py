"""What clients of the protocol have in common, whether over REST or gRPC."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from queen.serve.upstream.address import Address, Headers
from queen.serve.upstream.tensors import SentTensor, UpstreamMetadata, UpstreamReply

Ask = Callable[[Sequence[SentTensor]], UpstreamReply]
Verify = Callable[[Ask], None]
"""Asks with the function that it is given, over one connection, and raises unless the right network answers."""

MAX_BYTES = 1 << 28  # of an answer whose size is not known beforehand
MAX_SMALL = 1 << 20  # of anything else than tensors
BYTES_PER_NUMBER = 32  # in JSON, at most


@dataclass(frozen=True)
class Asking:
    """Whom to ask, for what, and how long to wait."""

    address: Address
    model: str
    outputs: tuple[str, ...]
    headers: Headers = ()
    timeout: float = 5.0


class UpstreamClient(ABC):
    """Asks one model of one server, from several threads if need be.

    `verify` is called for every new connection, and what came over it is used only if that does not raise. To ask is
    to change nothing, so a question whose connection broke is asked once more over a new one, within the same time.
    """

    def __init__(self, asking: Asking) -> None:
        self.asking = asking
        self.verify: Verify | None = None
        self.most = MAX_BYTES  # bytes of an answer

    @abstractmethod
    def ask(self, tensors: Sequence[SentTensor]) -> UpstreamReply:
        """The outputs for these inputs, or `UpstreamError`."""

    @abstractmethod
    def metadata(self) -> UpstreamMetadata:
        """What the server says of the model, or `UpstreamError`."""

    @abstractmethod
    def models(self) -> list[str] | None:
        """The models of the server; None if it does not say."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections."""
