"""Networks, tensors and JSON that are slow to compute, stored under a hash of their inputs and shared between cells."""

from __future__ import annotations

import copy
import fcntl
import hashlib
import importlib.util
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from queen.atomic import make_folder, write_atomically


@dataclass(frozen=True)
class Timed:
    """Something that was computed, how many seconds that took, and whether somebody did it before."""

    value: Any
    seconds: float
    reused: bool


class Cache:
    """A folder of networks, tensors and JSON files.

    Files appear whole or not at all, and no two processes compute the same one.
    """

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

    def tensors(self, name: str, find: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Tensors by name, on the CPU: read from the file, or computed by `find` and stored."""
        path = self.folder / f"{name}.safetensors"
        with self.lock(name):
            if path.exists():
                try:
                    return load_file(path)
                except SafetensorError:  # damaged: find them again
                    path.unlink()
            plain = {key: value.detach().cpu().contiguous() for key, value in find().items()}
            write_atomically(path, save(plain))
            return plain

    def timed(self, name: str, find: Callable[[], Any]) -> Timed:
        """Like `facts`, with the seconds that `find` took when it was called, now or then."""
        reused = True

        def find_and_time() -> dict[str, Any]:
            nonlocal reused
            reused, start = False, time.perf_counter()
            return {"value": find(), "seconds": round(time.perf_counter() - start, 3)}

        facts = self.facts(name, find_and_time)
        return Timed(facts["value"], facts["seconds"], reused)

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


@lru_cache
def code_version(*modules: str) -> str:
    """A hash of the source of these modules, and of all below those that are packages: what one version of the code
    made, another must not take for its own."""
    parts = []
    for module in modules:
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"no module '{module}' whose source could be read")
        folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
        paths = [path for folder in folders for path in sorted(folder.rglob("*.py"))] or [Path(spec.origin)]
        parts += [part for path in paths for part in (path.name.encode(), path.read_bytes())]
    return fingerprint(*parts)[:16]
