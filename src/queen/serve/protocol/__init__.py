"""The Open Inference Protocol on the wire: REST bodies and gRPC messages into queries, answers into bytes.

Pure translation: no sockets, clocks or state. Imports nothing of the server but its types.
"""
