"""The paper's CIFAR-10 table, run again: what docs/results.md and docs/honest-rerun.md say of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from queen.attacks import ATTACKS
from queen.bench.render.comparison import (
    SHARE_MARGIN,
    Paper,
    accuracy_markdown,
    is_collapsed,
    share_markdown,
    summary_markdown,
)
from queen.bench.render.leaderboard import (
    PAPERS_CELLS,
    Best,
    BoardRow,
    Leaderboard,
    Result,
    leaderboard_markdown,
    make_leaderboard,
    name_cells,
)
from queen.bench.render.markdown import markdown_table
from queen.bench.render.plots import draw_leaderboard
from queen.bench.render.table import make_entry
from queen.bench.run import is_finished, read_results
from queen.bench.spec import Spec, read_spec
from tools.strength import AFTER, BEFORE, by_cell

ROOT = Path(__file__).parents[1]
SPEC, SPEED = ROOT / "benchmarks/paper/cifar10.yaml", ROOT / "results/speed/rivals-cpu-2-cores.json"
PAPERS, ACCUSED = ROOT / "results/paper", ROOT / "results/accused"
OWN = "queen-sentinel"
WEAKER = 0.05  # by how much a direct thief must fall short of the best one to be named
FIGURES = (("believed", "label_right"), ("thief", "accuracy"))  # of a recovery attack, as results hold them


@cache
def _results() -> list[Result]:
    return list(read_results(AFTER))


@cache
def _spec() -> Spec:
    return read_spec(SPEC)


def _paper(name: str = "cifar10") -> Paper:
    return dict(json.loads((PAPERS / f"{name}.json").read_text()))


@cache
def board() -> Leaderboard:
    """The leaderboard of all that was run."""
    planned = [(cell.column, cell.query, cell.attack, cell.seed) for cell in _spec().cells()]
    return make_leaderboard(_results(), planned, query_times(_results()))


def query_times(results: Sequence[Result]) -> dict[str, float]:
    """What a query takes by column, as a multiple of the undefended one.

    It was measured with shadows that are heads on the victim's features; columns with networks for shadows have none.
    """
    ratios = json.loads(SPEED.read_text())["query_time_ratio"]
    timed = {r["column"] for r in results if r["defense"]["options"].get("shadow_kind", "head") == "head"}
    return {column: ratio for column, ratio in ratios.items() if column in timed}


def leaderboard_table() -> str:
    """The leaderboard, with what it lacks."""
    return leaderboard_markdown(board())


def leaderboard_picture() -> bytes:
    """The leaderboard as a PNG."""
    return draw_leaderboard(board())


def accuracy_table() -> str:
    """Our accuracies beside the paper's."""
    return accuracy_markdown(_results(), _paper())


def share_table() -> str:
    """Our shares of an undefended copy beside the paper's."""
    return share_markdown(_results(), _paper())


def summary_table() -> str:
    """Which thieves keep as large a share as the paper's, and which not."""
    return (
        f"{summary_markdown(_results(), _paper())}\nCompared are shares of an undefended copy; alike means within "
        f"{SHARE_MARGIN:g} points ([cell by cell](results.md#beside-the-papers-figures)).\n"
    )


def scope_line() -> str:
    """What was run, of what, and where."""
    results, spec = _results(), _spec()
    victim, cells = results[0]["protectee"], list(spec.cells())
    devices = sorted({r["hardware"]["device"] for r in results})
    missing = sum(not is_finished(cell, AFTER) for cell in cells)
    run = f"{len(cells) - missing} of the {len(cells)} cells" if missing else f"All {len(cells)} cells"
    return (
        f"{run} of `benchmarks/paper/cifar10.yaml`{' so far' if missing else ''}, seeds "
        f"{sorted({r['seed'] for r in results})}, on {', '.join(devices)}: a VGG16-BN of {board().victim:.1%}, trained "
        f"from scratch on {victim['images']['train']:,} images with SVHN as outliers (the paper's has "
        f"{_paper()['benign_accuracy']['none']:.1f}% and starts from ImageNet weights); thieves of the same kind with "
        f"{spec.budget:,} queries, images of TinyImageNet. Files: {', '.join(victim['sources'])}.\n"
    )


def story() -> str:
    """What the leaderboard shows, the sentinel first, whatever it has."""
    own = board().find(OWN)
    lines = [f"`{OWN}` was not run yet."] if own is None else [_own_line(own), _price_line(own)]
    lines += _rivals_line([one for one in board().standings if one.column not in (OWN, "none")])
    lines += _believers_line()
    lines.append(_caution_line())
    return "".join(f"- {line}\n" for line in lines)


def _own_line(own: BoardRow) -> str:
    undefended = board().find("none")
    none = f", the best undefended thief {_percent(undefended.stolen)}" if undefended else ""
    text = (
        f"Behind `{OWN}` the best of the paper's twelve attackers ({_count(own)}) gets {_named(own.published)}, and "
        f"the best of all that were run {_named(own.best)}. Always guessing one class gets {board().chance:.1%}{none}."
    )
    if own.honest is not None:
        text += f" A direct thief gets {own.honest:,.0f} honest answers to its {_spec().budget:,} queries."
    if own.encoder:
        text += f" Not counted here, because it owns the victim's encoder: {_named(own.encoder)}."
    return text


