"""docs/serving.md is filled from the settings and from result files: `python -m queen.serve.page`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from queen.serve.settings import Settings
from queen.types import OptionError

PAGE, RESULTS = Path("docs/serving.md"), Path("results/serve")
SERVERS = {
    "none memory": "unprotected",
    "sentinel memory": "sentinel, `memory://`",
    "sentinel sqlite": "sentinel, SQLite FULL",
    "sentinel redis": "sentinel, Redis always",
    "litserve": "LitServe, unprotected",
}
HEAD = ("model", "server", "connections", "requests/s", "p50", "p95", "p99", "commit p50 / p95", "rows a batch", "CPU")


def filled(page: str, results: Path) -> str:
    """The page with both tables between their markers."""
    for name, text in (("settings", settings_table()), ("speed", speed(results))):
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


def _machine(result: dict[str, Any]) -> str:
    machine, cells = result["machine"], result["cells"]
    versions = machine["versions"]
    where = f"{machine['cores']} cores ({machine['processor']}), Python {machine['python']}, torch {versions['torch']}"
    rough = ", a quick and rough run" if result["quick"] else ""
    parts = [
        f"{where}{rough}. Server and load generator share the cores; figures are medians of {len(cells[0]['rounds'])} "
        "interleaved rounds, times in milliseconds, CPU is the server's for one request.\n",
        _table(HEAD, [_cell(cell) for cell in cells]),
        _table(("target", "wanted", "measured", ""), [_target(one) for one in result["targets"]]),
    ]
    return "\n".join(parts)


def _cell(cell: dict[str, Any]) -> tuple[str, ...]:
    figures = cell["median"]
    latency, server = figures["latency_ms"], figures.get("server")
    commits = bool(server) and cell["server"].startswith("sentinel")
    return (
        cell["model"],
        SERVERS[cell["server"]],
        str(cell["connections"]),
        f"{figures['requests_per_second']:,.0f}",
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
