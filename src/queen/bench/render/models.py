"""What is lost where a model does not tell its features (`benchmarks/models`), as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from queen.bench.render.markdown import markdown_table

Cells = Sequence[Mapping[str, Any]]
HEADER = ("data", "model", "the guard sees", "right", "benign accused", "noise", "mixed rows", "mixed rows, 1:1 cover")
THIEVES = (("noise", "0:1"), ("mixed rows", "0:1"), ("mixed rows", "1:1"))


def lost_markdown(result: Mapping[str, Any]) -> str:
    """Benign clients accused, and after how many queries thieves are, for every model and what the guard sees of it."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for cell in result["cells"]:
        groups.setdefault((cell["data"], cell["model"], cell["sees"]), []).append(cell)
    rows = [(*names, *_figures(cells, result["clients"])) for names, cells in groups.items()]
    seeds = len(result["seeds"])
    return markdown_table(HEADER, rows) + (
        "\nRight: the share of held-out rows. Benign: clients that send held-out rows in random orders, "
        f"{result['clients']} per seed. The last three columns show thieves: how many attack queries it takes until "
        f"the alarm (the median of each of {seeds} seeds, lowest to highest); if not all are caught within 5,000, the "
        "share that is. With 1:1 cover there is a benign row beside every mixed one.\n"
    )


def _figures(cells: Cells, clients: int) -> tuple[str, ...]:
    right = sum(cell["accuracy"] for cell in cells) / len(cells)
    accused = sum(cell["benign accused"] for cell in cells)
    return (f"{right:.0%}", f"{accused} of {clients * len(cells)}", *(_thief(cells, *thief) for thief in THIEVES))


def _thief(cells: Cells, kind: str, cover: str) -> str:
    found = [cell["thieves"][kind][cover] for cell in cells]
    caught = sum(one["caught"] for one in found) / len(found)
    if caught < 1:
        return f"{caught:.0%} caught" if caught else "never"
    low, high = min(one["median"] for one in found), max(one["median"] for one in found)
    return f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"
