"""What can go wrong, one error per cause; each message says what was expected, what came, and how to fix it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from queen.ledger.refusal import Refusal
    from queen.types import Reply

UpstreamFailure = Literal["unreachable", "late", "unready", "rejected", "unusable", "other_model", "closed"]
"""What can be wrong with an upstream: no connection; no answer in time; it cannot answer anybody now; it does not take
this request; its answer makes no sense; it runs another network; it is not asked until it has passed a check again."""


def reason(error: BaseException) -> str:
    """Why something failed, in one line of the system's own words: no number, and no name that the message has already.

    >>> reason(FileNotFoundError(2, "No such file or directory", "one.png"))
    'No such file or directory'
    """
    inner = getattr(error, "reason", None)  # of urllib's error
    if isinstance(inner, OSError):
        return reason(inner)
    return " ".join((getattr(error, "strerror", None) or str(error)).split())


class QueenError(Exception):
    """Base of every error this package raises on purpose."""


class ShapeError(QueenError, ValueError):
    """An array or tensor has the wrong shape."""


class DtypeError(QueenError, TypeError):
    """An array or tensor has the wrong type of numbers, or something else was given in its place."""


class NotFiniteError(QueenError, ValueError):
    """NaN or infinity where a number belongs."""


class RangeError(QueenError, ValueError):
    """A pixel brighter or darker than any the model was fitted with."""


class EmptyBatchError(QueenError, ValueError):
    """A batch without rows."""


class ClientError(QueenError, ValueError):
    """A client name that is not a short, non-empty string."""


class LabelError(QueenError, ValueError):
    """A label outside 0 .. K-1."""


class LimitsError(QueenError, ValueError):
    """A radius or threshold that makes no sense."""


class PolicyError(QueenError, ValueError):
    """A policy nobody knows."""


class OptionError(QueenError, ValueError):
    """An option with a value nobody knows."""


class MissingExtraError(OptionError, ImportError):
    """Something needs a package that is installed with an extra of this one only."""


class ModelError(QueenError):
    """The model failed on an input that looked right.

    The message holds what the model's library says, which may name layers. Clients are `told` less.
    """

    told = "the model cannot run on this input"


class HeadError(QueenError):
    """The model has no usable last layer: head(feature) must equal the model's logits."""


class RandomError(QueenError):
    """The model answers the same query differently when it comes again."""


class EmptyClassError(QueenError):
    """A class without training images."""


class SpreadError(QueenError):
    """A class whose 2-D points all coincide, or are not finite."""


class TooFewClassesError(QueenError):
    """A classifier of fewer than two classes has nothing to protect."""


class MapError(QueenError):
    """The 2-D map does not tell the classes apart."""


class BundleError(QueenError):
    """A bundle that is missing, truncated, tampered with or of an unknown version."""


class BundleModelError(BundleError):
    """The bundle belongs to another model, or the model cannot be rebuilt."""


class SecretError(QueenError):
    """The secret file is missing, malformed or readable by others."""


class LedgerError(QueenError):
    """The ledger could not record, so nothing may be answered."""


class LostStateError(LedgerError):
    """The ledger has lost records that it had acknowledged, or would not keep them; only an operator can help."""


class KeyStoreError(QueenError):
    """Keys could not be written, so no key was made or revoked."""


class BindingError(LedgerError):
    """The ledger was written for another bundle, so its records mean nothing to this one."""


class CalibrationError(QueenError):
    """The sentinel cannot accuse anybody without held-out images to compare with."""


class UpstreamError(QueenError):
    """The server that runs the network gave no answer that can be used; `kind` says in a word what went wrong."""

    def __init__(self, message: str, kind: UpstreamFailure) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def may_be_the_request(self) -> bool:
        """Whether another request might be answered, so that a batch is worth trying in parts."""
        return self.kind in ("rejected", "unusable")


class RefusedError(QueenError):
    """The policy gives this client no answer; `reply` says which rows are meant and holds the others.

    `why` is what the client may be told: whose budget is spent and when it renews, or that it stands accused; None
    where there is no ledger.
    """

    def __init__(self, message: str, reply: Reply, why: Refusal | None = None) -> None:
        super().__init__(message)
        self.reply = reply
        self.why = why


def tell_client(error: QueenError) -> str:
    """What a client may know of an error that its input made."""
    return error.told if isinstance(error, ModelError) else str(error)


class ProtectionWarning(UserWarning):
    """The model is protected less than it could be."""
