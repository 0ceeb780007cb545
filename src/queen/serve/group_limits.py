"""Limits of a kind of group, and amounts such as 2000 or 2000/day, as settings hold them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from queen.allowance import read_amount
from queen.options import Group, Limits


def _read(value: object) -> object:
    """Numbers in text, as they come from the environment, as numbers; whether they are right is said by `Limits`."""
    return read_amount(value) if isinstance(value, str) else value


Amount = Annotated[int | float | str | None, BeforeValidator(_read)]


class GroupLimits(BaseModel):
    """Limits of one kind of group; see `queen.options.Group`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    radius: float | None = None
    threshold: Amount = None
    extra_answers: Amount = None
    enforce_alarm: bool = False

    def with_defaults(self, limits: Limits) -> Group:
        """A group with these limits, and those of the guard where none is set."""
        own = self.model_dump(exclude={"enforce_alarm"}, exclude_none=True)
        return Group(limits=replace(limits, **own), enforce_alarm=self.enforce_alarm)
