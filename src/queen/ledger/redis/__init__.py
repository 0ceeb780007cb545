"""The ledger that many servers share, in Redis or Valkey.

`ledger` judges by `judge.lua`, `admin` is for operators, `client` knows the servers and `script` what is sent to them,
`codec` packs it; `layout` is the version of the keys, `epochs` notices a server that lost records, and `durability` is
how one must be set.
"""
