"""The ledger in one SQLite file.

`ledger` judges and records; `schema`, `usages` and `events` are its tables, `codec` what is packed in them. `open`
makes, refuses and migrates files, `cache` remembers who asked lately, `watch` notices that a file or its log is not
what it was, and `clock` that the time is not.
"""
