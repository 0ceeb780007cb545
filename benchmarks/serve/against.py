"""Whether the server has become slower: this checkout against an earlier commit, both asked in turn inside one run.

    python benchmarks/serve/against.py 3336624 [--model digits] [--rounds 7] [--out results/against/3336624-digits.json]

Throughput depends on the machine and the hour, by far more than on most changes; ratios of one run do not. Each server
is that of its own checkout, with its own bundle of the same model. Figures are medians of the rounds, ratios medians of
the rounds' ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from run import COMPARISONS, load_command, machine

from models import Served

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CONNECTIONS = 32
console = Console(stderr=True)


@contextlib.contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """The files of a commit, for a while."""
    tree = folder / "before"
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--detach", "--force", str(tree), commit], check=True, capture_output=True)  # noqa: S603
    try:
        yield tree
    finally:
        subprocess.run([*git, "remove", "--force", str(tree)], check=True, capture_output=True)  # noqa: S603


@contextlib.contextmanager
def hosted(checkout: Path, folder: Path, model: str, server: str) -> Iterator[dict[str, Any]]:
    """How to ask a server of a checkout, while it runs."""
    folder.mkdir(parents=True)
    command = [sys.executable, str(HERE / "host.py"), str(checkout), str(folder), model, server]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(checkout / "src"), str(checkout)))}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=env, cwd=checkout) as host:  # noqa: S603
        assert host.stdout is not None  # noqa: S101
        assert host.stdin is not None  # noqa: S101
        line = host.stdout.readline()
        if not line:
            raise RuntimeError(f"'{server}' of {checkout} did not start")
        try:
            yield json.loads(line)
        finally:
            host.stdin.close()


def ask(facts: dict[str, Any], seconds: float, first: int) -> float:
    """Requests per second of a server that is asked for a while."""
    served = Served(Path(), Path(facts["questions"]), facts["body_size"], tuple(facts["headers"]))
    command = load_command(facts["url"], Path(facts["keys"]), served, CONNECTIONS, seconds, first)
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    result = json.loads(done.stdout)
    if result["errors"]:
        raise RuntimeError(f"{result['errors']} requests failed")
    return float(result["requests_per_second"])


def compare(tree: Path, folder: Path, model: str, server: str, rounds: int) -> dict[str, Any]:
    """One server of both checkouts, asked in turn."""
    what = COMPARISONS[model]
    rates: dict[str, list[float]] = {"before": [], "now": []}
    with (
        hosted(tree, folder / server / "before", model, server) as before,
        hosted(ROOT, folder / server / "now", model, server) as now,
    ):
        facts = {"before": before, "now": now}
        for number in range(rounds):
            console.print(f"{model}, {server}: round {number + 1} of {rounds}")
            for side in facts if number % 2 == 0 else reversed(facts):
                rates[side].append(ask(facts[side], what.seconds / 2, number * what.questions // rounds))
    ratios = [now / before for before, now in zip(rates["before"], rates["now"], strict=True)]
    return {"model": model, "server": server, "ratio": median(ratios), "ratios": ratios, "requests_per_second": rates}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="what to compare with")
    parser.add_argument("--model", choices=list(COMPARISONS), default="digits")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="JSON file for all figures")
    options = parser.parse_args()
    command = ["git", "-C", str(ROOT), "rev-parse", options.commit, "HEAD"]
    commits = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()  # noqa: S603
    report: dict[str, Any] = {"before": commits[0], "now": commits[1], "machine": machine(), "servers": []}
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="against-") as name:
        folder = Path(name)
        with checked_out(options.commit, folder) as tree:
            for server in COMPARISONS[options.model].servers:
                if server != "litserve":
                    report["servers"].append(compare(tree, folder, options.model, server, options.rounds))
    table = Table(
        "server", "before", "now", "now / before", title=f"requests/s, {options.model}, medians of the rounds"
    )
    for one in report["servers"]:
        rates = [f"{median(values):,.0f}" for values in one["requests_per_second"].values()]
        table.add_row(one["server"], *rates, f"{one['ratio']:.2f}")
    Console().print(table)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
