"""The Open Inference Protocol (version 2) over REST: bodies into queries, answers into bodies."""

from __future__ import annotations

from queen.serve.protocol.inflate import inflate
from queen.serve.protocol.rest_read import BYTES_A_VALUE, read_query
from queen.serve.protocol.rest_write import clean, error_body, model_metadata, server_metadata, to_json, write_answer

__all__ = [
    "BYTES_A_VALUE",
    "clean",
    "error_body",
    "inflate",
    "model_metadata",
    "read_query",
    "server_metadata",
    "to_json",
    "write_answer",
]
