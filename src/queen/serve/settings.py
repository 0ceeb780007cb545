"""Every setting of the server: from flags, environment variables (QUEEN_...), or a YAML file, in that order."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from queen.errors import OptionError
from queen.ledger.open import SERVERS
from queen.ledger.redis.script import parse_address
from queen.options import MAX_DIGITS
from queen.serve.sources import Amount, Environment, GroupLimits, SettingsFile, explain, explain_variable

MIB = 1 << 20
AUTO: Final = "auto"
MEMORY = "memory://"
PARSE_BODIES = 6  # times the largest body: what inflating and parsing one takes at most
SERVER_BODIES = PARSE_BODIES + 2  # and what gRPC takes besides to put one together
CLIENT_BODIES = 3  # times the largest body: less would not be enough for one request


class Settings(BaseSettings):
    """All settings; docs/serving.md lists them."""

    model_config = SettingsConfigDict(env_prefix="QUEEN_", frozen=True, extra="forbid")

    bundle: Path = Field(description="Bundle folder made by `queen protect`.")
    model: str | None = Field(
        None, description="package.module:factory of the model; needed if the bundle does not name it."
    )
    name: str | None = Field(None, description="Name of the model for clients; by default the bundle folder's.")
    device: str = Field("cpu", description="cpu or cuda.")
    threads: int = Field(0, ge=0, description="Torch threads; 0: as many as there are cores.")

    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0: all networks of this machine.")
    port: int = Field(8000, ge=0, le=65535, description="REST port; 0: any free one.")
    grpc_port: int = Field(8001, ge=-1, le=65535, description="gRPC port; 0: any free one, -1: no gRPC.")
    metrics_port: int = Field(-1, ge=-1, le=65535, description="Loopback port for /metrics without a key; -1: none.")
    tls_cert: Path | None = Field(None, description="Certificate chain (PEM) for REST and gRPC.")
    tls_key: Path | None = Field(None, description="Private key (PEM) of the certificate.")

    home: Path = Field(Path(".queen"), description="Folder for keys and, by default, the ledger.")
    ledger: str | None = Field(
        None, description="sqlite:///FILE, redis://HOST:PORT/DB or memory://; by default ledger.sqlite in home."
    )
    new_secret: bool = Field(
        False, description="Accept that the bundle's secret is not the one that the ledger was used with."
    )
    allow_volatile: bool = Field(False, description="Accept a Redis that may forget what it acknowledged.")
    anonymous: bool = Field(
        False, description="Answer requests without a key too; then all users of a network prefix are one client."
    )
    trusted_proxy: tuple[str, ...] = Field(
        (), description="Networks (CIDR) of proxies whose X-Forwarded-For is believed."
    )

    policy: str | None = Field(
        None,
        description="paper, strict, artifact or sentinel, by default the bundle's; none protects nothing.",
    )
    observe: bool | None = Field(None, description="Judge and record, but always answer honestly.")
    radius: float | None = Field(None, description="Radius of a query's disc relative to the class's spread.")
    threshold: Amount = Field(
        None, description="Share of a class's disc after which it is spent: .2 for life, or .2/week."
    )
    extra_answers: Amount = Field(
        None, description="Honest answers outside the discs or near a record: 2000 for life, or 2000/day."
    )
    alpha: float | None = Field(None, description="Highest probability that a benign client is ever accused.")
    on_alarm: str | None = Field(
        None, description="What accused clients get: refuse, decoy, reverse, label-only or observe."
    )
    on_spent: str | None = Field(
        None, description="What clients without budget get: refuse, decoy, reverse or label-only."
    )
    after_alarm: int | None = Field(
        None, ge=-1, description="Queries of an accused client after which it is refused in any case; -1: never."
    )
    digits: int | None = Field(None, ge=0, le=MAX_DIGITS, description="Decimals of the sentinel's answers; 0: all.")
    weak: bool = Field(False, description="Serve a sentinel even if it would not catch plain foreign queries.")
    groups: Mapping[str, GroupLimits] = Field(
        default_factory=dict,
        description='Kinds of groups and their limits, as JSON: {"tenant": {"extra_answers": 20000}}; kind net pools '
        "network prefixes.",
    )
    uniform: bool = Field(
        True, description="Compute every kind of answer for every row, so that the time an answer takes tells less."
    )
    release_every: float | Literal["auto"] = Field(
        AUTO,
        description="Seconds between the moments at which answers leave, so that their time tells next to nothing. "
        "0: answers leave at once. auto: what the model needs under the sentinel; at once under other policies.",
    )

    max_body: int = Field(16 * MIB, ge=1024, description="Largest request body in bytes, before and after inflating.")
    max_header: int = Field(16384, ge=1024, description="Largest request head in bytes.")
    max_rows: int = Field(1024, ge=1, description="Most rows in a request.")
    max_batch: int = Field(64, ge=1, description="Most rows in a batch of the model.")
    max_turn: int = Field(
        16, ge=1, description="Most rows of one client in a batch while others ask too; larger requests are divided."
    )
    max_queue: int = Field(
        4096,
        ge=1,
        description="Most rows that may wait; beyond that, the client with the most loses its newest request (503).",
    )
    max_client_queue: int = Field(
        1024, ge=1, description="Most rows of one client that may wait; its further requests are answered 503."
    )
    max_wait: float = Field(
        2.0, gt=0, description="Seconds; a request that would have to wait longer is answered 503 at once."
    )
    max_connections: int = Field(
        4096, ge=1, description="Most open connections, over REST and over gRPC each; more are refused."
    )
    max_address_connections: int | None = Field(
        None,
        ge=1,
        description="Most open connections from one address, except trusted proxies; by default a quarter of all.",
    )
    max_bytes: int | None = Field(
        None,
        ge=1,
        description="Most bytes of memory that requests in flight take together; by default 24 x max_body, at least "
        "384 MiB.",
    )
    max_client_bytes: int | None = Field(
        None, ge=1, description="Most of these bytes for one client; by default a quarter of max_bytes."
    )
    request_timeout: float = Field(8.0, gt=0, description="Seconds in which a request must have arrived whole.")
    keep_alive: float = Field(5.0, gt=0, description="Seconds after which an idle connection is closed.")
    shutdown_timeout: float = Field(4.0, gt=0, description="Seconds to finish what was accepted after SIGTERM.")

    record: Path | None = Field(None, description="Folder to record all queries in, for `queen audit`.")
    record_bytes: int = Field(
        1024 * MIB, ge=MIB, description="Most bytes of recorded queries; the oldest are deleted first."
    )
    record_days: float = Field(30.0, gt=0, description="Days after which recorded queries are deleted.")
    webhook: str | None = Field(None, description="URL to which alarms, and budgets that are low or spent, are posted.")
    webhook_secret: str | None = Field(None, description="Secret that signs what is posted (HMAC-SHA256).", repr=False)
    webhook_secret_file: Path | None = Field(
        None,
        description="File with that secret, which only its owner may read; everybody on the machine can see flags.",
    )
    log_level: str = Field("info", description="debug, info, warning or error.")
    log_format: str = Field("json", description="json or text.")
    access_log: bool = Field(False, description="Write one log line for every request.")

    ray: bool = Field(False, description="Deploy on Ray Serve; needs a redis ledger.")
    replicas: int = Field(2, ge=1, description="Copies of the server on Ray Serve.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags first, then the environment; `read_settings` adds the file behind both."""
        return init_settings, Environment(settings_cls)

    @field_validator("trusted_proxy")
    @classmethod
    def _check_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for network in value:
            ipaddress.ip_network(network, strict=False)
        return value

    @field_validator("release_every", mode="before")
    @classmethod
    def _check_release_every(cls, value: object) -> float | str:
        if value == AUTO:
            return AUTO
        with contextlib.suppress(ValueError):
            if 0 <= (seconds := float(str(value))) <= 1:
                return seconds
        raise ValueError("expected auto, or seconds from 0 (answers leave at once) to 1")

    @model_validator(mode="after")
    def _check_combinations(self) -> Settings:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together")
        for path in (self.tls_cert, self.tls_key):
            if path is not None and not path.is_file():
                raise ValueError(f"there is no file '{path}' for TLS")
        if self.webhook_secret is not None and self.webhook_secret_file is not None:
            raise ValueError("expected webhook_secret or webhook_secret_file, got both")
        if self.policy == "none" and not self.is_loopback:
            raise ValueError(f"policy none protects nothing: it is served on loopback only, not on {self.host}")
        if self.ray and not self.shares_ledger:
            raise ValueError("replicas on Ray must share a ledger: --ledger redis://HOST:PORT")
        if self.client_bytes < CLIENT_BODIES * self.max_body:
            raise ValueError(self._explain_client_bytes())
        if self.request_bytes < self.client_bytes:
            least = self.client_bytes + SERVER_BODIES * self.max_body
            raise ValueError(f"max_bytes must be at least max_client_bytes + {SERVER_BODIES} x max_body = {least}")
        if self.log_level not in ("debug", "info", "warning", "error") or self.log_format not in ("json", "text"):
            raise ValueError("log_level is debug, info, warning or error; log_format is json or text")
        return self

    def _explain_client_bytes(self) -> str:
        least = CLIENT_BODIES * self.max_body
        expected = f"max_client_bytes must be at least {CLIENT_BODIES} x max_body = {least}, got {self.client_bytes}"
        if self.max_client_bytes is not None:
            return f"{expected}: raise max_client_bytes to {least} or lower max_body"
        return f"{expected}, a quarter of max_bytes: raise max_bytes to {4 * least} or lower max_body"

    @property
    def is_loopback(self) -> bool:
        """Whether nobody outside this machine can connect."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def address_connections(self) -> int:
        """Most connections of one address."""
        return self.max_address_connections or max(1, self.max_connections // 4)

    @property
    def parse_bytes(self) -> int:
        """The part of `max_bytes` for bodies that are being read into tensors, and answers that are being written."""
        return PARSE_BODIES * self.max_body

    @property
    def request_bytes(self) -> int:
        """The part for what clients send and are sent; the rest is for what the event loop does one at a time."""
        return (self.max_bytes or max(384 * MIB, 24 * self.max_body)) - SERVER_BODIES * self.max_body

    @property
    def client_bytes(self) -> int:
        """The part of that for one client."""
        return self.max_client_bytes or (self.request_bytes + SERVER_BODIES * self.max_body) // 4

    @property
    def ledger_url(self) -> str:
        """Where the ledger is."""
        return self.ledger or f"sqlite:///{self.home / 'ledger.sqlite'}"

    @property
    def ledger_name(self) -> str:
        """Where the ledger is, without a password."""
        return parse_address(self.ledger_url)[0] if self.shares_ledger else self.ledger_url

    @property
    def shares_ledger(self) -> bool:
        """Whether other processes may use the same ledger and keys."""
        return self.ledger_url.partition("://")[0] in SERVERS

    @property
    def model_name(self) -> str:
        """What clients call the model."""
        return self.name or self.bundle.resolve().name


def read_settings(given: Mapping[str, Any], config: Path | None = None, kind: type[Settings] = Settings) -> Settings:
    """Settings from flags, the environment and a file, in this order; an error names the setting that is wrong."""
    flags = {key: value for key, value in given.items() if value is not None}
    try:
        return _with_file(config, kind)(**flags) if config else kind(**flags)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        why = explain(first, Settings.model_fields)
        raise OptionError(f"setting '{where}': {why}" if where else why) from error
    except SettingsError as error:
        raise OptionError(explain_variable(error)) from error
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise OptionError(f"cannot read '{config}': {' '.join(str(error).split())}") from error


def _with_file(path: Path, kind: type[Settings]) -> type[Settings]:
    if not path.is_file():
        raise OptionError(f"no settings file '{path}'")
    if not isinstance(yaml.safe_load(path.read_text()) or {}, dict):
        raise OptionError(f"expected a line for every setting in '{path}', such as port: 9000")

    class FromFile(kind):  # type: ignore[misc, valid-type]  # the settings of a command
        """Settings with a file behind flags and environment."""

        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *sources: PydanticBaseSettingsSource, **named: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            """The same sources, and the file last."""
            sources_above = super().settings_customise_sources(settings_cls, *sources, **named)
            return *sources_above, SettingsFile(settings_cls, yaml_file=path)

    return FromFile
