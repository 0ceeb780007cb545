"""The only mutable thing: what each client has asked and been answered, in memory, in SQLite or in Redis.

`base` is the protocol, `words` what it speaks of, `rows` what is judged, `decide` the arithmetic and `state` the memory
that the stores in Python share; `memory`, `sqlite` and `redis` are the stores, `witness` remembers outside of them how
far they had come, `refusal` is what a client is told, and `open` opens a ledger by its address. The guard, the server,
operators' commands and users with a ledger of their own import this package.
"""

from queen.ledger.base import Ledger
from queen.ledger.memory import MemoryLedger
from queen.ledger.open import open_ledger
from queen.ledger.redis.ledger import RedisLedger
from queen.ledger.rows import Rows
from queen.ledger.sqlite.ledger import SqliteLedger
from queen.ledger.words import Budget, Event, Judgement, Standing

__all__ = [
    "Budget",
    "Event",
    "Judgement",
    "Ledger",
    "MemoryLedger",
    "RedisLedger",
    "Rows",
    "SqliteLedger",
    "Standing",
    "open_ledger",
]
