"""What `queen.check` finds: one value per thing that is wrong, and how it prints."""

from __future__ import annotations

import re
from dataclasses import dataclass

EXPECTED = re.compile(r"(?s)expected (?P<expected>.+?), got (?P<got>.+?)(?:: (?P<fix>.+))?")


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: what was expected, what came, and what to do. `stops`: `queen.protect` would refuse."""

    what: str
    expected: str
    got: str
    fix: str
    stops: bool = False

    def __str__(self) -> str:
        """In one line."""
        sign = "STOPS" if self.stops else "note"
        expected = f"expected {self.expected}, got {self.got}" if self.expected else self.got
        return f"{sign}  {self.what}: {expected}" + (f". {self.fix[:1].upper()}{self.fix[1:]}" if self.fix else "")

    @classmethod
    def of(cls, what: str, error: Exception) -> Finding:
        """What an error of ours says, which stops."""
        said = " ".join(str(error).split())
        parts = EXPECTED.fullmatch(said)
        if parts is None:
            return cls(what, "", said, "", stops=True)
        return cls(what, parts["expected"], parts["got"], parts["fix"] or "", stops=True)


class Findings(list[Finding]):
    """All of them, the first that stops first; they print one a line."""

    @property
    def stops(self) -> bool:
        """Whether `queen.protect` would refuse."""
        return any(finding.stops for finding in self)

    def __str__(self) -> str:
        """One line each."""
        return "\n".join(map(str, self)) or "nothing is wrong: queen.protect will take this model and these data"

    __repr__ = __str__
