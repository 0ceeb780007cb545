"""What the figures amount to: ratios, targets, and a table for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

Cell = dict[str, Any]
Figure = Callable[[Sequence[Cell]], float | None]


@dataclass(frozen=True)
class Target:
    """A figure and what it should be: at least or at most some number."""

    what: str
    figure: Figure
    at_least: float | None = None
    at_most: float | None = None

    def check(self, cells: Sequence[Cell]) -> dict[str, Any]:
        """The figure, and whether it is as it should be; None where it was not measured."""
        got = self.figure(cells)
        bound = self.at_most if self.at_least is None else self.at_least
        holds = None if got is None or bound is None else (got >= bound if self.at_least is not None else got <= bound)
        return {
            "what": self.what,
            "target": f"{'>=' if self.at_least is not None else '<='} {bound:g}",
            "got": got,
            "holds": holds,
        }


def find(cells: Sequence[Cell], model: str, server: str, connections: int = 32) -> Cell | None:
    """The cell of a server."""
    wanted = (model, server, connections)
    return next((cell for cell in cells if (cell["model"], cell["server"], cell["connections"]) == wanted), None)


def ratio(model: str, server: str, to: str) -> Figure:
    """Requests a second of one server over another's: the median of the rounds' ratios."""

    def figure(cells: Sequence[Cell]) -> float | None:
        above, below = find(cells, model, server), find(cells, model, to)
        return throughput_ratio(above, below) if above and below else None

    return figure


def throughput_ratio(above: Cell, below: Cell) -> float:
    """The median of the rounds' ratios."""
    pairs = zip(above["rounds"], below["rounds"], strict=True)
    return median(one["requests_per_second"] / other["requests_per_second"] for one, other in pairs)


def throughput(cells: Sequence[Cell]) -> float | None:
    """Requests a second of the protected digits without a disk."""
    cell = find(cells, "digits", "sentinel memory")
    return cell["median"]["requests_per_second"] if cell else None


def tail(cells: Sequence[Cell]) -> float | None:
    """p99 / p50 of the same."""
    cell = find(cells, "digits", "sentinel memory")
    return median(one["latency_ms"]["p99"] / one["latency_ms"]["p50"] for one in cell["rounds"]) if cell else None


TARGETS = (
    Target("digits, protected, memory://: requests/s", throughput, at_least=5000),
    Target("digits, protected, memory://: p99 / p50", tail, at_most=3),
    Target("digits, SQLite FULL / memory://", ratio("digits", "sentinel sqlite", "sentinel memory"), at_least=0.35),
    Target("digits, Redis always / memory://", ratio("digits", "sentinel redis", "sentinel memory"), at_least=0.5),
    Target("VGG16-BN, SQLite FULL / unprotected", ratio("vgg16_bn", "sentinel sqlite", "none memory"), at_least=0.95),
    Target("VGG16-BN, Redis always / unprotected", ratio("vgg16_bn", "sentinel redis", "none memory"), at_least=0.90),
)


def check_targets(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """All targets, with what was measured."""
    return [target.check(cells) for target in TARGETS]


def show(report: dict[str, Any]) -> None:
    """Tables on the terminal."""
    console = Console(width=160)
    table = Table("model", "server", "connections", title="medians of the rounds; times in ms")
    for name in ("requests/s", "p50", "p95", "p99", "commit p50 / p95", "rows a batch", "server CPU", "errors"):
        table.add_column(name, justify="right")
    for cell in report["cells"]:
        table.add_row(cell["model"], cell["server"], str(cell["connections"]), *_figures(cell))
    console.print(table)
    for name, parts in splits(report["cells"]):
        console.print(f"{name}: " + ", ".join(f"{part} {ms:.3f}" for part, ms in parts.items()))
    for target in report["targets"]:
        said = {True: "[green]holds", False: "[red]MISSED", None: "[yellow]not measured"}[target["holds"]]
        got = "" if target["got"] is None else f"{target['got']:.4g}"
        console.print(f"{target['what']}: {got} ({target['target']}) {said}")


def _figures(cell: Cell) -> list[str]:
    figures = cell["median"]
    latency, server = figures["latency_ms"], figures.get("server")
    commit = f"{server['commit_ms']['p50']:.2f} / {server['commit_ms']['p95']:.2f}" if server else ""
    return [
        f"{figures['requests_per_second']:,.0f}",
        *(f"{latency[name]:.2f}" for name in ("p50", "p95", "p99")),
        commit,
        f"{server['batch_rows']:.1f}" if server else "",
        f"{figures['server_cpu_ms']:.3f}",
        str(figures["errors"]),
    ]


def splits(cells: Sequence[Cell]) -> list[tuple[str, dict[str, float]]]:
    """Where the mean request spends its time in the server; `waiting` is all that nothing else explains."""
    result = []
    for cell in cells:
        if not (server := cell["median"].get("server")):
            continue
        parts = {**cell["wire_ms"], "model": server["model_ms"], "ledger": server["ledger_ms"]}
        parts["waiting"] = server["server_ms"] - sum(parts.values())
        result.append((f"{cell['model']}, {cell['server']}, {cell['connections']} connections", parts))
    return result
