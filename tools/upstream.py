"""What a guard in front of another server costs, as a table: `results/upstream/`, by `benchmarks/serve/upstream.py`."""

from __future__ import annotations

import json
from pathlib import Path

from queen.bench.render.markdown import markdown_table

FOLDER = Path(__file__).parents[1] / "results" / "upstream"
HEADER = ("way", "connections", "requests/s", "of direct", "p50 ms", "p99 ms", "p50 of direct")


def upstream_markdown(folder: Path = FOLDER) -> str:
    """Requests per second and latency, asked directly and through a guard, one machine after the other."""
    parts = []
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        machine = result["machine"]
        busy = f", busy with other work (load {machine['load_before']:.0f}): only the ratios mean something"
        parts.append(
            "KServe's model server with a tiny network (64 -> 32 -> 10), one row a request, in JSON from the client; "
            f"load, upstream and guard share {machine['cores']} cores ({machine['processor']})"
            f"{busy if machine['load_before'] > 0.5 else ''}. Medians of {result['cells'][0]['rounds']} interleaved "
            "rounds; no release clock; sentinel, SQLite ledger.\n"
        )
        rows = [
            (
                name,
                str(cell["connections"]),
                f"{way['requests_per_second']:,.0f}",
                f"{way['rate_ratio']:.2f}",
                f"{way['latency_ms']['p50']:.1f}",
                f"{way['latency_ms']['p99']:.1f}",
                f"{way['p50_ratio']:.2f}",
            )
            for cell in result["cells"]
            for name, way in cell["ways"].items()
        ]
        parts.append(markdown_table(HEADER, rows))
    return "\n".join(parts)
