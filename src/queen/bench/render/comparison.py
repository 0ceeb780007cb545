"""Our matrix beside the figures that the paper prints, cell by cell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from queen.bench.render.leaderboard import DASH, PAPERS_CELLS, Result, name_cells
from queen.bench.render.markdown import markdown_list, markdown_table
from queen.bench.render.table import FLAG, Entry, make_entry, sort_by
from queen.defenses import DEFENSES

Paper = Mapping[str, Any]  # a file of results/paper
MORE, LESS, COLLAPSED = "▲", "▼", "⊘"
# Points from which on a difference is marked. Shares of what undefended thieves get vary more: JBDA-TR's thieves are
# half as good, so that the same noise is twice as large a share.
ACCURACY_MARGIN, SHARE_MARGIN = 5.0, 10.0
# Columns of ours that are the paper's QUEEN in other settings: as it is described, and as it was released.
SAME_METHOD = {"queen-paper": "queen", "queen-artifact": "queen"}


@dataclass(frozen=True)
class Pair:
    """Accuracies of one thief in percent, here and in the paper, and the shares of an undefended copy that they are.

    A share is the accuracy above chance as a percentage of that of the best undefended thief with the same queries.
    What was not run here is None. `flagged` says that our run proves nothing.
    """

    column: str
    query: str
    attack: str
    ours: float | None
    theirs: float
    share: float | None
    their_share: float
    flagged: bool
    collapsed: bool

    @property
    def more(self) -> float | None:
        """By how many points our share is larger."""
        return None if self.share is None else self.share - self.their_share


def pair_up(results: Sequence[Result], paper: Paper) -> list[Pair]:
    """Every cell of the paper's table, for each of our columns that stands in it."""
    chance, their_chance = 100 * results[0]["protectee"]["chance"], 100 / paper["classes"]
    undefended = _undefended(results)
    theirs = {q: max(row["none"] for row in rows.values()) for q, rows in paper["thief_accuracy"].items()}
    pairs = []
    for column in compared_columns(results, paper):
        for query, attack in PAPERS_CELLS:
            entry = _entry(results, column, query, attack)
            value = None if entry.mean is None else 100 * entry.mean
            printed = paper["thief_accuracy"][query][attack][SAME_METHOD.get(column, column)]
            reference = undefended.get(query)
            pairs.append(
                Pair(
                    *(column, query, attack, value, printed),
                    None if value is None or reference is None else _share(value, chance, reference),
                    _share(printed, their_chance, theirs[query]),
                    flagged=bool(entry.flags),
                    collapsed=is_collapsed(printed, paper["classes"]),
                )
            )
    return pairs


def compared_columns(results: Sequence[Result], paper: Paper) -> tuple[str, ...]:
    """Our columns that the paper has figures for."""
    columns = sort_by((r["column"] for r in results), DEFENSES)
    return tuple(column for column in columns if SAME_METHOD.get(column, column) in paper["benign_accuracy"])


def is_collapsed(printed: float, classes: int) -> bool:
    """Whether a printed figure is exactly one class's share of the test set, to the two decimals of the paper."""
    return abs(printed - 100 / classes) < 0.005


def _entry(results: Sequence[Result], column: str, query: str, attack: str, metric: str = "accuracy") -> Entry:
    here = [r for r in results if (r["column"], r["query"], r["attack"]) == (column, query, attack)]
    return make_entry(here, metric)


def _share(accuracy: float, chance: float, undefended: float) -> float:
    return 100 * (accuracy - chance) / (undefended - chance)


def _undefended(results: Sequence[Result]) -> dict[str, float]:
    """The best of our undefended thieves by query strategy, in percent, among the paper's attacks."""
    found: dict[str, float] = {}
    for query, attack in PAPERS_CELLS:
        mean = _entry(results, "none", query, attack).mean
        if mean is not None:
            found[query] = max(100 * mean, found.get(query, 0.0))
    return found


def accuracy_markdown(results: Sequence[Result], paper: Paper) -> str:
    """Accuracies, ours / the paper's, with the best thief and the benign client below them."""
    pairs, columns = pair_up(results, paper), compared_columns(results, paper)
    rows = _cell_rows(pairs, columns, lambda pair: _side_by_side(pair.ours, pair.theirs, ACCURACY_MARGIN, pair))
    for name, key, metric in (
        ("max", "best_thief_accuracy", "accuracy"),
        ("max agreement", "best_thief_agreement", "agreement"),
    ):
        best = [_best_of_twelve(results, column, metric) for column in columns]
        printed = [paper[key][SAME_METHOD.get(column, column)] for column in columns]
        rows.append(("", name, *(_side_by_side(a, b, ACCURACY_MARGIN) for a, b in zip(best, printed, strict=True))))
    rows.append(("", "benign accuracy, one client", *(_benign(results, paper, column) for column in columns)))
    notes = [
        f"Each entry: our figure / the paper's, in percent. {MORE} ours is more than {ACCURACY_MARGIN:g} points "
        f"higher, {LESS} lower. The paper's networks start from ImageNet weights, ours from nothing. So the levels "
        "differ even without a defense; the next table corrects for that.",
        f"{COLLAPSED} the paper's figure is exactly the share of one class in the test set: this is what a thief gets "
        "that gives every image the same label.",
        *_lacking(pairs, columns, paper),
    ]
    return _with_notes(markdown_table(("query", "attack", *columns), rows), notes)


