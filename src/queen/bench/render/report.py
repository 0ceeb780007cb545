"""The benchmark's HTML report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from typing import Any

from queen.bench.render.html_page import html_page, html_picture, html_section, html_table
from queen.bench.render.plots import draw_matrix, draw_tradeoff
from queen.bench.render.table import BEST, BEST_ADAPTIVE, Row, Table, tables


def html_report(results: Sequence[Mapping[str, Any]], *, title: str, sizes: Mapping[str, tuple[Any, Any]]) -> str:
    """The whole page; `sizes` are those that differ from the published ones: name -> (here, published)."""
    chance = {r["protectee"]["name"]: r["protectee"]["chance"] for r in results}
    parts = [_part(table, chance[table.protectee]) for table in tables(results)]
    lines = [f"{name}: {here} instead of {published}" for name, (here, published) in sizes.items()]
    if lines:
        listed = "".join(f"<li>{escape(line)}</li>" for line in lines)
        parts.append(f"<h2>Sizes that differ from the published ones</h2><ul>{listed}</ul>")
    return html_page(title, "".join(parts))


def _part(table: Table, chance: float) -> str:
    names = ("query", "attack", *(name.replace("_", " ") for name in table.columns))  # so that they may wrap
    rows = [(row.query, row.name, *row.texts()) for row in table.rows]
    shown = html_section(table.protectee, html_table(names, rows, map(_kind, table.rows)), table.notes)
    pictures = {
        "Every thief": partial(draw_matrix, table),
        "What the best thief and benign clients get": partial(draw_tradeoff, table, chance),
    }
    return shown + "".join(html_section(name, html_picture(draw, name)) for name, draw in pictures.items())


def _kind(row: Row) -> str:
    """How the style sheet calls a row."""
    if row.name in (BEST, BEST_ADAPTIVE):
        return "best"
    return "" if row.query else "benign"
