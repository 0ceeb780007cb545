"""What a copy of the demo's model costs: the last step of the demo, which may be skipped."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from queen.demo.run import JOBS, Demo, DemoError
from queen.demo.table import DemoTable
from queen.fit.price import UNFINISHED, price_bundle
from queen.price.curve import read_curve
from queen.price.measure import Pricing
from queen.price.stored import bundle_price_lines
from queen.price.words import HEADER, table_rows
from queen.progress import Progress


def price_demo(
    demo: Demo, bundle_folder: Path, *, seeds: int = 1, pricing: Pricing | None = None, progress: bool | None = None
) -> Demo:
    """The demo with a priced guard, and the price among its results; goes on where it was stopped.

    `seeds` is how many students learn at every point; `pricing` sets all there is to set instead.
    """
    victim, unfinished = demo.protectee.victim, bundle_folder / UNFINISHED
    if victim.calibration is None:
        raise DemoError("the demo's spec sets no calibration images aside to try copies on")
    with Progress(progress) as show:
        bundle = price_bundle(
            demo.guard.bundle,
            victim.train,
            victim.calibration,
            show,
            pricing=pricing or Pricing(seeds=tuple(range(seeds)), jobs=JOBS, folder=unfinished),
        )
    shutil.rmtree(unfinished, ignore_errors=True)
    price = bundle.report["price"] | {"statements": list(bundle_price_lines(bundle))}
    return replace(demo, guard=demo.guard.with_bundle(bundle), results=demo.results | {"price": price})


def price_tables(results: Mapping[str, Any]) -> list[DemoTable]:
    """The price as a table, if it was measured."""
    if "price" not in results:
        return []
    rows, notes = table_rows(read_curve(results["price"])), results["price"]["statements"]
    return [DemoTable("What a copy costs", HEADER, tuple(rows), tuple(notes), left=2)]