def _price_line(own: BoardRow) -> str:
    some = next(r for r in _results() if r["column"] == OWN)["utility"]
    one, many = some["one_client"], some["many_clients"]
    return (
        f"What it costs: one client that sends all {one['queries']:,} test images gets no answer to "
        f"{own.refused or 0:.1%} of them, and {_percent(own.one_client.mean)} are right; the victim itself gets "
        f"{board().victim:.1%} right. {many['clients']} clients with {many['queries']} queries each get the "
        f"victim's label for {many['agreement']:.1%} of them."
    )


def _rivals_line(rivals: Sequence[BoardRow]) -> list[str]:
    """What the strongest of the others leaves, and how far down it is from no defense at all."""
    undefended, ranked = board().find("none"), [one for one in rivals if one.stolen is not None]
    if not ranked or undefended is None or undefended.stolen is None:
        return []
    first, last = ranked[0], ranked[-1]
    between = "" if first is last else f", and behind `{last.column}` the most, {_named(last.best)} ({_cells(last)})"
    return [
        f"Of the other defenses that were run, the best thief behind `{first.column}` gets the least, "
        f"{_named(first.best)} ({_cells(first)}){between}. Without a defense it gets {_named(undefended.best)}."
    ]


def _believers_line() -> list[str]:
    """Defenses that look stronger against a thief who believes every answer than they are."""
    found = []
    for one in board().standings:
        here = [r for r in _results() if (r["column"], r["query"], r["attack"]) == (one.column, "knockoff", "direct")]
        direct = make_entry(here).mean
        if direct is not None and one.stolen is not None and one.stolen - direct > WEAKER:
            found.append(f"{direct:.1%} and {one.stolen:.1%} behind `{one.column}`")
    if not found:
        return []
    told = "A thief that believes every answer (`direct`) says little about a defense. It and the best thief get"
    return [f"{told} {'; '.join(found)}."]


def _caution_line() -> str:
    text = "Each figure is of one run: it may differ by a point with `knockoff`, and by several with `jbda_tr`."
    if len({r["seed"] for r in _results()}) > 1:
        text = "Figures are means over seeds; the full table below has their spread."
    if not any(r["attack"] in ATTACKS and ATTACKS[r["attack"]].adaptive for r in _results()):
        text += f" Attackers made against our own policies were not run here. {_adaptive_line()}"
    return text


def _adaptive_line() -> str:
    """What such attackers got from the sentinel in a run of their own."""
    results = [r for r in read_results(ACCUSED) if r["column"] == OWN]
    [own] = make_leaderboard(results, [], {}).standings
    return (
        f"With another victim and {results[0]['queries']['budget']:,} queries the best of them got {_named(own.best)} "
        f"behind the sentinel, and the thief that owns the victim's encoder {_named(own.encoder)} "
        "([policies.md](policies.md#what-attackers-get-who-know-the-sentinel))."
    )


def collapsed_table() -> str:
    """How many of the paper's figures are exactly one class's share of the test set, and which."""
    rows = []
    for path in sorted(PAPERS.glob("*.json"), key=lambda path: _paper(path.stem)["classes"]):
        paper = _paper(path.stem)
        figures = [
            (query, attack, column, value)
            for query, attacks in paper["thief_accuracy"].items()
            for attack, columns in attacks.items()
            for column, value in columns.items()
        ]
        collapsed = [cell for cell in figures if is_collapsed(cell[3], paper["classes"])]
        columns = ", ".join(dict.fromkeys(column for *_, column, _ in collapsed))
        named = name_cells((query, attack, 0) for query, attack, *_ in collapsed)
        share = f"{100 / paper['classes']:.2f} %"
        rows.append((path.stem, share, f"{len(collapsed)} of {len(figures)}", f"{columns}: {named}"))
    return markdown_table(("data set", "one class's share", "cells that are exactly that", "which"), rows)


def thrown_away_table() -> str:
    """Recovery attacks that lost right labels, before and after they believed them, beside the paper's figures."""
    before, after, paper = by_cell(BEFORE), by_cell(AFTER), _paper()["thief_accuracy"]
    rows = []
    for column, query, attack in sorted(before):
        cell = (column, query, attack)
        if cell in after and attack in ("ddae_plus", "pbayes") and column in paper[query][attack]:
            old, new = (results[cell] for results in (before, after))
            if old["believed"]["label_right"] < 0.98:
                shown = (f"{r[key][name]:.1%}" for key, name in FIGURES for r in (old, new))
                rows.append((column, attack, *shown, f"{paper[query][attack][column]:.1f}%"))
    header = ("defense", "attack", "right labels before", "after", "thief before", "after", "the paper's thief")
    return markdown_table(header, rows)


def _named(best: Best | None) -> str:
    return "nothing" if best is None else f"{_percent(best.entry.mean)} ({best.query} {best.attack})"


def _count(one: BoardRow) -> str:
    count = one.published.count if one.published else 0
    return "all of them run" if count == len(PAPERS_CELLS) else f"{count} of the {len(PAPERS_CELLS)} run so far"


def _cells(one: BoardRow) -> str:
    return "all its cells run" if one.complete else f"{one.run} of {one.run + len(one.missing)} cells run so far"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
