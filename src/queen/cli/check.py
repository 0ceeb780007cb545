"""`queen check`: what is wrong with a model and its data, before anything is fitted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queen.cli.shared import Device, Json, app, out, print_json


@app.command(
    epilog="Example: `queen check vgg16_bn --arg classes=10 --weights vgg.safetensors --data train.npz`, or "
    "`queen check model.onnx --data train.npz`"
)
def check(
    factory: Annotated[str, typer.Argument(help="package.module:factory, a network of queen.zoo, or an .onnx file.")],
    data: Annotated[Path, typer.Option(help="Training data, .npz with x and y.")],
    weights: Annotated[Path | None, typer.Option(help="Trained weights, .safetensors; not for an .onnx file.")] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Held-out benign images, .npz with x (y is not needed) or .npy.")
    ] = None,
    arg: Annotated[list[str] | None, typer.Option(help="Factory argument, name=value (value in JSON).")] = None,
    head: Annotated[str | None, typer.Option(help="Last layer, if not the last Linear.")] = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Say everything that is wrong with a model and its data, and what to do; exit code 1 if it cannot be protected."""
    from dataclasses import asdict

    import queen
    from queen.core.inputs import find_device
    from queen.fit.files import read_data, read_images, read_model

    where = find_device(device)
    model, _ = read_model(factory, arg or [], weights)
    held_out = read_images(calibration) if calibration else None
    found = queen.check(model.to(where), read_data(data), calibration=held_out, head=head)
    if as_json:
        print_json([asdict(one) for one in found])
    else:
        out.print(str(found), soft_wrap=True)
    if found.stops:
        raise typer.Exit(1)
