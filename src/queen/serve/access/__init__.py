"""Who may ask, and how much: keys and where they are stored, authentication, and the budgets that come with keys.

The server, its admin pages and the `queen keys` command import this; it knows the ledger, and nothing of HTTP.
"""
