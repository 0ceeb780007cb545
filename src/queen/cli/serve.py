"""`queen serve`: every setting of the server is an option of the command."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queen.cli import guard
from queen.cli.shared import app, epilog, err, print_json
from queen.errors import MissingExtraError, OptionError
from queen.extras import install

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from queen.serve.run import Ports
    from queen.serve.service import Service
    from queen.serve.settings import Settings

KEYS = "model policy observe ledger rest grpc"
EPILOG = (
    epilog("`queen serve build/demo/bundle --ledger redis://localhost:6379 --policy sentinel`", KEYS)
    + """

It prints that object once the server answers. Clients need a key: `queen keys new alice`. Settings also come from the
environment (QUEEN_PORT=9000) and from a file (`--config serve.yaml`); a flag always wins."""
)


SUMMARY = "Serve a bundle to clients of the Open Inference Protocol, over REST and gRPC."


def serve(kind: type[Settings], config: Path | None, as_json: bool, **given: Any) -> None:
    """Serve with settings of this kind, from flags, the environment and a file."""
    import json

    from queen.serve.run import NO_PROTECTION
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
        err.print(f"warning: {NO_PROTECTION}", style="yellow")
    if settings.ray:
        from queen.serve.ray.deploy import serve_on_ray

        def tell(address: str) -> None:
            if as_json:
                print_json(_start_facts(settings) | {"rest": address})
            else:
                err.print(f"serving on {address}")

        serve_on_ray(settings, on_start=tell)
        return
    from queen.serve.run import serve as run

    run(settings, on_start=_print_facts if as_json else _print_addresses)


def _print_addresses(service: Service, ports: Ports) -> None:
    """Tell a person at a terminal where the server listens and what it does; the log has the rest."""
    from queen.serve.run import start_warnings

    if not sys.stderr.isatty():
        return
    settings = service.settings
    facts = _start_facts(settings, service, ports)
    observe = ", observe only" if facts["observe"] else ""
    err.print(f"model      {facts['model']}")
    if service.upstream_health is not None:
        err.print(f"upstream   {service.upstream_health.address}")
    err.print(f"policy     {facts['policy']}{observe}", style="yellow" if observe else None)
    err.print(f"ledger     {facts['ledger']}")
    err.print(f"REST       {facts['rest']}/v2/models/{facts['model']}/infer", soft_wrap=True)
    if facts["grpc"]:
        err.print(f"gRPC       {facts['grpc']}")
    err.print(f"dashboard  {facts['rest']}/dashboard (key: queen keys new NAME --admin)", soft_wrap=True)
    err.print(f"time       {service.hold.advice}")
    for sentence in (*start_warnings(service), *service.advice):
        err.print(sentence, style="yellow")
    if not service.auth.keys and not settings.anonymous:
        err.print("There are no keys yet, so nobody can ask: queen keys new NAME makes one.", style="yellow")


def _print_facts(service: Service, ports: Ports) -> None:
    print_json(_start_facts(service.settings, service, ports))


def _start_facts(settings: Settings, service: Service | None = None, ports: Ports | None = None) -> dict[str, Any]:
    """What --json prints; on Ray the bundle's own settings are not known here, and there is one address."""
    scheme = "https" if settings.tls_cert else "http"
    guard = None if service is None else service.guard
    return {
        "model": settings.model_name,
        "policy": settings.policy if guard is None else guard.policy.name,
        "observe": settings.observe if guard is None else guard.bundle.observe,
        "ledger": settings.ledger_name,
        "rest": None if ports is None else f"{scheme}://{settings.host}:{ports.rest}",
        "grpc": f"{settings.host}:{ports.grpc}" if ports and ports.grpc else None,
    }


def _parameters(kind_of_settings: type[Settings]) -> list[inspect.Parameter]:
    """The settings as parameters that typer understands; unset ones are left to environment and file."""
    lists, texts = ("trusted_proxy", "upstream_header"), ("extra_answers", "groups", "release_every", "threshold")
    annotations: dict[str, Any] = {**dict.fromkeys(lists, list[str] | None), **dict.fromkeys(texts, str | None)}
    parameters = []
    for name, field in kind_of_settings.model_fields.items():
        own: Any = field.annotation
        kind: Any = annotations.get(name) or own | None
        flag = f"--{name.replace('_', '-')}"
        help_text = f"{field.description}{_default_text(field)}"
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
    json_option = typer.Option("--json", help="Print where the server listens, as JSON, once it answers.")
    last = inspect.Parameter(
        "as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, json_option]
    )
    return [*parameters, first, last]


def _default_text(field: FieldInfo) -> str:
    """The default of a setting, in brackets; nothing where there is none to name."""
    value = "" if field.is_required() else field.get_default(call_default_factory=True)
    if value in (None, (), "", {}):
        return ""
    return f" [{('on' if value else 'off') if isinstance(value, bool) else value}]"


def register(name: str, find_settings: Callable[[], type[Settings]], summary: str, below: str) -> None:
    """Add a command that serves with these settings, if its extra is installed."""
    try:
        kind = find_settings()
    except ModuleNotFoundError:

        def missing(bundle: str, rest: typer.Context) -> None:
            extra = "ray" if "--ray" in rest.args else "serve"
            raise MissingExtraError(f"this command needs the extra '{extra}': {install(extra)}")

        missing.__doc__ = f"{summary.rstrip('.')} (needs the extra: {install('serve')})."
        everything = {"ignore_unknown_options": True, "allow_extra_args": True}  # its options are not known either
        app.command(name=name, epilog=below, context_settings=everything)(missing)
        return

    def command(**given: Any) -> None:
        serve(kind, **given)

    parameters = _parameters(kind)
    command.__doc__ = summary
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command(name=name, epilog=below)(command)


def _find_settings() -> type[Settings]:
    from queen.serve.settings import Settings

    return Settings


register("serve", _find_settings, SUMMARY, EPILOG)
register("guard", guard.find_guard_settings, guard.SUMMARY, f"{epilog(guard.EXAMPLE, KEYS)}\n\n{guard.BELOW}")
