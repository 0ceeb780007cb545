"""What the server reports about itself: `log` lines, Prometheus `metrics`, the dashboard's `series`, and the `webhook`.

`counting` counts requests for all of them. The rest of `serve` may import it; it knows the ledger's events, and of
requests and clients the types alone.
"""
