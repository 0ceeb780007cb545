"""Who may ask, and how much: `key` and `key_store`, `auth`, and the `budgets` and `revocations` that come with keys.

`key_watcher` keeps them up to date while the server runs, and `proxies` remembers those that nobody has named. The
server, its admin pages and the `queen keys` command import this; it knows the ledger, and nothing of HTTP.
"""