def share_markdown(results: Sequence[Result], paper: Paper) -> str:
    """Shares of an undefended copy that thieves keep, ours / the paper's."""
    pairs, columns = pair_up(results, paper), compared_columns(results, paper)
    rows = _cell_rows(
        pairs, columns, lambda pair: _side_by_side(pair.share, pair.their_share, SHARE_MARGIN, pair, digits=0)
    )
    notes = [
        "What a defense leaves to a thief, wherever networks start: its accuracy above chance, in percent of what the "
        "best undefended thief with the same queries has. Each entry: our figure / the paper's. "
        f"{MORE} ours is more than {SHARE_MARGIN:g} points higher, {LESS} lower. This is twice the margin of the table "
        "above, because one point of JBDA-TR's weak thieves is two points of their share.",
    ]
    return _with_notes(markdown_table(("query", "attack", *columns), rows), notes)


def summary_markdown(results: Sequence[Result], paper: Paper) -> str:
    """For each defense, which thieves keep as large a share of an undefended copy as the paper's, and which do not."""
    pairs = pair_up(results, paper)
    rows = []
    for column in compared_columns(results, paper):
        compared = [pair for pair in pairs if pair.column == column and pair.more is not None]
        more, less = ([pair for pair in compared if sign * (pair.more or 0) > SHARE_MARGIN] for sign in (1, -1))
        alike = [pair for pair in compared if pair not in more and pair not in less]
        rows.append((column, f"{len(compared)} of {len(PAPERS_CELLS)}", *map(_name_pairs, (alike, more, less))))
    header = ("defense", "cells compared", "alike", f"{MORE} our thief keeps more", f"{LESS} our thief keeps less")
    return markdown_table(header, rows)


def _name_pairs(pairs: Iterable[Pair]) -> str:
    return name_cells((pair.query, pair.attack, 0) for pair in pairs) or DASH


def _cell_rows(pairs: Sequence[Pair], columns: Sequence[str], text: Callable[[Pair], str]) -> list[tuple[str, ...]]:
    by_cell = {(pair.column, pair.query, pair.attack): pair for pair in pairs}
    return [(*cell, *(text(by_cell[column, *cell]) for column in columns)) for cell in PAPERS_CELLS]


def _side_by_side(
    ours: float | None, theirs: float, margin: float, pair: Pair | None = None, *, digits: int = 1
) -> str:
    """Both figures, our flag, the mark of a difference and that of a collapsed thief of the paper's."""
    left = DASH if ours is None else f"{ours:.{digits}f}{FLAG if pair and pair.flagged else ''}"
    marks = ""
    if ours is not None and abs(ours - theirs) > margin:
        marks += f" {MORE if ours > theirs else LESS}"
    if pair and pair.collapsed:
        marks += f" {COLLAPSED}"
    return f"{left} / {theirs:.{digits}f}{marks}"


def _best_of_twelve(results: Sequence[Result], column: str, metric: str) -> float | None:
    entries = [_entry(results, column, *cell, metric) for cell in PAPERS_CELLS]
    return max((100 * entry.mean for entry in entries if entry.mean is not None), default=None)


def _benign(results: Sequence[Result], paper: Paper, column: str) -> str:
    by_seed = {r["seed"]: r["utility"]["one_client"]["accuracy"] for r in results if r["column"] == column}
    mean = Entry(tuple(by_seed.values())).mean
    printed = paper["benign_accuracy"][SAME_METHOD.get(column, column)]
    return _side_by_side(None if mean is None else 100 * mean, printed, ACCURACY_MARGIN)


def _lacking(pairs: Sequence[Pair], columns: Sequence[str], paper: Paper) -> list[str]:
    """What the comparison lacks: cells, and columns of the paper."""
    open_cells = [pair for pair in pairs if pair.ours is None]
    without = [name for name in paper["benign_accuracy"] if name not in {SAME_METHOD.get(c, c) for c in columns}]
    notes = []
    if open_cells:
        partial = dict.fromkeys(pair.column for pair in open_cells)
        notes.append(f"A dash is not run yet, so `max` is over fewer cells here in {', '.join(partial)}.")
    if without:
        notes.append(f"Columns of the paper that were not run yet: {', '.join(without)}.")
    return notes


def _with_notes(table: str, notes: Iterable[str]) -> str:
    return f"{table}\n{markdown_list(notes)}"
