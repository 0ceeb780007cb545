"""What copies cost, from results/price, and budgets, from results/limits: the tables and the picture of the documents.

Each file there is what `queen price BUNDLE --json` printed, for one model; a new one is shown without more ado.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from queen.bench.render.markdown import markdown_table
from queen.demo.plot import draw_price
from queen.price.curve import Curve, read_curve
from queen.price.stored import SPANS
from queen.price.words import HEADER, bought, table_rows

RESULTS = Path(__file__).parents[1] / "results"
PRICES, MAX_COPY = RESULTS / "price", RESULTS / "max_copy" / "demo.json"
LENGTHS = RESULTS / "price_lengths"
LIMITS = RESULTS / "limits" / "cifar10.json"
BUDGETS = (50, 500, 10_000)  # honest answers a day: of one user of an app, of a kiosk, and the default
TITLES = {"demo": "the demo's digits", "cifar10": "CIFAR-10"}  # other files go by their name

Result = Mapping[str, Any]


def read_prices(folder: Path = PRICES) -> dict[str, Result]:
    """What copies cost, by the title of the model, the demo's first."""
    paths = sorted(folder.glob("*.json"), key=lambda path: (path.stem != "demo", path.stem))
    return {TITLES.get(path.stem, path.stem): json.loads(path.read_text()) for path in paths}


def price_markdown(folder: Path = PRICES) -> str:
    """A table for every model, and what its budget buys."""
    return "\n".join(_section(title, price) for title, price in read_prices(folder).items())


def _section(title: str, price: Result) -> str:
    notes = "".join(f"- {statement}\n" for statement in price["statements"])
    rows = table_rows(read_curve(price))
    return f"{title[0].upper()}{title[1:]}:\n\n{markdown_table(HEADER, rows)}\n{notes}"


def price_picture(folder: Path = PRICES) -> bytes:
    """The curves of all models, side by side."""
    return draw_price({title: read_curve(price) for title, price in read_prices(folder).items()})


def sold_markdown(folder: Path = PRICES) -> str:
    """The copy that one client can buy in a day, a month and a year, by its budget a day, of every model."""
    rows = [
        (title, f"{budget:,}", *(_sold(read_curve(price), budget * days) for days in SPANS.values()))
        for title, price in read_prices(folder).items()
        for budget in BUDGETS
    ]
    table = markdown_table(("model", "answers a day", *(f"copy in a {span}" for span in SPANS)), rows)
    return f"{table}\n- ≥ more answers than were measured, so the copy may be better.\n"


def _sold(curve: Curve, answers: int) -> str:
    copy = bought(curve, answers)
    return f"{'≥ ' if copy['beyond'] else ''}{copy['agreement']:.1%}"


def lengths_markdown(folder: Path = LENGTHS) -> str:
    """How well students copy that learn for longer, by their number of answers."""
    rows = []
    for title, found in read_prices(folder).items():
        grid = {(row["batch"], row["steps"], row["answers"], row["label_only"]): row for row in found["rows"]}
        for answers in dict.fromkeys(row["answers"] for row in found["rows"]):
            for batch, steps in dict.fromkeys((row["batch"], row["steps"]) for row in found["rows"]):
                direct, label = (grid[batch, steps, answers, label_only] for label_only in (False, True))
                copies = (f"{row['agreement']:.1%} ({row['low']:.1%} to {row['high']:.1%})" for row in (direct, label))
                rows.append((title, f"{answers:,}", f"{steps:,} of {batch}", f"{direct['passes']:,.0f}", *copies))
    header = ("model", "answers", "steps of images", "passes", "copy from probabilities", "from labels")
    return markdown_table(header, rows)


def limits_markdown(path: Path = LIMITS) -> str:
    """What limits cost a benign client of one day."""
    found = json.loads(path.read_text())
    rows = [
        (
            row["name"],
            *(f"{row[kind]['refused']:.1%}" for kind in ("all_classes", "one_class")),
            str(row["all_classes"]["wrong_labels"] + row["one_class"]["wrong_labels"]),
        )
        for row in found["rows"]
    ]
    mixed, one = (found["rows"][0][kind]["queries"] for kind in ("all_classes", "one_class"))
    header = ("limits", f"refused of {mixed:,} images", f"of some {one:,} of one class", "wrong labels")
    return (
        f"{markdown_table(header, rows)}\n- CIFAR-10, a victim of {found['protectee']['accuracy']:.1%}, its test "
        "images. Of the clients that send one class only, the figure is that of the client that is refused most.\n"
    )


def max_copy_markdown(path: Path = MAX_COPY) -> str:
    """What own-kind thieves got under the limits of `max_copy`, or why nothing was promised."""
    found = json.loads(path.read_text())
    return "".join(f"- {_bound(one)}\n" for one in found["bounds"])


def _bound(one: Result) -> str:
    if not one["promised"]:
        return f"`max_copy={one['max_copy']:g}`: not promised: {one['refusal']}."
    best = {
        attack: max(thief["agreement"] for thief in one["thieves"] if thief["attack"] == attack)
        for attack in dict.fromkeys(thief["attack"] for thief in one["thieves"])
    }
    got = ", ".join(f"{attack} {share:.1%}" for attack, share in best.items())
    return (
        f"`max_copy={one['max_copy']:g}`: at most {one['answers']} honest answers; the best of "
        f"{len(one['thieves'])} own-kind thieves: {got} (spread of the reference students {one['spread']:.1%}): "
        f"{'holds' if one['holds'] else 'does NOT hold'}."
    )
