"""What threshold and radius share: one limit takes several values, and everything that follows is counted."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from queen.bench.markdown import markdown_table
from queen.bench.studies.base import FEW, Lab, Result
from queen.bench.studies.words import percent, pool_name
from queen.plots import png

LETTERS = "ABCD"
COLOURS = {
    "kept": "#7a5195",
    "direct": "#c8102e",
    "label_only": "#e08a1e",
    "one_client": "#1b7f4d",
    "many_clients": "#1f5fbf",
}


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """Who is asked by whom while a limit changes."""

    defenses: tuple[str, ...] = ("queen", "queen-strict")
    attacks: tuple[str, ...] = ("direct", "label_only")
    pools: tuple[str, ...] = ("foreign", "own_kind")
    seeds: tuple[int, ...] = (0,)


def sweep(lab: Lab, asked: Ablation, limit: str, values: Sequence[float], fixed: Result) -> list[dict[str, Any]]:
    """A row a pool, defense and value: verdict shares of the attacker's queries, thieves, benign clients.

    Benign clients do not depend on the pool, and are simulated in full for the first one only.
    """
    tasks = list(product(asked.pools, asked.defenses, values))
    rows: list[dict[str, Any]] = []
    benign: dict[tuple[str, float], Any] = {}
    for pool, defense, value in lab.each(limit, tasks):
        options = {**fixed, limit: value}
        what = [pool, pool == asked.pools[0], defense, options, asked.attacks, asked.seeds]
        rows.append(lab.keep(limit, what, lambda p=pool, d=defense, o=options: _row(lab, asked, p, d, o)))  # type: ignore[misc]
        rows[-1]["benign"] = benign.setdefault((defense, value), rows[-1]["benign"])
        rows[-1] |= {"pool": pool, "defense": defense, "value": value}
    return rows


def _row(lab: Lab, asked: Ablation, pool: str, defense: str, options: Result) -> dict[str, Any]:
    changes: dict[str, Any] = {"options": options, "utility": lab.spec.utility if pool == asked.pools[0] else FEW}
    found = {
        attack: [lab.steal(lab.plan(defense, seed=s, attack=attack, **changes), pool) for s in asked.seeds]
        for attack in asked.attacks
    }
    runs = found[asked.attacks[0]]
    return {
        "verdicts": {letter: statistics.mean(r["verdicts"].get(letter, 0.0) for r in runs) for letter in LETTERS},
        "thief": {attack: _accuracies(results) for attack, results in found.items()},
        "benign": {
            who: statistics.mean(r["utility"][who]["accuracy"] for r in runs) for who in ("one_client", "many_clients")
        },
        "label_kept": statistics.mean(r["answers"]["label_kept"] for r in runs),
        "queries": runs[0]["queries"]["sent"],
        "flags": sorted({flag for results in found.values() for r in results for flag in r["flags"]}),
    }


def _accuracies(results: Sequence[Result]) -> list[float]:
    return [r["thief"]["accuracy"] for r in results if r["thief"]["accuracy"] is not None]


def draw_sweep(result: Result, limit: str, symbol: str) -> bytes:
    """A column a pool and defense: above what became of the queries, below who is right how often."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

    rows = result["rows"]
    panels = list(dict.fromkeys((row["pool"], row["defense"]) for row in rows))
    figure = Figure(figsize=(1.2 + 3.1 * len(panels), 6), layout="constrained")
    grid = figure.subplots(2, len(panels), sharex=True, sharey="row", squeeze=False)
    for column, (pool, defense) in enumerate(panels):
        here = [row for row in rows if (row["pool"], row["defense"]) == (pool, defense)]
        _draw_shares(grid[0][column], here)
        _draw_accuracies(grid[1][column], here)
        grid[0][column].set_title(f"{defense}\n{pool_name(pool)} images", fontsize=10)
        grid[1][column].set_xlabel(f"{limit} {symbol}")
        grid[1][column].set_xticks(range(len(here)), [f"{row['value']:g}" for row in here])
    grid[0][0].set_ylabel("attacker's queries (%)")
    grid[1][0].set_ylabel("accuracy (%)")
    for line in grid:
        line[-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return png(figure)


def _draw_shares(axis: Any, rows: Sequence[Result]) -> None:
    from queen.plots import VERDICT_COLOURS, VERDICT_WORDS  # noqa: PLC0415  (needs matplotlib)

    base = [0.0] * len(rows)
    words = {**VERDICT_WORDS, "B": "B spent (reversed)", "C": "C fresh (recorded)"}
    for letter in "CDBA":
        shares = [100 * row["verdicts"][letter] for row in rows]
        axis.bar(range(len(rows)), shares, 0.7, bottom=base, color=VERDICT_COLOURS[letter], label=words[letter])
        base = [low + share for low, share in zip(base, shares, strict=True)]
    axis.spines[["top", "right"]].set_visible(False)


def _draw_accuracies(axis: Any, rows: Sequence[Result]) -> None:
    for attack in rows[0]["thief"]:
        means = [100 * statistics.mean(row["thief"][attack] or [float("nan")]) for row in rows]
        axis.plot(means, "o-", color=COLOURS.get(attack), markersize=4, label=f"thief, {attack.replace('_', ' ')}")
    for who, word in (("one_client", "benign, one client"), ("many_clients", "benign, many clients")):
        axis.plot([100 * row["benign"][who] for row in rows], "s--", color=COLOURS[who], markersize=3.5, label=word)
    kept = [100 * row["label_kept"] for row in rows]
    axis.plot(kept, "^:", color=COLOURS["kept"], markersize=3.5, label="attacker's answers\nwith the right label")
    axis.set_ylim(0, 102)
    axis.grid(axis="y", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def tell_sweep(result: Result, limit: str) -> str:
    """The table of a sweep."""
    rows = result["rows"]
    attacks = list(rows[0]["thief"])
    header = ["attacker's images", "defense", limit, "C recorded", "B spent", "A outside", "D repeat"]
    header += ["label kept"]
    header += [f"thief {attack.replace('_', ' ')}" for attack in attacks]
    header += ["benign, one client", "benign, many clients"]
    lines = []
    for row in rows:
        shares = [percent(row["verdicts"][letter]) for letter in "CBAD"]
        thieves = [percent(*row["thief"][attack]) for attack in attacks]
        benign = [percent(row["benign"][who]) for who in ("one_client", "many_clients")]
        lines.append(
            [
                pool_name(row["pool"]),
                row["defense"],
                f"{row['value']:g}",
                *shares,
                percent(row["label_kept"]),
                *thieves,
                *benign,
            ]
        )
    return markdown_table(header, lines)
