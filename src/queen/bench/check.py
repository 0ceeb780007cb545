"""A gate for continuous integration: no stolen copy may be better than allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from queen.defenses.base import nearest
from queen.errors import OptionError

UNDEFENDED = "none"


def problems(
    results: Sequence[Mapping[str, Any]],
    *,
    max_thief: float,
    min_benign: float | None = None,
    columns: Sequence[str] | None = None,
    allow_flags: bool = False,
) -> list[str]:
    """Why the results do not pass: thieves that are too good, benign clients worse off, results that prove nothing.

    Undefended results are not judged. A flagged one is no success of a defense, so it is a problem, too, unless the
    flag is explained.
    """
    for name, bound in (("max_thief", max_thief), ("min_benign", min_benign)):
        if bound is not None and not 0 <= bound <= 1:
            raise OptionError(f"{name} must be a number from 0 to 1, got {bound!r}")
    known = {r["column"]: r for r in results}
    for column in columns or ():
        if column not in known:
            raise OptionError(f"there are no results of '{column}' to check{nearest(column, known)}")
    judged = [r for r in results if (r["column"] in columns if columns else r["defense"]["name"] != UNDEFENDED)]
    if not judged:
        raise OptionError("there are no results to check")
    listed = []
    for result in judged:
        name = f"{result['column']}, {result['query']}, {result['attack']}, seed {result['seed']}"
        accuracy = result["thief"].get("best_accuracy")
        if accuracy is not None and accuracy > max_thief:
            listed.append(f"{name}: the thief reaches {accuracy:.1%}, allowed are {max_thief:.1%}")
        benign = result["utility"]["many_clients"]["accuracy"]
        if min_benign is not None and benign < min_benign:
            listed.append(f"{name}: benign clients get {benign:.1%}, at least {min_benign:.1%} are asked for")
        if not allow_flags:
            listed += [f"{name}: {flag}" for flag in result["flags"] if flag not in result.get("explained", {})]
    return listed
