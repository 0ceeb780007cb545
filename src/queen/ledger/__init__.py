"""The only mutable thing: what each client has seen of each class."""

from queen.ledger.base import Judgement, Ledger, Rows
from queen.ledger.memory import MemoryLedger
from queen.ledger.sqlite import SqliteLedger

__all__ = ["Judgement", "Ledger", "MemoryLedger", "Rows", "SqliteLedger"]
