"""How far a ledger had come, remembered outside of it, so that one that has lost state is noticed.

A ledger has an id and epochs, counters that rise while it is written to: one for a file or a Redis, several for the
servers of a cluster. A witness remembers both, in memory and in a small file. It learns an epoch only after the ledger
has made it durable, so an honest ledger is never behind its witness, whenever either is killed; a ledger that is, or
that has another id, has lost what it had acknowledged. An operator may accept that: then the ledger gets a new id and
lists the old one, and every witness of the old one believes it again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from queen.atomic import write_atomically
from queen.errors import LedgerError, LostStateError, OptionError

ID, EPOCH, ACCEPTED = "id", "epoch", "accepted"  # facts of a ledger: its id, how far it has come, ids it came after
LOGGER = logging.getLogger(__name__)
EVERY = 1.0  # seconds between two rises of a file's epoch, and between two writings of a witness


def new_id() -> str:
    """An id that no other ledger has."""
    return secrets.token_hex(8)


def is_id(text: object) -> bool:
    """Whether this may be the id of a ledger."""
    return isinstance(text, str) and re.fullmatch("[0-9a-f]{16}", text) is not None


def check_id(text: str) -> str:
    """The id, or `OptionError` if it cannot be that of a ledger."""
    if not is_id(text):
        raise OptionError(f"expected the id that the error names, 16 digits and letters a to f, got {text!r}")
    return text


def witness_path(folder: Path, name: str) -> Path:
    """The file in a folder for the witness of a ledger; `name` is the ledger's, without a password."""
    return folder / f"ledger-{hashlib.sha256(name.encode()).hexdigest()[:16]}.witness"


class Witness:
    """The id of a ledger and the highest epoch of each of its parts; without a path only while the process lives.

    `problem` is what is wrong with the ledger, from the moment it is noticed until all of it was found right again;
    `is_new` says that something is not written yet.
    """

    def __init__(self, name: str, path: Path | None = None) -> None:
        self.name, self.path = name, path
        self.id: str | None = None
        self.problem: LostStateError | None = None
        self._epochs: dict[str, int] = {}
        self._at = ""  # when it was written
        self.is_new, self._written = False, time.monotonic()
        self._is_failing = False  # whether the file could not be written last time
        self._lock = threading.Lock()
        if path is not None:
            self.id, self._epochs, self._at = _read(path)

    def epochs(self) -> Mapping[str, int]:
        """The epochs of all parts now; ask before you ask the ledger, for other threads go on meanwhile."""
        return dict(self._epochs)

    def epoch(self, part: str) -> int:
        """The epoch of one part now."""
        return self._epochs.get(part, 0)

    def meet(self, ledger_id: str | None, accepted: str | None) -> None:
        """Raise `LostStateError` unless this is the ledger that was known, or one accepted in its place.

        `accepted` lists the ids after which the ledger may come; one that was just made has no id.
        """
        if self.id is None or ledger_id == self.id:
            return
        if ledger_id is not None and self.id in (accepted or "").split():
            self.id, self._epochs, self.problem, self.is_new = ledger_id, {}, None, True
            return
        raise self._lost("is empty" if ledger_id is None else "is not the same ledger as before")

    def compare(self, part: str, epoch: int, before: int) -> None:
        """Raise `LostStateError` if a part is at a lower epoch than it was `before` it was asked.

        Where another ledger was accepted meanwhile, its epochs are as they are.
        """
        if epoch < min(before, self.epoch(part)):
            raise self._lost(f"went back in time: it is at epoch {epoch}")

    def _lost(self, what: str) -> LostStateError:
        where = f"--home '{self.path.parent}'" if self.path else "--force"
        epoch, when = max(self._epochs.values(), default=0), f" of {self._at}" if self._at else ""
        self.problem = LostStateError(
            f"ledger '{self.name}' {what}, but epoch {epoch}{when} was seen here, so records are lost and nobody is "
            "answered: put the newer copy back, or accept the loss: "
            f"queen ledger accept {self.id} --ledger '{self.name}' {where}"
        )
        return self.problem

    def note(self, ledger_id: str | None, epochs: Mapping[str, int]) -> None:
        """Remember what the ledger has made durable."""
        with self._lock:
            self.is_new = self.is_new or ledger_id not in (None, self.id)
            self.id = ledger_id or self.id
            for part, epoch in epochs.items():
                if epoch > self._epochs.get(part, 0):
                    self._epochs[part], self.is_new = epoch, True

    def save(self, *, every: float = 0.0) -> None:
        """Write the file if there is something new, and `every` so many seconds at most.

        A file that cannot be written now is written later: one that is behind is still right, only less strict. The log
        says so, and when it is written again.
        """
        if self.path is None or not self.is_new or time.monotonic() < self._written + every:
            return
        with self._lock:
            self._written, self.is_new = time.monotonic(), False
            at = time.strftime("%Y-%m-%d %H:%M:%S")
            content = {"ledger": self.name, "id": self.id, "epochs": self._highest(), "at": at}
        try:
            write_atomically(self.path, json.dumps(content, indent=1) + "\n", private=True)
            self._at = at
        except OSError as error:
            self.is_new = True
            self._log_failure(error)
        else:
            self._log_failure(None)

    def _log_failure(self, error: OSError | None) -> None:
        """Log that the file cannot be written, and that it can be again, once each."""
        failed, self._is_failing = self._is_failing, error is not None
        if error is not None and not failed:
            LOGGER.warning(
                "witness '%s' cannot be written (%s): a ledger that loses records while the server is stopped may "
                "not be noticed. It is tried again all the time",
                self.path,
                error.strerror or error,
            )
        elif failed and error is None:
            LOGGER.warning("witness '%s' is written again", self.path)

    def _highest(self) -> dict[str, int]:
        """Our epochs, or those in the file where another process has written higher ones."""
        with suppress(LedgerError):
            other, epochs, _ = _read(self.path) if self.path else (None, {}, "")
            if other == self.id:
                return {part: max(epochs.get(part, 0), self.epoch(part)) for part in {*epochs, *self._epochs}}
        return dict(self._epochs)


def _read(path: Path) -> tuple[str | None, dict[str, int], str]:
    """Id, epochs and date in a file; nothing if there is none."""
    try:
        content = json.loads(path.read_bytes())
        epochs = {str(part): int(epoch) for part, epoch in content["epochs"].items()}
        if not is_id(content["id"]):
            raise ValueError("no id")
        return content["id"], epochs, str(content["at"])
    except FileNotFoundError:
        return None, {}, ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerError(
            f"witness '{path}' cannot be read ({error}), so nobody knows whether the ledger has lost records: "
            "delete the file if you are sure that it has not"
        ) from error
