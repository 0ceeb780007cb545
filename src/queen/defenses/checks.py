"""The check of a defense's numeric options."""

from __future__ import annotations

import math

from queen.errors import OptionError


def check_number(name: str, value: object, low: float, high: float = math.inf, *, above: bool = False) -> None:
    """Refuse anything but a finite number from `low` (excluded if `above`) to `high`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and math.isfinite(value) and low <= value <= high and not (above and value == low):  # type: ignore[arg-type, operator]
        return
    least = f"above {low:g}" if above else f"of at least {low:g}"
    most = "" if high == math.inf else f" and at most {high:g}"
    raise OptionError(f"{name} must be a finite number {least}{most}, got {value!r}")
