"""Fill the documents from the committed results and the settings: `python -m tools.pages`.

Between `<!-- name -->` and `<!-- /name -->` a document holds what the function of that name in `DOCUMENTS` returns.
With `--check` nothing is written: stale documents are named, and the exit status is 1 if there are any.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from queen.bench.render.accused import digits_markdown, proof_markdown, read_back_markdown
from queen.bench.render.markdown import markdown_table
from queen.bench.render.models import lost_markdown
from queen.bench.render.sentinel import (
    draw_threshold,
    evidence_markdown,
    odd_markdown,
    threshold_markdown,
    tolerance_markdown,
)
from queen.bench.render.submit import submit_markdown
from queen.bench.render.table import tables, to_markdown
from queen.bench.run import read_results
from queen.bench.studies import STUDIES
from queen.demo.plot import draw_cost
from queen.demo.table import adaptive_markdown, best_markdown, markdown
from queen.serve.settings import Settings
from queen.serve.upstream.settings import GuardSettings
from tools import honest
from tools.cli_reference import cli_reference
from tools.experiments import experiments_table
from tools.explain import draw as draw_explained
from tools.explain import explained_lines
from tools.prices import (
    lengths_markdown,
    limits_markdown,
    max_copy_markdown,
    price_markdown,
    price_picture,
    sold_markdown,
)
from tools.reliability import goals_table, open_goals_table
from tools.rerun import PAPER_OF, read_rerun
from tools.strength import (
    ablation_table,
    data_free_line,
    few_table,
    labels_table,
    plan_line,
    radius_table,
    release_line,
    shadows_line,
    speed_table,
)
from tools.studies import MEASURED, study_figures
from tools.threats import remaining_markdown
from tools.upstream import upstream_markdown

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
DEMO = RESULTS / "demo/demo.json"
SMOKE, ACCUSED, CIFAR10 = RESULTS / "smoke", RESULTS / "accused", "cifar10"
READ_BACK = {"demo": RESULTS / "qa/30-read-back.json", "CIFAR-10": RESULTS / "qa/30-read-back-cifar10.json"}
SERVE, CAPACITY, TIMING = RESULTS / "serve", RESULTS / "capacity/ledgers.json", RESULTS / "timing/cpu-2-cores.json"
EVIDENCE, TOLERANCE, ODD, THRESHOLD, DIGITS = (
    RESULTS / f"sentinel/{name}.json" for name in ("evidence", "tolerance", "odd", "threshold", "digits")
)
LOST = RESULTS / "models/lost.json"
SERVERS = {
    "none memory": "unprotected",
    "sentinel memory": "sentinel, `memory://`",
    "sentinel sqlite": "sentinel, SQLite FULL",
    "sentinel redis": "sentinel, Redis always",
    "litserve": "LitServe, unprotected",
}
ANSWERS = {"near": "a bit changed", "again": "asked again", "accused": "accused"}
SERVE_HEADER = (
    *("model", "server", "connections", "requests/s", "p50", "p95", "p99"),
    *("commit p50 / p95", "rows a batch", "CPU"),
)
Result = Mapping[str, Any]


def best_thieves_table() -> str:
    """What the best of all thieves got from every policy in the demo."""
    return best_markdown(_read(DEMO))


def read_back_reports() -> dict[str, Result]:
    """What goal 30 found, by victim."""
    return {victim: _read(path) for victim, path in READ_BACK.items()}


def demo_table() -> str:
    """What every policy did in the demo."""
    return markdown(_read(DEMO))


def benchmark_table(folder: Path) -> str:
    """Every defense against every attack, for each protectee of a benchmark."""
    return "\n".join(to_markdown(table) for table in tables(read_results(folder)))


def rerun_section(name: str) -> str:
    """One of the paper's tables run again, or that it was not run yet."""
    return read_rerun(name).section()


def settings_table(fields: Mapping[str, FieldInfo] = Settings.model_fields) -> str:
    """Every setting of the server with its flag, default and meaning."""
    rows = [(_flag(name), _default(field), field.description or "") for name, field in fields.items()]
    return markdown_table(("setting", "default", "meaning"), rows)


def _flag(name: str) -> str:
    return "`BUNDLE`" if name == "bundle" else f"`--{name.replace('_', '-')}`"


def _default(field: FieldInfo) -> str:
    value = "" if field.is_required() else field.get_default(call_default_factory=True)
    if value in (None, "", (), {}):
        return ""
    return ("on" if value else "off") if isinstance(value, bool) else f"`{value}`"


def server_speed(folder: Path = SERVE) -> str:
    """Requests per second and latency of every server, one machine after the other."""
    return "\n".join(_machine(_read(path)) for path in sorted(folder.glob("*.json")))


