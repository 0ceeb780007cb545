"""What the server tells about itself: log lines, Prometheus metrics, the dashboard's series, webhooks on alarm.

Below everything in `serve` that has something to tell, of which it knows the types alone.
"""
