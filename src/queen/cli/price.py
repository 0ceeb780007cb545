"""`queen price`: how good a copy so many honest answers make, and what a bundle's budget therefore buys."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from queen.cli.shared import Device, Folder, Json, ModelOption, app, epilog, jobs_on, out, print_json, print_table
from queen.errors import OptionError

if TYPE_CHECKING:
    from queen.bundle.bundle import Bundle
    from queen.price.curve import Curve
    from queen.price.measure import Pricing

STEPS = 1500  # those of `Pricing`, which is not imported for `--help`
BOTH = "--data FILE (training data) and --calibration FILE (held-out images) to measure a price with"


@app.command(
    epilog=epilog(
        "`queen price bundle`, or to measure it: `queen price bundle --data train.npz --calibration held_out.npz`",
        "curve steps seeds networks judged digits epochs honest_answers buys buys_within max_copy statements",
    )
)
def price(
    folder: Folder,
    data: Annotated[Path | None, typer.Option(help="Training data, .npz with x and y: measure anew.")] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Held-out images, .npz with x and perhaps y (for accuracy) or .npy.")
    ] = None,
    foreign: Annotated[
        Path | None, typer.Option(help="Also price answers to these images: a folder, .npz with x, or .npy.")
    ] = None,
    no_save: Annotated[
        bool, typer.Option("--no-save", help="Do not change the bundle; then a stopped run cannot be continued.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Processes that share the work; by default one for each core, at most 4, and 1 on a GPU."
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps that a student takes at least.")] = STEPS,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Passes over its answers that a student takes at least; 60 with shifted images, else 12.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Chooses the held-out images that judge copies.")] = 0,
    model: ModelOption = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """What a copy of the model costs, in honest answers; measured anew if images are given, and stored in the bundle.

    Measuring trains some hundred small networks, which takes minutes. If it is stopped, the same command continues.
    """
    from queen.bundle.store import load_bundle, save_bundle
    from queen.fit.price import UNFINISHED
    from queen.price.measure import Pricing
    from queen.price.stored import stored_curve

    bundle = load_bundle(folder, model, device=device)
    if data and calibration:
        unfinished = None if no_save else folder / UNFINISHED
        pricing = Pricing(steps=steps, epochs=epochs, jobs=jobs or jobs_on(device), folder=unfinished)
        bundle = _measure(bundle, data, calibration, foreign, pricing, seed, shown=None if as_json else True)
        if unfinished is not None:
            save_bundle(bundle, folder)
            shutil.rmtree(unfinished, ignore_errors=True)
    elif data or calibration or foreign:
        raise OptionError(f"expected {BOTH}, got only {_given(data, calibration)}")
    curve = stored_curve(bundle)
    if curve is None:
        raise OptionError(f"'{folder}' has no price yet: expected {BOTH}, got neither")
    _print(bundle, curve, as_json=as_json)


def _given(data: Path | None, calibration: Path | None) -> str:
    return "--data" if data else "--calibration" if calibration else "--foreign"


def _measure(
    bundle: Bundle,
    data: Path,
    calibration: Path,
    foreign: Path | None,
    pricing: Pricing,
    seed: int,
    *,
    shown: bool | None,
) -> Bundle:
    """The bundle with a new price."""
    from queen.fit.files import Prepared, read_data, read_images
    from queen.fit.price import price_bundle
    from queen.progress import Progress

    train, held_out = read_data(data), read_images(calibration)
    others = read_images(foreign, Prepared.by(bundle)) if foreign else None
    with Progress(shown) as show:
        return price_bundle(bundle, train, held_out, show, foreign=others, pricing=pricing, seed=seed)


def _print(bundle: Bundle, curve: Curve, *, as_json: bool) -> None:
    from queen.price.stored import answers_within, bundle_price_lines, honest_answers, promised_copy
    from queen.price.words import HEADER, bought, purchases, table_rows

    lines, answers = list(bundle_price_lines(bundle)), honest_answers(bundle)
    if as_json:
        copies = None if answers is None else purchases(curve, answers)
        spans = {span: bought(curve, most) for span, most in answers_within(bundle).items()}
        facts = {
            "honest_answers": answers,
            "buys": copies,
            "buys_within": spans or None,  # where the budget renews
            "max_copy": promised_copy(bundle),
        }
        print_json(curve.as_json() | facts | {"statements": lines})
        return
    out.print(lines[0])
    print_table(HEADER, table_rows(curve), left=2)
    for line in lines[1:]:
        out.print(f"- {line}")
