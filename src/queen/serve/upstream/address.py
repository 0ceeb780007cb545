"""Where an upstream is, and what is said to it besides the tensors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from queen.errors import OptionError

PORTS = {"http": 80, "https": 443, "grpc": 8001, "grpcs": 8001}
Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Address:
    """A URL in parts; as text it is what may stand in a log."""

    scheme: str
    host: str
    port: int
    path: str = ""  # before /v2, without a slash at its end

    @property
    def is_grpc(self) -> bool:
        """Whether the upstream is asked over gRPC."""
        return self.scheme in ("grpc", "grpcs")

    @property
    def is_encrypted(self) -> bool:
        """Whether the upstream is asked over TLS."""
        return self.scheme in ("https", "grpcs")

    @property
    def target(self) -> str:
        """Host and port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.target}{self.path}"


def read_address(url: str) -> Address:
    """The address in a URL, or `OptionError`."""
    expected = "expected an upstream as http://HOST:PORT, https://HOST:PORT, grpc://HOST:PORT or grpcs://HOST:PORT"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise OptionError(f"{expected}, got no URL") from error
    if parts.scheme not in PORTS or not host:
        raise OptionError(f"{expected}, got '{url[:100]}'" if "@" not in url else expected)
    if parts.username or parts.password:
        raise OptionError("an upstream's URL may hold no password: send it as a header (--upstream-header-file)")
    if parts.query or parts.fragment or not url.isascii() or any(c.isspace() or ord(c) < 32 for c in url):
        raise OptionError(f"{expected}: plain ASCII, and nothing after the path")
    path = parts.path.rstrip("/").removesuffix("/v2")
    if path and parts.scheme.startswith("grpc"):
        raise OptionError(f"{expected}: over gRPC there is no path, got '{path}'")
    return Address(parts.scheme, host, PORTS[parts.scheme] if port is None else port, path)


def read_headers(lines: Iterable[str]) -> Headers:
    """Headers from lines "Name: value", or `OptionError`, which never repeats a value."""
    headers = []
    for line in lines:
        name, colon, value = (part.strip() for part in line.partition(":"))
        is_name = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
        if not colon or not is_name or not value.isascii() or not value.isprintable():
            raise OptionError("expected a header for the upstream as 'Name: value' in plain ASCII")
        headers.append((name, value))
    return tuple(headers)
