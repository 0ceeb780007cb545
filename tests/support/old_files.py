"""SQLite ledgers as older versions wrote them: `tests/ledger/schema_*.sql` are dumps of their files."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np

from queen.ledger import Ledger
from queen.ledger.sqlite.open import APPLICATION_ID
from queen.ledger.words import Budget
from queen.options import Group, Limits
from tests.reference.watch import Rules
from tests.support.paths import ROOT
from tests.support.queries import FOREIGN, PLENTY, USUAL, judge, picture

DUMPS = {version: (ROOT / "tests" / "ledger" / f"schema_{version}.sql").read_text() for version in (3, 4, 5, 6)}
TEAM = {"team:1": Group(limits=PLENTY, enforce_alarm=True)}
HISTORY_RULES = Rules(PLENTY, bar=5.0, groups={"alice": TEAM, "bob": TEAM})


def old_file(path: Path, version: int = 3, dump: str | None = None) -> Path:
    """A file of an older schema at this path."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(DUMPS[version] if dump is None else dump)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {version}")
    return path


def history(ledger: Ledger) -> None:
    """What happened in the files since schema 4, done again: an honest client, two accused ones, operators' work."""
    rules = HISTORY_RULES
    other = Rules(PLENTY, bar=5.0, test=2, groups=rules.groups)
    alice = [picture(i, point, client="alice") for i, point in enumerate([(0.0, 0.0), (0.5, 0.25), (2.0, 0.0)])]
    alice += [picture(3, client="alice", bet=USUAL), picture(4, client="alice", label=2, bet=USUAL)]
    judge(ledger, rules, alice)
    judge(ledger, other, picture(5, client="alice", bet=FOREIGN))
    judge(ledger, rules, [picture(i, client="bob", bet=FOREIGN if i > 1 else ()) for i in range(7)])
    judge(ledger, rules, [picture(i, client="carol", bet=FOREIGN) for i in range(5)])
    ledger.pardon("carol", "olga")
    judge(ledger, rules, [picture(i, client="carol", bet=FOREIGN) for i in range(5, 7)])
    ledger.allow("dave", "olga")
    judge(ledger, rules, [picture(i, client="dave") for i in range(3)])
    ledger.set_budget("erin", Budget(threshold=0.5, extra_answers=2), "olga")
    judge(ledger, rules, [picture(i, client="erin") for i in range(4)])
    ledger.judge("frank", [0, 1], np.array([[0.5, 0.5], [0.5, 0.5]]), Limits(radius=0.25))
    ledger.acknowledge(1, "olga")
