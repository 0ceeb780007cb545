"""The Open Inference Protocol (version 2) over REST: bodies into queries, answers into bodies."""

from __future__ import annotations

from queen.serve.wire_inflate import inflate
from queen.serve.wire_read import BYTES_A_VALUE, read_query
from queen.serve.wire_write import clean, error_body, model_metadata, server_metadata, to_json, write_answer

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
