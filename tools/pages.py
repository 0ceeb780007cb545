"""docs/serving.md is filled from the settings and from result files: `python tools/pages.py`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from queen.errors import OptionError
from queen.serve.settings import Settings

PAGE, RESULTS, CAPACITY = Path("docs/serving.md"), Path("results/serve"), Path("results/capacity/ledgers.json")
TIMING = Path("results/timing/cpu-2-cores.json")
SERVERS = {
    "none memory": "unprotected",
    "sentinel memory": "sentinel, `memory://`",
    "sentinel sqlite": "sentinel, SQLite FULL",
    "sentinel redis": "sentinel, Redis always",
    "litserve": "LitServe, unprotected",
}
HEAD = ("model", "server", "connections", "requests/s", "p50", "p95", "p99", "commit p50 / p95", "rows a batch", "CPU")


def filled(page: str, results: Path) -> str:
    """The page with tables and capacity plan between their markers."""
    parts = {"settings": settings_table(), "speed": speed(results), "capacity": capacity(results), "timing": timing()}
    for name, text in parts.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if page.count(begin) != 1 or page.count(end) != 1:
            raise OptionError(f"expected one '{begin}' and one '{end}' in the page")
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}\n{text}{end}{after}"
    return page


def settings_table() -> str:
    """Every setting with its flag, default and meaning."""
    rows = [(_flag(name), _default(field), field.description or "") for name, field in Settings.model_fields.items()]
    return _table(("setting", "default", "meaning"), rows)


def _flag(name: str) -> str:
    return "`BUNDLE`" if name == "bundle" else f"`--{name.replace('_', '-')}`"


def _default(field: FieldInfo) -> str:
    value = "" if field.is_required() else field.get_default(call_default_factory=True)
    if value in (None, "", (), {}):
        return ""
    return ("on" if value else "off") if isinstance(value, bool) else f"`{value}`"


def speed(results: Path) -> str:
    """What the benchmark measured, one machine after the other."""
    found = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
    return "\n".join(_machine(one) for one in found) if found else "Not measured yet.\n"


def capacity(results: Path) -> str:
    """What 1,000,000 clients and 10,000 queries/s need, from measured figures."""
    if not CAPACITY.exists() or not (files := sorted(results.glob("*.json"))):
        return "Not measured yet.\n"
    found, speeds = json.loads(CAPACITY.read_text()), json.loads(files[0].read_text())
    size, time = found["bytes_a_client"], found["microseconds_a_query"]
    counts = list(size["redis"])
    rows = [(f"{store}, bytes a client", *(f"{size[store][count]:,}" for count in counts)) for store in size]
    mean = (size["sqlite"]["100"], size["redis"]["100"])
    memory, sqlite, redis = (time[store]["32"] for store in ("memory", "sqlite", "redis"))
    busy = [cell for cell in speeds["cells"] if cell["connections"] == 32 and cell["model"] == "digits"]
    served = {cell["server"]: cell["median"]["requests_per_second"] for cell in busy}.get("sentinel redis")
    lines = [
        _table(("after this many queries each", *counts), rows),
        f"A query costs {memory} us in memory, {sqlite} us in SQLite and {redis} us on Redis, at "
        f"{found['rows_a_call']} rows a call of as many clients (`benchmarks/serve/capacity.py`). So:\n",
        f"- **1,000,000 clients** with 100 queries each take {mean[0] / 1e3:,.1f} GB of SQLite file, or "
        f"{mean[1] / 1e3:,.1f} GB of Redis' memory (and an append-only file of at least that size). With one query "
        f"each they take {size['sqlite']['1'] / 1e3:,.2f} or {size['redis']['1'] / 1e3:,.2f} GB.\n",
        f"- **10,000 queries/s** keep one Redis busy for at most {redis:,.0f} % of the time at batches of this size "
        f"(the way there and back is counted in). To stay below half, {_masters(redis)}. One SQLite file would be busy "
        f"for {sqlite:,.0f} % of the time, but belongs to one server.\n",
    ]
    if served:
        lines.append(
            f"- One process with a tiny model answered {served:,.0f} one-row requests/s on two cores that it "
            f"shared with Redis and its load: 10,000 such requests/s take {10_000 / served:,.1f} of such machines. "
            "With a real network count its time instead: queries/s x seconds a query / cores, and protection on top as "
            "the ratios below say.\n"
        )
    return "\n".join(lines)


def timing() -> str:
    """How well the kinds of answers can be told by the time they take."""
    if not TIMING.exists():
        return "Not measured yet.\n"
    cells = json.loads(TIMING.read_text())["cells"]
    rows = [
        (
            cell["ledger"],
            f"`{cell['flags']}`",
            f"{cell['median_us'] / 1e3:.2f}",
            *(f"{cell[kind]['tell']:.2f} ({cell[kind]['more_us']:+.0f})" for kind in ("again", "accused")),
        )
        for cell in cells
    ]
    return _table(("ledger", "flags", "ms an answer", "asked again", "accused"), rows)


def _masters(percent: float) -> str:
    """How many of them such a load takes."""
    count = ceil(percent / 50)
    return "one is enough" if count == 1 else f"take a Redis cluster of {count} masters"


def _machine(result: dict[str, Any]) -> str:
    machine, cells = result["machine"], result["cells"]
    versions = machine["versions"]
    where = f"{machine['cores']} cores ({machine['processor']}), Python {machine['python']}, torch {versions['torch']}"
    rough = ", a quick and rough run" if result["quick"] else ""
    parts = [
        f"{where}{rough}. Server and load generator share the cores; figures are medians of {len(cells[0]['rounds'])} "
        "interleaved rounds (the lowest and highest in brackets), times in milliseconds, CPU is the server's for one "
        "request.\n",
        _table(HEAD, [_cell(cell) for cell in cells]),
        _table(("target", "wanted", "measured", ""), [_target(one) for one in result["targets"]]),
    ]
    return "\n".join(parts)


def _cell(cell: dict[str, Any]) -> tuple[str, ...]:
    figures, rounds = cell["median"], [one["requests_per_second"] for one in cell["rounds"]]
    latency, server = figures["latency_ms"], figures.get("server")
    commits = bool(server) and cell["server"].startswith("sentinel")
    return (
        cell["model"],
        SERVERS[cell["server"]],
        str(cell["connections"]),
        f"{figures['requests_per_second']:,.0f} ({min(rounds):,.0f} to {max(rounds):,.0f})",
        *(f"{latency[name]:.1f}" for name in ("p50", "p95", "p99")),
        f"{server['commit_ms']['p50']:.1f} / {server['commit_ms']['p95']:.1f}" if commits else "",
        f"{server['batch_rows']:.1f}" if server else "",
        f"{figures['server_cpu_ms']:.2f}",
    )


def _target(target: dict[str, Any]) -> tuple[str, ...]:
    got, said = target["got"], {True: "holds", False: "missed", None: "not measured"}[target["holds"]]
    shown = "" if got is None else (f"{got:,.0f}" if got >= 100 else f"{got:.2f}")
    return target["what"], target["target"], shown, said


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[part.replace("|", "\\|") for part in row] for row in (head, ["---"] * len(head), *rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(), RESULTS))
