"""`queen serve`: every setting of the server is an option of the command."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queen.cli import guard
from queen.cli.shared import app, err
from queen.errors import OptionError

if TYPE_CHECKING:
    from queen.serve.run import Ports
    from queen.serve.service import Service
    from queen.serve.settings import Settings

EPILOG = """Example: `queen serve build/demo/bundle --ledger redis://localhost:6379 --policy sentinel`

Clients need a key: `queen keys new alice`. Settings also come from the environment (QUEEN_PORT=9000) and from a file
(`--config serve.yaml`)."""


SUMMARY = "Serve a bundle to clients of the Open Inference Protocol, over REST and gRPC."


def serve(kind: type[Settings], config: Path | None, **given: Any) -> None:
    """Serve with settings of this kind, from flags, the environment and a file."""
    import json

    from queen.serve.settings import read_settings

    groups = given.pop("groups", None)
    if groups is not None:
        try:
            given["groups"] = json.loads(groups)
        except ValueError as error:
            raise OptionError(f"--groups must be JSON, got {groups!r}") from error
    given |= {name: tuple(value) or None for name, value in given.items() if isinstance(value, list)}
    settings = read_settings(given, config, kind)
    if settings.policy == "none":
        err.print("warning: policy none protects nothing; every answer is the model's own", style="yellow")
    if settings.ray:
        from queen.serve.ray.deploy import serve_on_ray

        serve_on_ray(settings, on_start=lambda address: err.print(f"serving on {address}"))
        return
    from queen.serve.run import serve as run

    run(settings, on_start=_print_addresses)


def _print_addresses(service: Service, ports: Ports) -> None:
    """Tell a person at a terminal where the server listens; the log has the rest."""
    if not sys.stderr.isatty():
        return
    settings = service.settings
    scheme = "https" if settings.tls_cert else "http"
    err.print(f"model      {service.spec.name}")
    if service.upstream_health is not None:
        err.print(f"upstream   {service.upstream_health.address}")
    err.print(f"REST       {scheme}://{settings.host}:{ports.rest}/v2/models/{service.spec.name}/infer")
    if ports.grpc:
        err.print(f"gRPC       {settings.host}:{ports.grpc}")
    err.print(f"dashboard  {scheme}://{settings.host}:{ports.rest}/dashboard (key: queen keys new NAME --admin)")
    err.print(f"time       {service.hold.advice}", soft_wrap=True)
    for sentence in service.advice:
        err.print(sentence, style="yellow", soft_wrap=True)
    if not service.auth.keys and not settings.anonymous:
        err.print("no keys yet: queen keys new NAME", style="yellow")


def _parameters(kind_of_settings: type[Settings]) -> list[inspect.Parameter]:
    """The settings as parameters that typer understands; unset ones are left to environment and file."""
    lists, texts = ("trusted_proxy", "upstream_header"), ("extra_answers", "groups", "release_every", "threshold")
    annotations: dict[str, Any] = {**dict.fromkeys(lists, list[str] | None), **dict.fromkeys(texts, str | None)}
    parameters = []
    for name, field in kind_of_settings.model_fields.items():
        own: Any = field.annotation
        kind: Any = annotations.get(name) or own | None
        flag = f"--{name.replace('_', '-')}"
        default = "" if field.is_required() or field.get_default() in (None, (), "") else f" [{_default_text(field)}]"
        help_text = f"{field.description}{default}"
        if name == "bundle":
            option = typer.Argument(help=help_text, show_default=False)
        elif bool in (field.annotation, *getattr(field.annotation, "__args__", ())):
            option = typer.Option(f"{flag}/--no-{flag[2:]}", help=help_text, show_default=False)
        else:
            option = typer.Option(flag, help=help_text, show_default=False)
        annotation = Annotated[kind, option]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    file_option = typer.Option("--config", help="YAML file of settings.", show_default=False)
    first = inspect.Parameter(
        "config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[Path | None, file_option]
    )
    return [*parameters, first]


def _default_text(field: Any) -> str:
    value = field.get_default()
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def register(name: str, find_settings: Callable[[], type[Settings]], summary: str, epilog: str) -> None:
    """Add a command that serves with these settings, if its extra is installed."""
    try:
        kind = find_settings()
    except ModuleNotFoundError:

        def missing(bundle: str) -> None:
            raise OptionError("this command needs the extra 'serve': pip install 'queen[serve]'")

        missing.__doc__ = f"{summary.rstrip('.')} (needs the extra: pip install 'queen[serve]')."
        app.command(name=name)(missing)
        return

    def command(**given: Any) -> None:
        serve(kind, **given)

    parameters = _parameters(kind)
    command.__doc__ = summary
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command(name=name, epilog=epilog)(command)


def _find_settings() -> type[Settings]:
    from queen.serve.settings import Settings

    return Settings


register("serve", _find_settings, SUMMARY, EPILOG)
register("guard", guard.find_guard_settings, guard.SUMMARY, guard.EPILOG)
