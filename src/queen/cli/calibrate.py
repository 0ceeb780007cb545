"""`queen calibrate`: calibrate a bundle's sentinel on other images, or on recorded traffic of trusted clients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from queen.cli.shared import (
    Device,
    Folder,
    ForeignOption,
    Json,
    ModelOption,
    WeakOption,
    app,
    epilog,
    err,
    out,
    print_json,
    print_table,
)
from queen.errors import CalibrationError, OptionError

if TYPE_CHECKING:
    from queen.types import Inputs


@app.command(
    epilog=epilog(
        "`queen calibrate bundle --data held_out.npz --condition noise --condition jpeg:30`, or from what a server "
        "recorded: `queen calibrate bundle --from-log queries/ --clients trusted.txt`",
        "bundle alarm_rates alarm_after statement",
    )
)
def calibrate(
    folder: Folder,
    data: Annotated[
        Path | None, typer.Option(help="Held-out benign images, .npz with x (y is not needed) or .npy.")
    ] = None,
    from_log: Annotated[
        Path | None, typer.Option(help="Folder that the server recorded queries in (`queen serve --record`).")
    ] = None,
    clients: Annotated[
        Path | None,
        typer.Option(help="File with the trusted clients in that log, one name per line; # begins a comment."),
    ] = None,
    foreign: ForeignOption = None,
    weak: WeakOption = False,
    condition: Annotated[
        list[str] | None,
        typer.Option(
            help="What clients may do: noise, blur, brightness, contrast, downscale or jpeg; perhaps :strength."
        ),
    ] = None,
    start_over: Annotated[
        bool, typer.Option("--start-over", help="Begin a new account: do not count what earlier calibrations spent.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of conditions and simulated clients.")] = 0,
    model: ModelOption = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Calibrate a bundle's sentinel again, on images or on what trusted clients sent; rewrites the bundle."""
    import queen
    from queen.fit.files import Prepared, read_images

    if (from_log is None) != (clients is None):
        raise OptionError("--from-log DIR and --clients FILE go together: the log, and whom to trust in it")
    if data is None and from_log is None:
        raise OptionError("expected --data FILE, or --from-log DIR with --clients FILE, got neither")
    trusted = None if from_log is None or clients is None else _trusted(from_log, clients)
    guard = queen.load(folder, model, device=device)
    guard = queen.calibrate(
        guard,
        read_images(data) if data else None,
        trusted=trusted,
        foreign=read_images(foreign, Prepared.by(guard.bundle)) if foreign else None,
        conditions=condition or (),
        start_over=start_over,
        seed=seed,
        progress=None if as_json else True,
    )
    if not weak and (weakness := guard.bundle.weakness()):
        raise CalibrationError(f"{weakness}; or take it as it is: --weak (the bundle stays as it was)")
    guard.save(folder)
    rates = guard.report["alarm_rates"]
    if as_json:
        result = {"bundle": str(folder), "alarm_rates": rates, "statement": guard.bundle.statement}
        print_json(result | {"alarm_after": guard.report["alarm_after"]})
        return
    print_table(("condition", "accused"), [(name, f"{rate:.0%}") for name, rate in rates.items()], left=1)
    out.print(f"- {guard.bundle.statement}")


def _trusted(log: Path, clients: Path) -> dict[str, list[Inputs]]:
    """What the clients that a file names have sent, as far as a log tells."""
    from queen.fit.files import attempt
    from queen.serve.querylog.folder import read_log
    from queen.serve.querylog.traffic import traffic_by_client

    text = attempt(clients.read_text, f"cannot read '{clients}'", OSError, ValueError)
    lines = (line.strip() for line in text.splitlines())
    names = [line for line in lines if line and not line.startswith("#")]
    if not names:
        raise OptionError(f"'{clients}' names no client: write one name per line")
    damaged: list[object] = []
    traffic = traffic_by_client(read_log(log, on_damage=damaged.append), names)
    if damaged:
        err.print(f"note: {len(damaged)} damaged places of the log were skipped", soft_wrap=True)
    unknown = [name for name in names if name not in traffic]
    if unknown:
        raise OptionError(f"the log in '{log}' has no query of: {', '.join(unknown)} (named in '{clients}')")
    return traffic