def _machine(result: Result) -> str:
    machine, cells = result["machine"], result["cells"]
    versions = machine["versions"]
    where = f"{machine['cores']} cores ({machine['processor']}), Python {machine['python']}, torch {versions['torch']}"
    rough = ", a quick and rough run" if result["quick"] else ""
    parts = [
        f"{where}{rough}. Server and load generator share the cores; figures are medians of {len(cells[0]['rounds'])} "
        "interleaved rounds (the lowest and highest in brackets), times in milliseconds, CPU is the server's for one "
        "request.\n",
        markdown_table(SERVE_HEADER, map(_speed_row, cells)),
        markdown_table(("target", "wanted", "measured", ""), map(_target_row, result["targets"])),
    ]
    return "\n".join(parts)


def _speed_row(cell: Result) -> tuple[str, ...]:
    figures, rounds = cell["median"], [figures["requests_per_second"] for figures in cell["rounds"]]
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


def _target_row(target: Result) -> tuple[str, ...]:
    value, outcome = target["got"], {True: "holds", False: "missed", None: "not measured"}[target["holds"]]
    measured = "" if value is None else (f"{value:,.0f}" if value >= 100 else f"{value:.2f}")
    return target["what"], target["target"], measured, outcome


def capacity_plan(ledgers: Path = CAPACITY, folder: Path = SERVE) -> str:
    """What 1,000,000 clients and 10,000 queries per second need, from measured figures."""
    measured, speeds = _read(ledgers), _read(min(folder.glob("*.json")))
    size, time = measured["bytes_a_client"], measured["microseconds_a_query"]
    counts = list(size["redis"])
    rows = [(f"{store}, bytes a client", *(f"{size[store][count]:,}" for count in counts)) for store in size]
    memory, sqlite, redis = (time[store]["32"] for store in ("memory", "sqlite", "redis"))
    [served] = [
        cell["median"]["requests_per_second"]
        for cell in speeds["cells"]
        if (cell["model"], cell["server"], cell["connections"]) == ("digits", "sentinel redis", 32)
    ]
    lines = [
        markdown_table(("after this many queries each", *counts), rows),
        f"A query costs {memory} us in memory, {sqlite} us in SQLite and {redis} us on Redis, at "
        f"{measured['rows_a_call']} rows a call of as many clients (`benchmarks/serve/capacity.py`). So:\n",
        f"- **1,000,000 clients** with 100 queries each take {size['sqlite']['100'] / 1e3:,.1f} GB of SQLite file, or "
        f"{size['redis']['100'] / 1e3:,.1f} GB of Redis' memory (and an append-only file of at least that size). With "
        f"one query each they take {size['sqlite']['1'] / 1e3:,.2f} or {size['redis']['1'] / 1e3:,.2f} GB.\n",
        f"- **10,000 queries/s** keep one Redis busy for at most {redis:,.0f} % of the time at batches of this size "
        f"(the way there and back is counted in). To stay below half, {_masters(redis)}. One SQLite file would be busy "
        f"for {sqlite:,.0f} % of the time, but belongs to one server.\n",
        f"- One process with a tiny model answered {served:,.0f} one-row requests/s on two cores that it "
        f"shared with Redis and its load: 10,000 such requests/s take {10_000 / served:,.1f} of such machines. "
        "With a real network count its time instead: queries/s x seconds a query / cores, and protection on top as "
        "the ratios below say.\n",
    ]
    return "\n".join(lines)


def _masters(percent: float) -> str:
    """How many Redis masters keep each of them below half of the time."""
    count = ceil(percent / 50)
    return "one is enough" if count == 1 else f"take a Redis cluster of {count} masters"


def answer_times(path: Path = TIMING) -> str:
    """How well a client can tell the kinds of answers apart by the time they take."""
    cells = _read(path)["cells"]
    kinds = {kind: title for kind, title in ANSWERS.items() if kind in cells[0]}
    rows = [
        (
            cell["ledger"],
            f"`{cell['flags']}`",
            f"{cell['median_us'] / 1e3:.2f}",
            *(f"{cell[kind]['tell']:.2f} ({cell[kind]['more_us']:+.0f})" for kind in kinds),
        )
        for cell in cells
    ]
    return markdown_table(("ledger", "flags", "ms per answer", *kinds.values()), rows)


DOCUMENTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "README.md": {"best thieves": best_thieves_table, "headline": lambda: read_rerun(CIFAR10).headline()},
    "CONTRIBUTING.md": {"submit": submit_markdown},
    "docs/attacks.md": {
        "training speed": speed_table,
        "plan": plan_line,
        "few answers": few_table,
        "labels": labels_table,
        "ablation": ablation_table,
        "radius": radius_table,
        "shadows": shadows_line,
        "release": release_line,
        "data free": data_free_line,
    },
    "docs/policies.md": {
        "demo table": demo_table,
        "adaptive table": lambda: adaptive_markdown(_read(DEMO)),
        "accused table": partial(benchmark_table, ACCUSED),
        "read back": lambda: read_back_markdown(read_back_reports()),
        "price": price_markdown,
        "lengths": lengths_markdown,
        "max copy": max_copy_markdown,
        "limits": limits_markdown,
        "sold": sold_markdown,
        "proof": lambda: proof_markdown(read_back_reports()),
    },
    "docs/how-it-works.md": {"explained": explained_lines},
    "docs/reference/cli.md": {"commands": cli_reference},
    "docs/models.md": {"lost": lambda: lost_markdown(_read(LOST))},
    "docs/paper.md": {"experiments": experiments_table},
    "docs/reliability.md": {"goals": goals_table, "open goals": open_goals_table},
    "docs/honest-rerun.md": {
        "scope": lambda: read_rerun(CIFAR10).scope_line(),
        "summary": lambda: read_rerun(CIFAR10).summary_table(),
        "collapsed": honest.collapsed_table,
        "release": honest.release_table,
        "thrown away": honest.thrown_away_table,
    },
    "docs/results.md": {
        "scope": lambda: read_rerun(CIFAR10).scope_line(),
        "leaderboard": lambda: read_rerun(CIFAR10).leaderboard_table(),
        "story": lambda: read_rerun(CIFAR10).story(),
        "behind the sentinel": lambda: read_rerun(CIFAR10).sentinel_table(),
        "accuracy beside": lambda: read_rerun(CIFAR10).accuracy_table(),
        "shares beside": lambda: read_rerun(CIFAR10).share_table(),
        "rerun table": lambda: read_rerun(CIFAR10).whole_table(),
        "smoke table": partial(benchmark_table, SMOKE),
        **{name.replace("-", "_"): partial(rerun_section, name) for name in PAPER_OF if name != CIFAR10},
    },
    "docs/sentinel.md": {
        "threshold": lambda: threshold_markdown(_read(THRESHOLD)),
        "evidence": lambda: evidence_markdown(_read(EVIDENCE)),
        "tolerance": lambda: tolerance_markdown(_read(TOLERANCE), _read(EVIDENCE)),
        "odd": lambda: odd_markdown(_read(ODD)),
        "digits": lambda: digits_markdown(_read(DIGITS)),
    },
    "docs/serving.md": {
        "capacity": capacity_plan,
        "speed": server_speed,
        "timing": answer_times,
        "settings": settings_table,
    },
    "docs/upstream.md": {
        "upstream": upstream_markdown,
        "guard settings": lambda: settings_table(
            {name: field for name, field in GuardSettings.model_fields.items() if name not in Settings.model_fields}
        ),
    },
    "docs/threat-model.md": {"what remains": lambda: remaining_markdown(_read(DEMO), read_rerun(CIFAR10).results)},
    "docs/studies.md": {f"study {name}": partial(study_figures, name) for name in STUDIES}
    | {
        f"study {name}_{images.replace('-', '_')}": partial(study_figures, name, images)
        for images, names in MEASURED.items()
        for name in names
    },
}


def fill(document: str, name: str, text: str) -> str:
    """The document with `text` between the markers of that name."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if document.count(begin) != 1 or document.count(end) != 1:
        raise ValueError(f"expected one '{begin}' and one '{end}' in the document")
    before, _, rest = document.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{text}{end}{after}"


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Fill or check the documents below `root`; pictures are only drawn, as their bytes depend on matplotlib."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if a document is stale")
    check = parser.parse_args(arguments).check
    stale = []
    for path, blocks in DOCUMENTS.items():
        old = new = (root / path).read_text()
        for name, block in blocks.items():
            new = fill(new, name, block())
        if new != old:
            stale.append(path)
            if not check:
                (root / path).write_text(new)
    if check:
        print("\n".join(f"{path} is stale: run make pages" for path in stale) or "all documents are up to date")
        return 1 if stale else 0
    (root / "docs" / "cost.png").write_bytes(draw_cost(_read(DEMO)["sentinel"]["cost"]))
    (root / "docs" / "price.png").write_bytes(price_picture())
    (root / "docs" / "threshold.png").write_bytes(draw_threshold(_read(THRESHOLD)))
    draw_explained(root / "docs")
    (root / "docs" / "leaderboard.png").write_bytes(read_rerun(CIFAR10).leaderboard_picture())
    return 0


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
