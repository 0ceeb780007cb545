"""Networks and JSON that are slow to compute, stored under a hash of their inputs and shared between cells."""

from __future__ import annotations

import copy
import fcntl
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from queen.atomic import make_folder, write_atomically


class Cache:
    """A folder of networks and JSON files. Files appear whole or not at all; no two processes compute the same one."""

    def __init__(self, folder: Path) -> None:
        self.folder = make_folder(folder)

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Let one process at a time work under this name; the lock ends with the process, even if it is killed."""
        with (self.folder / f".{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def network(self, name: str, blank: nn.Module, teach: Callable[[nn.Module], nn.Module]) -> nn.Module:
        """A network like `blank` with its stored weights; if there are none, `teach` makes them now.

        Weights always come from the file, so that the first and every later process compute exactly the same.
        """
        path = self.folder / f"{name}.safetensors"
        with self.lock(name):
            if path.exists():
                stored = copy.deepcopy(blank)  # loading weights that do not fit may fail halfway
                try:
                    stored.load_state_dict(load_file(path))
                    return stored.eval()
                except (SafetensorError, RuntimeError):  # damaged, or of another version: make it again
                    path.unlink()
            weights = teach(copy.deepcopy(blank)).state_dict()
            plain = {key: value.detach().cpu().contiguous() for key, value in weights.items()}
            write_atomically(path, save(plain))
            blank.load_state_dict(plain)
            return blank.eval()

    def facts(self, name: str, find: Callable[[], Any]) -> Any:
        """Anything that JSON can hold: read from the file, or computed by `find` and stored."""
        path = self.folder / f"{name}.json"
        with self.lock(name):
            if path.exists():
                try:
                    return json.loads(path.read_text())
                except ValueError:  # damaged: find it again
                    path.unlink()
            text = json.dumps(find())
            write_atomically(path, text)
            return json.loads(text)


def fingerprint(*parts: bytes | Tensor) -> str:
    """A hash of bytes and tensors, to name what is computed from them."""
    sha = hashlib.sha256()
    for part in parts:
        if isinstance(part, bytes):
            sha.update(f"{len(part)}:".encode() + part)
        else:
            sha.update(repr((part.dtype, tuple(part.shape))).encode())
            sha.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()[:32]
