"""What evidence alone takes in a SQLite ledger, apart from repeats and records: a client, and every class it used.

    python benchmarks/serve/evidence_size.py [--out results/capacity/evidence.json]     (a minute)

Clients are benign and made up at random; sizes are whole pages of the tables, before and after VACUUM.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from queen.ledger import SqliteLedger
from queen.ledger.rows import make_rows
from queen.options import Limits
from queen.sentinel.bets import Bets, Betting, Test
from queen.sentinel.ranks import Ranking, robust_spreads

SCORES, IMAGES, CALL = 3, 5000, 2000  # images of the calibration, and rows a call
LIMITS = Limits(extra_answers=10**6, threshold=100.0)
CASES = [(10, 1, 20_000), (10, 100, 500), (10, 1000, 100), (100, 1000, 50), (100, 10_000, 20)]
EVIDENCE, REPEATS = ("winnings", "counts"), ("picture", "answered")


def fill(ledger: SqliteLedger, classes: int, queries: int, clients: int) -> int:
    """Every client asks that often, one after the other; returns how many classes they used in all."""
    generator = np.random.default_rng(0)
    known, scores = generator.integers(0, classes, IMAGES), generator.normal(size=(IMAGES, SCORES))
    betting = Betting(Ranking(known, scores, robust_spreads(known, scores, classes), classes, 0.2))
    test = Test(2**62, SCORES, 1e-9, 1e-9)  # nobody is accused
    owners, used = np.tile(np.arange(clients), queries), set()
    for first in range(0, len(owners), CALL):
        owner, names = np.unique(owners[first : first + CALL], return_inverse=True)
        labels = generator.integers(0, classes, len(names))
        bets = Bets(
            *betting.lanes(labels, generator.normal(size=(len(names), SCORES))),
            digests=generator.integers(1, 2**62, len(names)).tolist(),
            sketches=[tuple(row) for row in generator.normal(0, 1e4, (len(names), 8)).astype(np.float32).tolist()],
            test=test,
            enforce=True,
        )
        points = generator.normal(0, 0.6, (len(names), 2))
        clients_of_call = tuple(f"client-{i:07d}" for i in owner)
        ledger.judge_rows(make_rows(clients_of_call, names, labels, points, LIMITS, bets=bets))
        used |= set(zip(owners[first : first + CALL].tolist(), labels.tolist(), strict=True))
    return len(used)


def pages_of(path: Path) -> dict[str, int]:
    """Bytes of every table, in whole pages."""
    with closing(sqlite3.connect(path)) as db:
        return dict(db.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name"))


def measure(path: Path, classes: int, queries: int, clients: int) -> dict[str, Any]:
    """Bytes a client and a class used."""
    with closing(SqliteLedger(path)) as ledger:
        used = fill(ledger, classes, queries, clients)
    grown = pages_of(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("VACUUM")
    pages = pages_of(path)
    return {
        "classes": classes,
        "queries_a_client": queries,
        "classes_used_a_client": round(used / clients, 1),
        "evidence_a_client": round(sum(pages[table] for table in EVIDENCE) / clients),
        "evidence_a_client_before_vacuum": round(sum(grown[table] for table in EVIDENCE) / clients),
        "counts_a_class_used": round(pages["counts"] / used, 1),
        "counts_a_class_used_before_vacuum": round(grown["counts"] / used, 1),
        "purses_a_client": round(pages["winnings"] / clients),
        "repeats_a_client": round(sum(pages[table] for table in REPEATS) / clients),
        "records_a_client": round(pages["record"] / clients),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with TemporaryDirectory() as name:
        cases = [measure(Path(name) / f"{i}.sqlite", *case) for i, case in enumerate(CASES)]
    text = json.dumps({"scores": SCORES, "sqlite_bytes": cases}, indent=1) + "\n"
    sys.stdout.write(text)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text)


if __name__ == "__main__":
    main()
