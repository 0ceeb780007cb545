"""What the server reports about itself: log lines, Prometheus metrics, the dashboard's series, webhooks on alarm.

Everything else in `serve` may import it; of requests and clients it knows the types alone.
"""
