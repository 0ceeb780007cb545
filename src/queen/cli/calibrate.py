"""`queen calibrate`: calibrate a bundle's sentinel on other images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queen.cli.shared import Device, Folder, Json, ModelOption, app, out, print_json, table


@app.command(epilog="Example: `queen calibrate bundle --data held_out.npz --condition noise --condition jpeg:30`")
def calibrate(
    folder: Folder,
    data: Annotated[Path, typer.Option(help="Held-out benign data, .npz with x and y.")],
    condition: Annotated[
        list[str] | None,
        typer.Option(help="noise, blur, brightness, contrast, downscale or jpeg, with an optional :strength."),
    ] = None,
    mode: Annotated[
        str, typer.Option(help="mixture: one random condition an image; max: certify each by itself.")
    ] = "mixture",
    seed: Annotated[int, typer.Option(help="Seed of conditions and simulated clients.")] = 0,
    model: ModelOption = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Calibrate a bundle's sentinel again, for clients with worse cameras; rewrites the bundle."""
    import queen
    from queen.fit.files import read_data

    guard = queen.calibrate(
        queen.load(folder, model, device=device),
        read_data(data),
        conditions=condition or (),
        conditions_mode=mode,
        seed=seed,
        progress=None if as_json else True,
    )
    guard.save(folder)
    rates = guard.report["alarm_rates"]
    if as_json:
        print_json({"bundle": str(folder), "alarm_rates": rates, "statement": guard.bundle.statement})
        return
    out.print(table(("condition", "accused"), [(name, f"{rate:.0%}") for name, rate in rates.items()], left=1))
    out.print(f"- {guard.bundle.statement}")
