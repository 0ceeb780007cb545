"""The studies `threshold` and `radius`: one limit of the ledger takes several values, the other stays fixed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from queen.bench.render.markdown import markdown_table
from queen.bench.spec import Spec
from queen.bench.studies.base import FEW_CLIENTS, Result, Study, StudyContext
from queen.bench.studies.formatting import percent, percent_range, pool_name
from queen.bench.studies.needs import StudyNeeds
from queen.plots import png

LETTERS = "ABCD"
BENIGN = {"one_client": "benign, one client", "many_clients": "benign, many clients"}
COLOURS = {
    "label_kept": "#7a5195",
    "direct": "#c8102e",
    "label_only": "#e08a1e",
    "one_client": "#1b7f4d",
    "many_clients": "#1f5fbf",
}


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Which attackers ask which defenses at every value of the limit.

    Radii are in spreads of the class, or with `absolute_radius` in units of the map, as the paper's.
    """

    defenses: tuple[str, ...] = ("queen", "queen-strict")
    attacks: tuple[str, ...] = ("direct", "label_only")
    pools: tuple[str, ...] = ("foreign", "own_kind")
    seeds: tuple[int, ...] = (0,)
    absolute_radius: bool = False

    @property
    def radius_option(self) -> str:
        """What the defenses call such a radius."""
        return "absolute_radius" if self.absolute_radius else "radius"


@dataclass(frozen=True, kw_only=True)
class Threshold(Sweep):
    """How much a class may give away (threshold t) before answers are reversed, at one radius."""

    thresholds: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5)
    radius: float = 0.02


@dataclass(frozen=True, kw_only=True)
class Radius(Sweep):
    """How far from a record a query still repeats it (radius rho), at one threshold."""

    radii: tuple[float, ...] = (0.02, 0.1, 0.2, 0.4, 0.8)
    threshold: float = 0.2


def measure_threshold(context: StudyContext, parameters: Threshold) -> dict[str, Any]:
    """The rows of a sweep over the thresholds."""
    fixed = {parameters.radius_option: parameters.radius}
    return _sweep(context, parameters, "threshold", parameters.thresholds, fixed)


def measure_radius(context: StudyContext, parameters: Radius) -> dict[str, Any]:
    """The rows of a sweep over the radii."""
    return _sweep(context, parameters, parameters.radius_option, parameters.radii, {"threshold": parameters.threshold})


def _sweep(
    context: StudyContext, parameters: Sweep, limit: str, values: Sequence[float], fixed: Result
) -> dict[str, Any]:
    """One row per pool, defense and value: verdict shares of the attacker's queries, thieves, benign clients.

    Benign clients do not depend on the pool, and are simulated in full for the first one only.
    """
    first_pool = parameters.pools[0]
    rows: list[dict[str, Any]] = []
    benign: dict[tuple[str, float], Any] = {}
    for pool, defense, value in context.each(limit, product(parameters.pools, parameters.defenses, values)):
        options = {**fixed, limit: value}
        utility = context.spec.utility if pool == first_pool else FEW_CLIENTS
        measure = partial(_row, context, parameters, pool, defense, options=options, utility=utility)
        depends_on = [pool, pool == first_pool, defense, options, parameters.attacks, parameters.seeds]
        row = context.cached(limit, depends_on, measure)
        shared = benign.setdefault((defense, value), row["benign"])
        rows.append(row | {"benign": shared, "pool": pool, "defense": defense, "value": value})
    return {"rows": rows}


def _row(context: StudyContext, parameters: Sweep, pool: str, defense: str, **changes: Any) -> dict[str, Any]:
    results = context.steal_all(defense, pool, parameters.attacks, parameters.seeds, **changes)
    runs = results[parameters.attacks[0]]
    return {
        "verdicts": {letter: statistics.mean(r["verdicts"].get(letter, 0.0) for r in runs) for letter in LETTERS},
        "thief": {attack: _accuracies(own) for attack, own in results.items()},
        "benign": {who: statistics.mean(r["utility"][who]["accuracy"] for r in runs) for who in BENIGN},
        "label_kept": statistics.mean(r["answers"]["label_kept"] for r in runs),
        "queries": runs[0]["queries"]["sent"],
        "flags": sorted({flag for own in results.values() for r in own for flag in r["flags"]}),
    }


def _accuracies(results: Sequence[Result]) -> list[float]:
    return [r["thief"]["accuracy"] for r in results if r["thief"]["accuracy"] is not None]


