"""`queen check` and `queen protect`: from trained weights and data to what is wrong with them, and to a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from queen.cli.guard import (
    UpstreamFeatures,
    UpstreamHeaderFile,
    UpstreamLogits,
    UpstreamName,
    UpstreamUrl,
    upstream_model,
)
from queen.cli.shared import Device, ForeignOption, Json, WeakOption, app, epilog, err, jobs_on, out, print_json
from queen.errors import OptionError


@app.command(
    epilog=epilog(
        "`queen check vgg16_bn --arg classes=10 --weights vgg.safetensors --data train.npz`, or "
        "`queen check model.onnx --data train.npz`",
        "findings",
    )
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
    """List what is wrong with a model and its data, and what to do; exit code 1 if it cannot be protected."""
    from dataclasses import asdict

    import queen
    from queen.core.inputs import find_device
    from queen.fit.files import read_data, read_images, read_model

    where = find_device(device)
    model, _ = read_model(factory, arg or [], weights)
    held_out = read_images(calibration) if calibration else None
    found = queen.check(model.to(where), read_data(data), calibration=held_out, head=head)
    if as_json:
        print_json({"findings": [asdict(one) for one in found]})
    else:
        out.print(str(found), soft_wrap=True)
    if found.stops:
        raise typer.Exit(1)


@app.command(
    epilog=epilog(
        "`queen protect vgg16_bn --arg classes=10 --weights vgg.safetensors --data train.npz --calibration "
        "held_out.npz --out bundle`",
        "bundle identity report",
    )
)
def protect(
    *,
    factory: Annotated[
        str | None,
        typer.Argument(help="package.module:factory, a network of queen.zoo, or an .onnx file.", show_default=False),
    ] = None,
    data: Annotated[Path, typer.Option(help="Training data, .npz with x and y.")],
    folder: Annotated[Path, typer.Option("--out", help="Bundle folder to write.")],
    weights: Annotated[Path | None, typer.Option(help="Trained weights, .safetensors; not for an .onnx file.")] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(help="Held-out benign images, .npz with x (y is not needed) or .npy; 'train': no certificate."),
    ] = None,
    foreign: ForeignOption = None,
    weak: WeakOption = False,
    arg: Annotated[list[str] | None, typer.Option(help="Factory argument, name=value (value in JSON).")] = None,
    head: Annotated[str | None, typer.Option(help="Name of the last layer, if it is not the last Linear.")] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="paper, strict, sentinel or artifact; sentinel if there are calibration images, else paper."),
    ] = None,
    alpha: Annotated[
        float, typer.Option(help="Sentinel: highest probability that a benign client is ever accused.")
    ] = 1e-3,
    on_alarm: Annotated[
        str, typer.Option(help="Sentinel: refuse, decoy, reverse, label-only or observe accused clients.")
    ] = "refuse",
    on_spent: Annotated[
        str, typer.Option(help="Sentinel: refuse, decoy, reverse or label-only for clients without budget.")
    ] = "refuse",
    after_alarm: Annotated[
        int, typer.Option(min=-1, help="Sentinel: queries of an accused client after which it is refused; -1: never.")
    ] = 2000,
    digits: Annotated[int, typer.Option(min=0, help="Sentinel: decimals of answers; 0: all of them.")] = 2,
    observe: Annotated[bool, typer.Option("--observe", help="Judge and count, but always answer honestly.")] = False,
    radius: Annotated[
        float | None, typer.Option(help="Radius of a query, relative to its class's spread; sentinel 5, else .02.")
    ] = None,
    threshold: Annotated[
        str | None,
        typer.Option(
            help="Share of a disc after which a class is spent: .2 for life, or .2/week; sentinel never, else .2."
        ),
    ] = None,
    extra_answers: Annotated[
        str | None,
        typer.Option(
            help="Sentinel: honest answers outside the discs or near a record: 2000 for life, or 2000/day; "
            "10000/day if not given."
        ),
    ] = None,
    price: Annotated[
        bool, typer.Option("--price", help="Measure what a copy costs, too (minutes; Ctrl-C skips it).")
    ] = False,
    max_copy: Annotated[
        float | None,
        typer.Option(help="Sentinel: choose limits so that no reference copy agrees with the model on this share."),
    ] = None,
    min_agreement: Annotated[
        float, typer.Option(help="Least share of training images on which the 2-D map must agree with the model.")
    ] = 0.5,
    shadows: Annotated[
        str, typer.Option(help="Shadow models: head (a new last layer each) or network (trained from scratch).")
    ] = "head",
    seed: Annotated[int, typer.Option(help="Seed of map and shadows.")] = 0,
    device: Device = "cpu",
    upstream: UpstreamUrl = None,
    upstream_name: UpstreamName = None,
    upstream_features: UpstreamFeatures = "features",
    upstream_logits: UpstreamLogits = "logits",
    upstream_header_file: UpstreamHeaderFile = None,
    as_json: Json = False,
) -> None:
    """Fit a defense around a trained model and write it as a bundle.

    With --upstream the network stays on another server, and the bundle holds its last layer alone (see `queen guard`).
    """
    import shutil
    import warnings
    from dataclasses import replace

    import queen
    from queen.allowance import read_amount
    from queen.core.inputs import find_device
    from queen.errors import ProtectionWarning
    from queen.fit.files import Prepared, check_folder, factory_args, read_data, read_images, read_model
    from queen.fit.price import UNFINISHED
    from queen.fit.shadows import ShadowRecipe
    from queen.options import Sentinel, default_limits
    from queen.price.measure import Pricing

    given: dict[str, Any] = {} if radius is None else {"radius": radius}
    texts = {"threshold": threshold, "extra_answers": extra_answers}
    given |= {name: read_amount(text) for name, text in texts.items() if text is not None}
    usual = default_limits(policy or ("sentinel" if calibration else "paper"))
    where = find_device(device)
    if upstream is not None and factory is None:
        names = {"model": upstream_name, "features": upstream_features, "logits": upstream_logits}
        options = {**names, **factory_args(arg or [])}
        model, recipe = upstream_model(upstream, weights, head, upstream_header_file, **options), None
        head = None
    elif upstream is None and factory is not None:
        model, recipe = read_model(factory, arg or [], weights)
    else:
        got = "neither" if upstream is None else "both"
        raise OptionError(
            f"expected a FACTORY or an .onnx file, or --upstream URL for a network on another server, got {got}"
        )
    check_folder(folder)  # before the work, not after it
    held_out: Any = "train" if calibration == Path("train") else read_images(calibration) if calibration else None
    train = read_data(data)
    span = float(train[0].min()), float(train[0].max())
    pricing = Pricing(jobs=jobs_on(device), folder=folder / UNFINISHED) if price or max_copy is not None else False
    with warnings.catch_warnings(record=True) as caught:  # to be printed as this command prints
        warnings.simplefilter("always", ProtectionWarning)
        guard = queen.protect(
            model.to(where),
            train,
            calibration=held_out,
            foreign=read_images(foreign, Prepared(train[0][:1], span=span)) if foreign else None,
            weak=weak,
            head=head,
            policy=policy,
            sentinel=Sentinel(
                alpha=alpha,
                on_alarm=on_alarm,
                on_spent=on_spent,
                after_alarm=None if after_alarm == -1 else after_alarm,
                digits=digits or None,
            ),
            observe=observe,
            limits=replace(usual, **given) if given else None,
            max_copy=max_copy,
            price=pricing,
            min_agreement=min_agreement,
            shadows=ShadowRecipe(kind=shadows),  # type: ignore[arg-type]  # protect() says which kinds there are
            factory=recipe.factory if recipe else None,
            factory_args=recipe.args if recipe else None,
            seed=seed,
            progress=None if as_json else True,
        )
    guard.save(folder)
    if "price" in guard.report["seconds"]:
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    for warning in caught:
        if not issubclass(warning.category, ProtectionWarning):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        elif as_json:  # without --json the report has said so
            err.print(f"warning: {warning.message}", style="yellow", soft_wrap=True)
    if as_json:
        print_json({"bundle": str(folder), "identity": guard.bundle.identity, "report": guard.report})
    else:
        out.print(f"bundle {folder} written, identity {guard.bundle.identity[:16]}")
