"""How much a class may give away (threshold t) before answers are reversed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from queen.bench.studies.base import Lab, Result, Study
from queen.bench.studies.formatting import span
from queen.bench.studies.limits import Ablation, draw_sweep, sweep, tell_sweep


@dataclass(frozen=True, kw_only=True)
class Threshold(Ablation):
    """The thresholds, at one radius."""

    thresholds: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5)
    radius: float = 0.02


def measure(lab: Lab, asked: Threshold) -> dict[str, Any]:
    """Rows of a sweep."""
    return {"rows": sweep(lab, asked, "threshold", asked.thresholds, {"radius": asked.radius})}


def draw(result: Result) -> bytes:
    """Shares and accuracies over the thresholds."""
    return draw_sweep(result, "threshold", "t")


def tell(result: Result) -> str:
    """The table, and whether ratios and accuracies rise as the paper says."""
    lines = [tell_sweep(result, "threshold t")]
    asked = result["config"]["parameters"]
    lines.append(f"\nRadius {asked['radius']:g}, {result['rows'][0]['queries']} queries, seeds {asked['seeds']}.\n")
    for pool in asked["pools"]:
        for defense in asked["defenses"]:
            rows = [row for row in result["rows"] if (row["pool"], row["defense"]) == (pool, defense)]
            first, last = rows[0], rows[-1]
            lines.append(
                f"- {defense}, {pool.replace('_', ' ')} images, from t = {first['value']:g} to {last['value']:g}: "
                f"recorded {_change(first, last, 'C')}, spent {_change(first, last, 'B')}; direct thieves "
                f"{span(a for row in rows for a in row['thief'].get('direct', [0]))}, one benign client "
                f"{span(row['benign']['one_client'] for row in rows)}.\n"
            )
    return "".join(lines)


def _change(first: Result, last: Result, letter: str) -> str:
    return f"{100 * first['verdicts'][letter]:.1f} to {100 * last['verdicts'][letter]:.1f} %"


STUDY = Study(Threshold, measure, draw, tell)
