"""What operators see and do: the API under /admin, the dashboard's files, and a client for commands.

Sits on the ledger, on `access` and on `telemetry`; only the server's application and operators' commands import it.
"""
