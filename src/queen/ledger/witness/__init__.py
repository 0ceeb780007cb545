"""What a ledger's users remember of it outside of it, to notice that it has lost state; only the ledgers import this.

`witness` is the memory and its file, `file_watch` looks after a SQLite file and its log, `redis_epochs` compares on
every connection to Redis, and `durability` is how a Redis must be set.
"""
