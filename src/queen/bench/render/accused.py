"""What answers give away, in Markdown: by the number of their decimals, and after the alarm."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from queen.bench.render.markdown import markdown_table

Result = Mapping[str, Any]
READ = re.compile(r"labels of (?P<images>\S+) images read back by (?P<attack>\S+)")
FIGURES = re.compile(
    r"(?P<share>\S+) of (?P<labels>\d+) labels, upper 95 % limit (?P<limit>\S+), base rate (?P<base>[^;]+)"
)


def digits_markdown(digits: Result) -> str:
    """By the number of decimals: what a thief gets who solves for the head, and what rounding costs a client."""
    losses = {
        "l1": "L1",
        "calibration_error": "calibration error",
        "log_loss": "log loss",
        "log_loss_naive": "log loss, naive",
    }
    rows = [
        (
            {"exact": "all", "label": "the label alone"}.get(name, name),
            *(f"{one['mean']:.1%}" for one in sides["thief"].values()),
            *(f"{sides['client'][key]:.4f}" for key in losses),
        )
        for name, sides in digits["digits"].items()
    ]
    answers = [f"thief with {n} answers" for n in next(iter(digits["digits"].values()))["thief"]]
    return markdown_table(("decimals", *answers, *losses.values()), rows) + (
        "\nThief: the accuracy of copies made of the victim's own encoder and a head that is computed from the answers "
        f"({digits['orders']} random orders of the demo's foreign images; the victim has "
        f"{digits['victim_accuracy']:.1%}). The other columns show what an honest client loses "
        f"({digits['images']['client']:,} held-out images): mean distance from the exact answers; expected calibration "
        "error; log loss, where a zero counts as half a unit and all is scaled to sum 1 again; and a naive log loss, "
        "where a zero counts as a millionth.\n"
    )


def read_back_markdown(reports: Mapping[str, Result]) -> str:
    """Victim -> report of goal 30: the share of labels that every attacker reads back from decoys."""
    cells: dict[str, dict[str, str]] = {}
    counts, columns = [], [f"{victim}, {images}" for victim in reports for images in ("foreign", "own-kind")]
    for victim, report in reports.items():
        for check in report["checks"]:
            read, figures = READ.fullmatch(check["name"]), FIGURES.match(check["found"])
            if read and figures:
                text = f"{figures['share']} ({figures['limit']}; {figures['base']})"
                cells.setdefault(read["attack"], {})[f"{victim}, {read['images']}"] = text
                counts.append(int(figures["labels"]))
    rows = [(f"`{attack}`", *(row.get(column, "-") for column in columns)) for attack, row in cells.items()]
    return markdown_table(("attack", *columns), rows) + (
        f"\nShare of labels read back; in brackets its upper 95 % limit, and the share of the most common label. Each "
        f"attacker tried {min(counts):,} labels or more.\n"
    )


def proof_markdown(reports: Mapping[str, Result]) -> str:
    """Victim -> report of goal 30: what proves to a thief that it gets decoys, and what that costs."""
    prefix = "cost of a proof by "
    rows: dict[str, list[str]] = {}
    for report in reports.values():
        for check in report["checks"]:
            if check["name"].startswith(prefix):
                rows.setdefault(check["name"].removeprefix(prefix).partition(",")[0], []).append(check["found"])
    return markdown_table(("by", *reports), [(name, *found) for name, found in rows.items()])
