"""Where requests wait: `door` lets them in, `request_queue` holds them, `fair_queue` says whose turn it is.

Only `batcher`, `service` and the two doors of the server know it.
"""
