"""What clients may take of the server: `memory`, `connections` (`grpc_connections`: those over gRPC) and open `files`.

`refusal_log` writes down who was turned away, and `trim` gives memory back to the system. REST, gRPC, the queue and the
service import this; it knows the types, the addresses of peers and the log alone.
"""
