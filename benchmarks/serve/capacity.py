"""What a client costs each ledger: bytes, and time a query; the capacity plan of docs/serving.md is made of these.

    python benchmarks/serve/capacity.py [--out results/capacity/ledgers.json]     (minutes; needs redis-server)

Queries are those of benign clients under the sentinel, made up at random: each places a bet, a few lie in their disc.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from functools import cache
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import redis

sys.path.insert(0, str(Path(__file__).parent))

from servers import redis_server

from queen.ledger import MemoryLedger, RedisLedger, SqliteLedger
from queen.ledger.base import Ledger
from queen.ledger.rows import Rows, make_rows
from queen.options import Limits
from queen.sentinel.bets import Bets, Betting, Test
from queen.sentinel.ranks import Ranking, robust_spreads

ROWS = 32  # a call, as a busy server makes them
CLIENTS = {1: 20_000, 100: 500, 1000: 50}  # queries a client -> clients measured
CLASSES, SCORES, IMAGES = 10, 3, 500  # of the calibration: images a class
EVIDENCE = ((1, 10), (100, 10), (1000, 10), (1000, 100), (5000, 1000))  # queries a client, classes
TEST = Test(1, SCORES, 1e-9, 1e-9)  # nobody is accused


@cache
def made_up_betting(classes: int) -> Betting:
    """Bets against calibration scores that are made up."""
    generator = np.random.default_rng(2)
    labels, scores = np.arange(classes * IMAGES) % classes, generator.normal(0, 1, (classes * IMAGES, SCORES))
    return Betting(Ranking(labels, scores, robust_spreads(labels, scores, classes), classes, 0.2))


def batch(clients: list[str], generator: np.random.Generator, classes: int = CLASSES) -> Rows:
    """A query of each client; the same client may come several times."""
    names, owner = list(dict.fromkeys(clients)), []
    owner = [names.index(client) for client in clients]
    n = len(clients)
    points, labels = generator.uniform(-0.9, 0.9, (n, 2)), generator.integers(0, classes, n)
    bets = Bets(
        *made_up_betting(classes).lanes(labels, generator.normal(0, 1, (n, SCORES))),
        digests=generator.integers(1, 2**62, n).tolist(),
        sketches=[tuple(row) for row in generator.normal(0, 1e4, (n, 8)).astype(np.float32).tolist()],
        test=TEST,
        enforce=True,
    )
    return make_rows(tuple(names), owner, labels, points, Limits(extra_answers=10**6, threshold=100.0), bets=bets)


def feed(ledger: Ledger, clients: int, queries: int) -> None:
    """Every client asks that often."""
    generator = np.random.default_rng(0)
    names = [f"client-{i:07d}" for i in range(clients)]
    for first in range(0, clients, ROWS):
        few = names[first : first + ROWS]
        for _ in range(queries):
            ledger.judge_rows(batch(few, generator))


def microseconds(ledger: Ledger, clients: int, calls: int = 300) -> float:
    """Time a query at 32 rows a call, median of the calls."""
    generator = np.random.default_rng(1)
    names = [f"busy-{i % clients}" for i in range(ROWS)]
    taken = []
    for _ in range(calls):
        rows = batch(names, generator)
        start = time.perf_counter()
        ledger.judge_rows(rows)
        taken.append(time.perf_counter() - start)
    return 1e6 * median(taken[calls // 10 :]) / ROWS


def bytes_of_sqlite(folder: Path, clients: int, queries: int) -> float:
    """On disk, with the log folded in."""
    path = folder / f"{queries}.sqlite"
    ledger = SqliteLedger(path)
    empty = path.stat().st_size
    feed(ledger, clients, queries)
    ledger.close()
    return (path.stat().st_size - empty) / clients


def bytes_of_redis(url: str, clients: int, queries: int) -> float:
    """Of Redis' memory."""
    store = redis.Redis.from_url(url)
    store.flushall()
    ledger = RedisLedger(url)
    empty = store.info("memory")["used_memory"]
    feed(ledger, clients, queries)
    used = store.info("memory")["used_memory"] - empty
    ledger.close()
    return used / clients


def evidence_bytes_of_redis(url: str, queries: int, classes: int) -> int:
    """What Redis would not have to remember of one client without the sentinel's bets; a key counts with its name."""
    store = redis.Redis.from_url(url)
    store.flushall()
    ledger, generator = RedisLedger(url), np.random.default_rng(3)
    for first in range(0, queries, ROWS):
        ledger.judge_rows(batch(["client-0000001"] * min(ROWS, queries - first), generator, classes))
    ledger.close()
    (scope,) = store.keys("queen:{*}")
    strings = sum(store.memory_usage(key, samples=0) for key in store.keys("queen:{*}[ef]"))
    with_wealth = store.memory_usage(scope, samples=0)
    store.hdel(scope, "w")
    return int(strings + with_wealth - store.memory_usage(scope, samples=0))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    Path("build").mkdir(exist_ok=True)
    with TemporaryDirectory(dir="build") as name, redis_server(Path(name) / "redis") as url:
        folder = Path(name)
        report = {
            "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
            "rows_a_call": ROWS,
            "bytes_a_client": {
                "sqlite": {str(q): round(bytes_of_sqlite(folder, c, q)) for q, c in CLIENTS.items()},
                "redis": {str(q): round(bytes_of_redis(url, c, q)) for q, c in CLIENTS.items()},
            },
            "evidence_bytes_a_client": {
                "redis": [
                    {"queries": q, "classes": k, "bytes": evidence_bytes_of_redis(url, q, k)} for q, k in EVIDENCE
                ],
            },
            "microseconds_a_query": {
                "memory": {str(c): round(microseconds(MemoryLedger(), c), 1) for c in (1, ROWS)},
                "sqlite": {str(c): round(microseconds(SqliteLedger(folder / f"t{c}.sqlite"), c), 1) for c in (1, ROWS)},
                "redis": {str(c): round(microseconds(RedisLedger(url), c), 1) for c in (1, ROWS)},
            },
        }
    text = json.dumps(report, indent=1) + "\n"
    sys.stdout.write(text)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text)


if __name__ == "__main__":
    main()
