"""The Open Inference Protocol: translates REST bodies and gRPC messages into queries, and answers into bytes.

Pure translation: no sockets, clocks or state. Imports nothing of the server but its types.
"""
