"""Random choices that are the same for the same query and unpredictable without the secret; and the secret's file."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from queen.atomic import write_atomically
from queen.core.inputs import tensors
from queen.errors import ProtectionWarning, SecretError
from queen.types import Inputs

if TYPE_CHECKING:
    from queen.ledger import Ledger

SECRET_BYTES = 32
FACT = "secret"  # "secret IDENTITY" is by what a ledger remembers with which secret of a bundle it was used
WAYS_OUT = (
    "repeats of old queries would not be recognised, and decoys would change. Put back the file that was beside the "
    "bundle (chmod 600), or accept a new secret: queen serve --new-secret, or queen.load(..., new_secret=True)"
)


def query_digests(secret: bytes, context: str | Sequence[str], x: Inputs) -> list[bytes]:
    """HMAC-SHA256 of every row, bound to `context` (bundle and client): one context for all rows, or one per row."""
    rows = _rows(x)
    each = [context] * len(rows) if isinstance(context, str) else context
    return [hmac.digest(secret, c.encode() + b"\0" + row, "sha256") for c, row in zip(each, rows, strict=True)]


def query_numbers(key: bytes, x: Inputs) -> list[int]:
    """A keyed 64-bit number of every row, never 0: nobody without the key can find two inputs with the same one."""
    key = key[: hashlib.blake2b.MAX_KEY_SIZE]
    digests = [hashlib.blake2b(row, digest_size=8, key=key).digest() for row in _rows(x)]
    return [int.from_bytes(digest, "little", signed=True) or 1 for digest in digests]


def derive(secret: bytes, purpose: str) -> bytes:
    """A separate key for one purpose; it reveals neither the secret nor the keys of other purposes."""
    return hmac.digest(secret, purpose.encode(), "sha256")


def digest_of(key: str) -> bytes:
    """What is stored of a client's key; 256 random bits need neither salt nor a slow hash."""
    return hashlib.sha256(key.encode()).digest()


def _rows(x: Inputs) -> list[bytes]:
    """The bytes of every row; of several named tensors one after the other, by name, as bundles may reorder them."""
    columns = [[row.tobytes() for row in _array(t)] for _, t in sorted(tensors(x).items())]
    return columns[0] if len(columns) == 1 else [b"".join(row) for row in zip(*columns, strict=True)]


def _array(t: Tensor) -> NDArray[Any]:
    return (t.view(torch.int16) if t.dtype == torch.bfloat16 else t).detach().cpu().numpy()  # numpy has no bfloat16


def draw(digests: list[bytes], count: int, size: int) -> Tensor:
    """`size` of `count` things for every digest, (n, size): the smallest of `count` keyed numbers."""
    numbers = [np.frombuffer(hashlib.shake_256(digest).digest(8 * count), np.uint64) for digest in digests]
    order: NDArray[np.intp] = np.stack(numbers).argsort(axis=1, kind="stable")[:, :size]
    return torch.from_numpy(np.sort(order, axis=1))


def check_secret(secret: object) -> bytes:
    """The caller's secret, if it is long enough to be one."""
    if not isinstance(secret, bytes) or len(secret) < SECRET_BYTES:
        got = f"{len(secret)} bytes" if isinstance(secret, bytes) else type(secret).__name__
        raise SecretError(f"expected a secret of at least {SECRET_BYTES} bytes, got {got}")
    return secret


def new_secret() -> bytes:
    """A fresh secret."""
    return secrets.token_bytes(SECRET_BYTES)


def secret_path(bundle: str | os.PathLike[str]) -> Path:
    """Where the secret of a bundle lives: beside the folder, never inside, so that a copied bundle leaks nothing."""
    folder = Path(bundle).resolve()
    return folder.with_name(folder.name + ".secret")


def write_secret(path: Path, secret: bytes, *, overwrite: bool = True) -> None:
    """Put the secret into a file that its owner alone may read, whole or not at all."""
    write_atomically(path, secret.hex() + "\n", private=True, overwrite=overwrite)


def read_private(path: Path) -> str:
    """The text of a file that nobody but its owner may read, without the end of its line."""
    try:
        with path.open() as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise SecretError(f"secret file '{path}' can be read by others: chmod 600 '{path}'")
            return file.read().strip()
    except (OSError, ValueError) as error:
        raise SecretError(f"cannot read the secret file '{path}': {error}") from error


def read_secret(path: Path) -> bytes:
    """The secret in a file, which nobody but its owner may read."""
    text = read_private(path)
    try:
        secret = bytes.fromhex(text)
    except ValueError as error:
        raise SecretError(f"cannot read the secret file '{path}': {error}") from error
    if len(secret) < SECRET_BYTES:
        raise SecretError(
            f"secret file '{path}' must hold at least {SECRET_BYTES} bytes in hexadecimal, got {len(secret)}"
        )
    return secret


def secret_for(bundle: str | os.PathLike[str]) -> bytes:
    """The bundle's secret; made on first use, which a warning says, and also if it could not be stored."""
    path = secret_path(bundle)
    if path.exists():
        return read_secret(path)
    secret = new_secret()
    try:
        write_secret(path, secret, overwrite=False)
    except FileExistsError:  # another process was faster
        return read_secret(path)
    except OSError as error:
        warnings.warn(
            f"cannot store a secret at '{path}' ({error.strerror}): this process uses its own, so another process or a "
            "restart may draw other shadow models for the same query",
            stacklevel=2,
        )
    else:
        warnings.warn(
            f"made a secret for this bundle, '{path}': keep it, and copy it wherever the bundle goes",
            ProtectionWarning,
            stacklevel=2,
        )
    return secret


def check_not_lost(bundle: str | os.PathLike[str], ledger: Ledger, identity: str) -> None:
    """Raise if the bundle has no secret though the ledger has been used, so that a new one would change answers."""
    path = secret_path(bundle)
    if path.exists():
        return
    if ledger.fact(f"{FACT} {identity}") is not None or next(iter(ledger.each_standing()), None) is not None:
        raise SecretError(f"no secret '{path}', and this ledger has been used with one: {WAYS_OUT}")


def remember_secret(ledger: Ledger, identity: str, secret: bytes, *, replace: bool = False) -> None:
    """Have the ledger remember the secret of the bundle with this identity, by a digest that does not reveal it.

    Raises if it remembers another one of the same bundle, unless that may be replaced. Every bundle has a place of its
    own, so that one that is served by mistake does not make the ledger forget the secret of another.
    """
    own = derive(secret, "a ledger remembers this secret").hex()[:32]
    if ledger.set_fact(f"{FACT} {identity}", own, replace=replace) != own:
        raise SecretError(f"the secret of this bundle is not the one that this ledger was used with: {WAYS_OUT}")
