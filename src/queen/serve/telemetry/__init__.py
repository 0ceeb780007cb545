"""What the server reports about itself: log lines, Prometheus metrics, the dashboard's series, webhooks on alarm.

Everything else in `serve` may import it; it knows no requests, keys or models.
"""
