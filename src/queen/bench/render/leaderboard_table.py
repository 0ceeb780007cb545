"""The leaderboard as Markdown, with what it lacks below it."""

from __future__ import annotations

from collections.abc import Callable

from queen.bench.render.leaderboard import (
    DASH,
    FARTHEST,
    KEEPS,
    LABELS,
    PAPERS_CELLS,
    TAKEN,
    Best,
    BoardRow,
    Leaderboard,
    name_cells,
)
from queen.bench.render.markdown import markdown_list, markdown_table
from queen.bench.render.table import ENCODER, EXPLAINED, FLAG

HEADER = (
    *("defense", "best thief", "by", "of the paper's twelve", "with the victim's encoder", "one client right"),
    *("many clients", "distortion", "refused", "honest answers leaked", "time", "cells run", "flagged"),
)
# Of the marks behind a thief.
MEANINGS = {
    **EXPLAINED,
    TAKEN: f"takes only the labels, as on `{LABELS}`, where it was measured: at least {KEEPS:.1%} of this defense's "
    "answers have the label of the model's own.",
}


def leaderboard_markdown(board: Leaderboard) -> str:
    """The leaderboard for documents, with what it lacks below it."""
    encoders = any(standing.encoder for standing in board.standings)
    columns = [place for place, name in enumerate(HEADER) if encoders or name != "with the victim's encoder"]
    rows = [[row[place] for place in columns] for row in map(_row, board.standings)]
    return f"{markdown_table([HEADER[place] for place in columns], rows)}\n{markdown_list(_notes(board))}"


def _row(one: BoardRow) -> tuple[str, ...]:
    return (
        one.column,
        DASH if one.best is None else one.best.entry.text(),
        DASH if one.best is None else one.best.name,
        _published(one.published),
        DASH if one.encoder is None else f"{one.encoder.entry.text()} ({one.encoder.name})",
        one.one_client.text(),
        one.many_clients.text(),
        _text(one.l1, lambda value: f"{value:.3f}"),
        _text(one.refused, lambda value: f"{value:.1%}"),
        _text(one.honest, lambda value: f"{value:,.0f}"),
        _text(one.time, lambda value: f"{value:.2f}"),
        f"{one.run} of {one.run + len(one.missing)}",
        f"{one.flagged}{f' (and {one.explained} explained)' if one.explained else ''}",
    )


def _published(best: Best | None) -> str:
    if best is None:
        return DASH
    return best.entry.text() + ("" if best.count == len(PAPERS_CELLS) else f" ({best.count} run)")


def _text(value: float | None, form: Callable[[float], str]) -> str:
    return DASH if value is None else form(value)


def _notes(board: Leaderboard) -> list[str]:
    notes = [
        "Best thief: the highest accuracy of a copy in percent, over all attacks that were run. Rows are in the order "
        "of the paper's attackers, whom all defenses met. "
        f"The victim has {board.victim:.1%}, always guessing one class {board.chance:.1%}.",
        "One client sends the whole test set; a refused query counts as wrong. Distortion: the mean L1 distance from "
        "its answers to the victim's own. Honest answers leaked: how many unchanged answers (rounded, where the policy "
        "rounds) `direct` gets with `knockoff`; a changed answer can still give the label away. Time: of one query, "
        "where the undefended victim takes 1, if it was measured with the settings of this row.",
    ]
    notes += fairness_note(board)
    beyond = [one.column for one in board.standings if one.l1 is not None and one.l1 > FARTHEST]
    if beyond:
        notes.append(
            f"{', '.join(beyond)}: no two probability vectors are more than 2 apart; what this column answers are none."
        )
    shown = {letter for one in board.standings for best in (one.best, one.encoder) if best for letter in best.attack}
    notes += [f"{mark} {meaning}" for mark, meaning in MEANINGS.items() if mark in shown]
    if ENCODER in shown:
        notes.append(
            "Thieves that own the victim's encoder have a column of their own: they start with most of the model."
        )
    if any(one.flagged for one in board.standings):
        notes.append(
            f"{FLAG} flagged: a run that proves nothing, because its thief failed for another reason than the defense."
        )
    lacking: dict[str, list[str]] = {}
    for one in board.standings:
        if one.untried:
            lacking.setdefault(name_cells(one.untried), []).append(one.column)
    notes += [f"Not run yet on {', '.join(columns)}: {cells}." for cells, columns in lacking.items()]
    few_seeds = [one.column for one in board.standings if len(one.missing) > len(one.untried)]
    if few_seeds:
        notes.append(f"Not run yet with all their seeds: some attacks on {', '.join(few_seeds)}.")
    if board.not_run:
        notes.append(f"Not run yet at all: {', '.join(board.not_run)}.")
    return notes


def fairness_note(board: Leaderboard) -> list[str]:
    """That the best thieves of some defenses come out of fewer attackers, if it is so."""
    if not board.less_tried:
        return []
    return [
        f"Fewer attackers were run against {', '.join(board.less_tried)}, most of them the paper's: compare these "
        "defenses with the others by the best of the paper's twelve."
    ]
