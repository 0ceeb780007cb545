"""`queen speed`: what the guard and its rivals cost on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from queen.cli.shared import Json, app, out, print_json, table

SOLVERS = (
    ("modelguard_w_k10", "ModelGuard-W at K = 10", "HiGHS row by row"),
    ("modelguard_w_k100", "ModelGuard-W at K = 100", "HiGHS row by row"),
    ("mad_k10", "MAD at K = 10", "with autograd row by row"),
)


@app.command(epilog="Example: `queen speed --json > results/speed/my-machine.json`")
def speed(
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the time, rough.")] = False,
    as_json: Json = False,
) -> None:
    """Measure what the guard and its rivals cost, as ratios and rates inside one run."""
    from queen.bench.speed import measure_speed

    speeds = measure_speed(quick=quick)
    if as_json:
        print_json(speeds)
        return
    lines = [(f"guard / undefended, {name}", f"{value:.3f}") for name, value in speeds["guard_ratio"].items()]
    lines += [(f"judge, {name}", f"{value:,.6g}") for name, value in speeds["judge_per_second"].items()]
    lines += [("sqlite queries/s, batch 32", f"{speeds['sqlite_per_second']:,.0f}")]
    lines += [("sqlite queries/s with the sentinel, batch 32", f"{speeds['sqlite_sentinel_per_second']:,.0f}")]
    lines += [(f"{name}, rows/s", f"{value:,.0f}") for name, value in speeds["rows_per_second"].items()]
    lines += [("gradient reverse, times faster than SLSQP", f"{speeds['slsqp_ratio']:,.0f}")]
    lines += [
        (f"{name}, times faster than {usual}", f"{speeds['solver_ratio'][key]:,.0f}") for key, name, usual in SOLVERS
    ]
    out.print(table(("what", "value"), lines, left=1))
    out.print(f"1,000 queries behind each defense; {speeds['query_time_network']}")
    paper = speeds["paper_query_time_ratio"]
    ratios = [
        (name, f"{speeds['query_time_seconds'][name]:.2f}", f"{ratio:.3f}", f"{paper[name]:g}" if name in paper else "")
        for name, ratio in speeds["query_time_ratio"].items()
    ]
    out.print(table(("defense", "seconds", "x none", "paper"), ratios, left=1))
