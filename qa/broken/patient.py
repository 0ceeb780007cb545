"""A server that speaks HTTP with uvicorn's own protocol, which has no deadlines."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from queen.cli import main
from queen.serve import run

if __name__ == "__main__":
    run.make_limited_protocol = lambda settings: HttpToolsProtocol
    main()
