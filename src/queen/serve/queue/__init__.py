"""Where requests wait: `admission` lets them in, `request_queue` holds them, `fair_queue` says whose turn it is.

`results` wakes them with their answers. Only `batcher`, `service`, `app` and `grpc` know it.
"""
