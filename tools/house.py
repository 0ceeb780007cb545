"""The house as a picture: `python -m tools.house` draws docs/architecture.svg from the real imports.

Rows are the layers that import-linter enforces (pyproject.toml), upper ones import lower ones. A line is drawn where a
room imports another and no third room between them does, so that the picture stays readable. `--check` only compares.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from statistics import mean

import grimp

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "architecture.svg"
ROW, BOX_HEIGHT, PADDING, GAP = 62, 32, 14, 24
CHARACTER = 8.2  # width of a letter in the boxes
SWEEPS = 12  # passes that pull every box towards its neighbours
COMMON = ("types", "options", "errors", "progress", "atomic")  # used everywhere: lines to these would hide the others
COLOURS = {"core": "#f6d6dc", "guard": "#f6d6dc", "serve": "#d9e6f5", "bench": "#dcefe3"}

Edge = tuple[str, str]
Place = tuple[float, float]  # the middle of a box, or a bend of a line


def layers() -> list[list[str]]:
    """Rooms of the package, one list per row, the highest first: packages and modules right below `queen`.

    The maths of the sentinel is one room; its `runtime`, which lives above the bundle, is another. The last row is for
    what everything may import.
    """
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    house = next(contract for contract in contracts if contract["name"] == "imports go one way")
    rows: list[list[str]] = []
    for layer in house["layers"]:
        row = [_room_of(name.strip()) for name in layer.split("|")]
        fresh = [room for room in dict.fromkeys(row) if room not in COMMON and not any(room in known for known in rows)]
        if fresh:
            rows.append(fresh)
    return [*rows, list(COMMON)]


def imports(rooms: Iterable[str]) -> dict[str, set[str]]:
    """Which rooms every room imports directly."""
    graph = grimp.build_graph("queen", exclude_type_checking_imports=True)
    edges: dict[str, set[str]] = {room: set() for room in rooms}
    for module in graph.modules:
        importer = _room_of(module)
        for imported in graph.find_modules_directly_imported_by(module) if importer in edges else ():
            target = _room_of(imported)
            if target in edges and target != importer and target not in COMMON:
                edges[importer].add(target)
    return edges


def _room_of(module: str) -> str:
    name = module.removeprefix("queen.")
    return name if name == "sentinel.runtime" else name.split(".")[0]


def essential(edges: Mapping[str, set[str]]) -> Iterator[Edge]:
    """The imports that no chain of others implies."""
    reach: dict[str, set[str]] = {}

    def reachable(room: str) -> set[str]:
        if room not in reach:
            reach[room] = edges[room].union(*(reachable(target) for target in edges[room]))
        return reach[room]

    for room, targets in edges.items():
        for target in sorted(targets):
            if not any(target in reachable(other) for other in targets - {target}):
                yield room, target


def bend(rows: list[list[str]], edges: Iterable[Edge]) -> dict[Edge, list[str]]:
    """The nodes a line passes, one per row: where it crosses a row it takes a narrow place there, beside the boxes."""
    level = {room: number for number, row in enumerate(rows) for room in row}
    lines = {}
    for upper, lower in edges:
        between = [f"|{upper}>{lower}|{number}" for number in range(level[upper] + 1, level[lower])]
        for number, node in enumerate(between, level[upper] + 1):
            rows[number].append(node)
        lines[upper, lower] = [upper, *between, lower]
    return lines


def _width(node: str) -> float:
    return 0 if node.startswith("|") else CHARACTER * len(node) + 2 * PADDING


def place(rows: Sequence[list[str]], lines: Iterable[Sequence[str]]) -> dict[str, Place]:
    """Where every node goes: near those it is joined with, in the order that this gives, without overlaps."""
    joined: dict[str, list[str]] = {node: [] for row in rows for node in row}
    for line in lines:
        for upper, lower in pairwise(line):
            joined[upper].append(lower)
            joined[lower].append(upper)
    x = {node: 40.0 * number for row in rows for number, node in enumerate(row)}
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 else reversed(rows):
            wanted = {node: mean([x[other] for other in joined[node]] or [x[node]]) for node in row}
            row.sort(key=lambda node: (wanted[node], node))
            x |= _spread(row, wanted)
    left = min(x[node] - _width(node) / 2 for node in x) - PADDING
    return {node: (x[node] - left, (number + 0.5) * ROW) for number, row in enumerate(rows) for node in row}


def _spread(row: Sequence[str], wanted: Mapping[str, float]) -> dict[str, float]:
    """The wanted places, pushed apart until nothing overlaps, around the middle that was wanted."""
    places: dict[str, float] = {}
    for before, node in zip([None, *row], row, strict=False):
        least = places[before] + (_width(before) + _width(node)) / 2 + GAP if before else wanted[node]
        places[node] = max(wanted[node], least)
    shift = mean(wanted.values()) - mean(places.values())
    return {node: at + shift for node, at in places.items()}


def draw() -> str:
    """The picture."""
    rows = layers()
    rooms = [room for row in rows for room in row]
    lines = bend(rows, list(essential(imports(rooms))))
    places = place(rows, lines.values())
    width, height = round(max(x + _width(node) / 2 for node, (x, _) in places.items()) + PADDING), len(rows) * ROW
    parts = [
        *(_line([places[node] for node in line]) for line in lines.values()),
        *(_box(r, *places[r]) for r in rooms),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="ui-monospace, monospace" font-size="13" role="img" '
        'aria-label="Rooms of the package by layer; upper rooms import lower ones">\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _line(places: Sequence[Place]) -> str:
    path = f"M{places[0][0]:.0f} {places[0][1]:.0f}"
    for (x1, y1), (x2, y2) in pairwise(places):
        half = (y1 + y2) / 2
        path += f" C{x1:.0f} {half:.0f} {x2:.0f} {half:.0f} {x2:.0f} {y2:.0f}"
    return f'<path d="{path}" fill="none" stroke="#9a9aa5" stroke-width="1.2"/>'


def _box(room: str, x: float, y: float) -> str:
    colour, width = COLOURS.get(room, "#f3f3f6"), _width(room)
    return (
        f'<rect x="{x - width / 2:.0f}" y="{y - BOX_HEIGHT / 2:.0f}" width="{width:.0f}" height="{BOX_HEIGHT}" rx="6" '
        f'fill="{colour}" stroke="#55555f"/>'
        f'<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle" fill="#1b1b21">{escape(room)}</text>'
    )


def main(arguments: Sequence[str]) -> int:
    """Draw the picture, or say whether it is up to date."""
    picture = draw()
    if "--check" in arguments:
        if not PICTURE.exists() or PICTURE.read_text() != picture:
            print("docs/architecture.svg is not up to date: python -m tools.house", file=sys.stderr)
            return 1
        return 0
    PICTURE.write_text(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
