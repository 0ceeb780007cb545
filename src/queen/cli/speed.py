"""`queen speed`: what the guard costs on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from queen.cli.shared import Json, app, out, print_json, table


@app.command(epilog="Example: `queen speed --json > results/speed/my-machine.json`")
def speed(
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the time, rough.")] = False,
    as_json: Json = False,
) -> None:
    """Measure what the guard costs, as ratios and rates inside one run."""
    from queen.bench.speed import QUICK, WHOLE, measure_speed

    found = measure_speed(QUICK if quick else WHOLE)
    if as_json:
        print_json(found)
        return
    lines = [(f"guard / undefended, {name}", f"{value:.3f}") for name, value in found["guard_ratio"].items()]
    lines += [(f"judge, {name}", f"{value:,.6g}") for name, value in found["judge_per_second"].items()]
    lines += [("sqlite queries/s, batch 32", f"{found['sqlite_per_second']:,.0f}")]
    lines += [("sqlite queries/s with the sentinel, batch 32", f"{found['sqlite_sentinel_per_second']:,.0f}")]
    lines += [(f"{name}, rows/s", f"{value:,.0f}") for name, value in found["rows_per_second"].items()]
    lines += [("gradient reverse, times faster than SLSQP", f"{found['slsqp_ratio']:,.0f}")]
    out.print(table(("what", "value"), lines, left=1))