def _draw_sweep(axis_label: str, result: Result) -> bytes:
    """One column per pool and defense: above what became of the queries, below who is right how often."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

    rows = result["rows"]
    panels = list(dict.fromkeys((row["pool"], row["defense"]) for row in rows))
    figure = Figure(figsize=(1.2 + 3.1 * len(panels), 6), layout="constrained")
    grid = figure.subplots(2, len(panels), sharex=True, sharey="row", squeeze=False)
    for column, (pool, defense) in enumerate(panels):
        own = [row for row in rows if (row["pool"], row["defense"]) == (pool, defense)]
        _draw_shares(grid[0][column], own)
        _draw_accuracies(grid[1][column], own)
        grid[0][column].set_title(f"{defense}\n{pool_name(pool)} images", fontsize=10)
        grid[1][column].set_xlabel(axis_label)
        grid[1][column].set_xticks(range(len(own)), [f"{row['value']:g}" for row in own], fontsize=8)
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
    for who, label in BENIGN.items():
        axis.plot([100 * row["benign"][who] for row in rows], "s--", color=COLOURS[who], markersize=3.5, label=label)
    shares = [100 * row["label_kept"] for row in rows]
    label = "attacker's answers\nwith the right label"
    axis.plot(shares, "^:", color=COLOURS["label_kept"], markersize=3.5, label=label)
    axis.set_ylim(0, 102)
    axis.grid(axis="y", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def _of_first_thief(rows: Sequence[Result]) -> tuple[str, list[float]]:
    """The name of the first attack, and the accuracies of its thieves."""
    attack = next(iter(rows[0]["thief"]))
    return attack.replace("_", " "), [accuracy for row in rows for accuracy in row["thief"][attack]]


def _threshold_markdown(result: Result) -> str:
    """The table, and whether ratios and accuracies rise as the paper says."""

    def change(rows: Sequence[Result], letter: str) -> str:
        return f"{100 * rows[0]['verdicts'][letter]:.1f} to {100 * rows[-1]['verdicts'][letter]:.1f} %"

    def summarise(rows: Sequence[Result]) -> str:
        attack, accuracies = _of_first_thief(rows)
        return (
            f", from t = {rows[0]['value']:g} to {rows[-1]['value']:g}: recorded {change(rows, 'C')}, spent "
            f"{change(rows, 'B')}; {attack} thieves {percent_range(accuracies)}, one benign client "
            f"{percent_range(row['benign']['one_client'] for row in rows)}"
        )

    return _sweep_markdown(result, "threshold t", "radius", summarise)


def _radius_markdown(result: Result) -> str:
    """The table, and where most answers are reversed."""

    def summarise(rows: Sequence[Result]) -> str:
        most = max(rows, key=lambda row: row["verdicts"]["B"])
        attack, accuracies = _of_first_thief([most])
        return (
            f": recorded {percent_range(row['verdicts']['C'] for row in rows)}; most spent (B) at radius "
            f"{most['value']:g} ({100 * most['verdicts']['B']:.1f} %), where the {attack} thief has "
            f"{percent_range(accuracies)} and one benign client "
            f"{100 * most['benign']['one_client']:.1f} %"
        )

    return _sweep_markdown(result, "radius", "threshold", summarise)


def _sweep_markdown(result: Result, header: str, fixed: str, summarise: Callable[[Sequence[Result]], str]) -> str:
    """The table, the fixed limit, and one sentence per pool and defense."""
    parameters, rows = result["config"]["parameters"], result["rows"]
    unit = " Radii are in units of the map." if parameters.get("absolute_radius") else ""
    about = f"{fixed.capitalize()} {parameters[fixed]:g}, {rows[0]['queries']} queries, seeds {parameters['seeds']}."
    about += f"{unit}\n\n"
    sentences = []
    for pool, defense in product(parameters["pools"], parameters["defenses"]):
        own = [row for row in rows if (row["pool"], row["defense"]) == (pool, defense)]
        sentences.append(f"- {defense}, {pool_name(pool)} images{summarise(own)}.\n")
    return f"{_sweep_table(rows, header)}\n{about}{''.join(sentences)}"


def _sweep_table(rows: Sequence[Result], header: str) -> str:
    attacks = list(rows[0]["thief"])
    lines = [
        [
            pool_name(row["pool"]),
            row["defense"],
            f"{row['value']:g}",
            *(percent(row["verdicts"][letter]) for letter in "CBAD"),
            percent(row["label_kept"]),
            *(percent(*row["thief"][attack]) for attack in attacks),
            *(percent(row["benign"][who]) for who in BENIGN),
        ]
        for row in rows
    ]
    thieves = [f"thief {attack.replace('_', ' ')}" for attack in attacks]
    verdicts = ["C recorded", "B spent", "A outside", "D repeat"]
    columns = ["attacker's images", "defense", header, *verdicts, "label kept", *thieves, *BENIGN.values()]
    return markdown_table(columns, lines)


def _needs(_: Spec, parameters: Sweep) -> StudyNeeds:
    return StudyNeeds(defenses=parameters.defenses, attacks=parameters.attacks, pools=parameters.pools)


THRESHOLD = Study(Threshold, measure_threshold, partial(_draw_sweep, "threshold t"), _threshold_markdown, _needs)
RADIUS = Study(Radius, measure_radius, partial(_draw_sweep, "radius rho"), _radius_markdown, _needs)
