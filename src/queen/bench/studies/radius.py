"""How far from a record a query still repeats it (radius rho, in spreads of the class)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from queen.bench.studies.base import Lab, Result, Study
from queen.bench.studies.formatting import pool_name, span
from queen.bench.studies.limits import Ablation, draw_sweep, sweep, tell_sweep


@dataclass(frozen=True, kw_only=True)
class Radius(Ablation):
    """The radii, at one threshold."""

    radii: tuple[float, ...] = (0.02, 0.1, 0.2, 0.4, 0.8)
    threshold: float = 0.2


def measure(lab: Lab, asked: Radius) -> dict[str, Any]:
    """Rows of a sweep."""
    return {"rows": sweep(lab, asked, "radius", asked.radii, {"threshold": asked.threshold})}


def draw(result: Result) -> bytes:
    """Shares and accuracies over the radii."""
    return draw_sweep(result, "radius", "rho")


def tell(result: Result) -> str:
    """The table, and where most answers are reversed."""
    lines = [tell_sweep(result, "radius")]
    asked = result["config"]["parameters"]
    lines.append(
        f"\nThreshold {asked['threshold']:g}, {result['rows'][0]['queries']} queries, seeds {asked['seeds']}.\n"
    )
    for pool in asked["pools"]:
        for defense in asked["defenses"]:
            rows = [row for row in result["rows"] if (row["pool"], row["defense"]) == (pool, defense)]
            most = max(rows, key=lambda row: row["verdicts"]["B"])
            lines.append(
                f"- {defense}, {pool_name(pool)} images: recorded {span(row['verdicts']['C'] for row in rows)}; most "
                f"spent (B) at radius {most['value']:g} ({100 * most['verdicts']['B']:.1f} %), where the direct thief "
                f"has {span(most['thief'].get('direct', [0]))} and one benign client "
                f"{100 * most['benign']['one_client']:.1f} %.\n"
            )
    return "".join(lines)


STUDY = Study(Radius, measure, draw, tell)
