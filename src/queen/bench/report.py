"""The benchmark's HTML report: one file, no scripts, nothing loaded from elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from queen.bench.plots import draw_matrix, draw_tradeoff
from queen.bench.table import BEST, BEST_ADAPTIVE, Table, tables

STYLE = """
:root { color-scheme: light dark; --ink: #1c1c22; --soft: #62626d; --line: #dcdce2; --card: #fff; --page: #f5f5f8; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececf1; --soft: #a3a3b0; --line: #3a3a44; --card: #1f1f26;
  --page: #141418; } }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 1320px; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem 1.2rem;
  overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .5rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
th { color: var(--soft); font-weight: 600; white-space: normal; vertical-align: bottom; }
tr.best td { font-weight: 700; } tr.benign td { color: var(--soft); }
ul { color: var(--soft); font-size: .92rem; padding-left: 1.1rem; max-width: 95ch; }
img { max-width: 100%; background: #fff; border-radius: 6px; }
"""


def html_report(results: Sequence[Mapping[str, Any]], *, title: str, sizes: Mapping[str, tuple[Any, Any]]) -> str:
    """The whole page; `sizes` are those that differ from the published ones: name -> (here, published)."""
    chance = {r["protectee"]["name"]: r["protectee"]["chance"] for r in results}
    parts = [_part(table, chance[table.protectee]) for table in tables(results)]
    smaller = "".join(
        f"<li>{escape(k)}: {escape(str(a))} instead of {escape(str(b))}</li>" for k, (a, b) in sizes.items()
    )
    reduced = f"<h2>Sizes that differ from the published ones</h2><ul>{smaller}</ul>" if smaller else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>
<h1>{escape(title)}</h1>
{"".join(parts)}{reduced}</main></body></html>
"""


def _part(table: Table, chance: float) -> str:
    pictures = {
        "Every thief": draw_matrix(table),
        "What the best thief and benign clients get": draw_tradeoff(table, chance),
    }
    shown = "".join(f"<h2>{name}</h2><div class='card'>{_image(png, name)}</div>" for name, png in pictures.items())
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    return f"<h2>{escape(table.protectee)}</h2><div class='card'>{_rows(table)}</div><ul>{notes}</ul>{shown}"


def _rows(table: Table) -> str:
    names = ("query", "attack", *(name.replace("_", " ") for name in table.columns))  # so that they may wrap
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    lines = []
    for row in table.rows:
        kind = "best" if row.name in (BEST, BEST_ADAPTIVE) else "" if row.query else "benign"
        cells = "".join(f"<td>{escape(text)}</td>" for text in (row.query, row.name, *row.texts()))
        lines.append(f"<tr class='{kind}'>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _image(png: bytes, name: str) -> str:
    return f"<img alt='{escape(name)}' src='data:image/png;base64,{base64.b64encode(png).decode()}'>"
