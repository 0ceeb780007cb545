"""The demo's HTML report."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from html import escape
from typing import Any

from queen.bench.render.html_page import html_page, html_picture, html_section, html_table
from queen.demo.plot import draw_cost, draw_price
from queen.demo.price import price_tables
from queen.demo.run import Demo
from queen.demo.table import demo_tables
from queen.demo.takeaway import takeaway
from queen.plots import draw_map
from queen.price.curve import read_curve

CAPTIONS = {
    "foreign": "The foreign attacker's digits. Most fall outside every disc (grey): their confidences are distorted, "
    "their labels are kept.",
    "own_kind": "The attacker with the victim's own kind of images. Its queries fill the discs. Then classes are "
    "spent, and new queries of them get reversed answers (red).",
}
KINDS = {"direct": "thief", "label_only": "label"}  # colours of the style sheet
KEY = {
    "thief": "copy trained on the answers (direct)",
    "label": "copy trained on the labels alone (label-only)",
    "benign": "answers that an honest client gets right",
}
RECOVERY_HEADER = ("verdict", "queries", "smallest possible error (Theorem 3, estimated)", "error of the best attempt")
RECOVERY_NOTE = (
    "Mean squared error per query against the honest answer, for the own-kind attacker under the paper's policy. "
    "A smallest possible error of 0 promises nothing: the answer is honest, or follows from what the attacker sees."
)


def html_report(demo: Demo) -> str:
    """The whole page."""
    results = demo.results
    lead = (
        "A small digit classifier, protected with QUEEN and attacked by two thieves. One has images of another scanner "
        "(foreign), the other has images like those that the classifier was made for (own kind). This run took "
        f"{results['seconds']:.0f} seconds."
    )
    tables = [*demo_tables(results), *price_tables(results)]
    parts = [html_section(one.title, html_table(one.header, one.rows), one.notes) for one in tables]
    parts += [_price(results)] if "price" in results else []
    parts += [
        html_section("What an honest client pays as it sends more", _cost(results)),
        html_section("How good the stolen copies are, and what an honest client gets", _bars(results)),
        html_section("The 2-D map under the paper's policy", "".join(_map(demo, pool) for pool in demo.maps)),
        html_section("Could the honest answer be recovered?", _recovery(results), [RECOVERY_NOTE]),
        html_section("The fit", _fit(results["fit"], results["limits"])),
    ]
    heading = "What a thief gets, and what it costs a client"
    return html_page(heading, "".join(parts), lead=lead, takeaway=takeaway(results))


def _cost(results: Mapping[str, Any]) -> str:
    return html_picture(
        partial(draw_cost, results["sentinel"]["cost"]),
        "Three plots over the queries one honest client has sent: share answered with the true label, share answered "
        "at all, distance from the honest answers",
        "One client sending held-out images, in windows of 100. The sentinel answers honestly until a budget is spent "
        "and then refuses; the other policies go on answering wrongly. Where only one line can be seen, the others lie "
        "under it.",
    )


def _price(results: Mapping[str, Any]) -> str:
    return html_picture(
        partial(draw_price, {"the demo's digits": read_curve(results["price"])}),
        "Agreement of copies with the model over the number of honest answers they learned from",
        "What a copy costs: the more honest answers, the better; shaded from the lowest to the highest seed.",
    )


def _bars(results: Mapping[str, Any]) -> str:
    lines = []
    for name, policy in results["policies"].items():
        lines.append(f"<h3>{escape(name)}</h3>")
        for pool in ("foreign", "own_kind"):
            for kind, colour in KINDS.items():
                text = f"{pool.replace('_', ' ')}, {kind.replace('_', '-')}"
                lines.append(_bar(text, policy[pool][f"thief_{kind}"], colour, results["chance"]))
        lines.append(_bar("honest client", policy["benign_accuracy"], "benign", None))
    key = " ".join(f'<span><i style="background:var(--{colour})"></i>{text}</span>' for colour, text in KEY.items())
    line = f"The line marks chance, {results['chance']:.1%}: so good is a copy that has learned nothing."
    return f'<div class="bars">{"".join(lines)}</div><p class="key">{key}</p><p>{line}</p>'


def _bar(text: str, value: float | None, colour: str, chance: float | None) -> str:
    mark = "" if chance is None else f'<div class="chance" style="left:{chance:.1%}"></div>'
    told = "nothing to learn from" if value is None else f"{value:.1%}"  # a copy that was not made is no bad copy
    return (
        f'<div class="name">{escape(text)}</div><div class="track"><div class="fill" style="width:{value or 0:.1%};'
        f'background:var(--{colour})"></div>{mark}</div><div class="value">{told}</div>'
    )


def _map(demo: Demo, pool: str) -> str:
    title = f"{pool.replace('_', ' ')}: {len(demo.maps[pool].letters)} queries"
    draw = partial(draw_map, demo.guard.bundle, title, benign=demo.train_points, queries=demo.maps[pool])
    alt = f"2-D map with discs, training points and queries of the {pool.replace('_', ' ')} attacker"
    return html_picture(draw, alt, f"{CAPTIONS[pool]} Faint dots are training images.")


def _recovery(results: Mapping[str, Any]) -> str:
    rows = [
        (letter, str(one["rows"]), f"{one['bound']:.4f}", f"{one['fitted']:.4f}")
        for letter, one in results["theorem3_paper_own_kind"].items()
    ]
    return html_table(RECOVERY_HEADER, rows)


def _fit(fit: Mapping[str, Any], limits: Mapping[str, Any]) -> str:
    radii = [f"{one['radius']:.3f} under {name} (epsilon {one['epsilon']})" for name, one in limits.items()]
    facts = {
        "radius of a query": ", ".join(radii),
        "threshold of a class": str(limits["paper"]["threshold"]),
        "map agrees with the classifier": f"{fit['agreement']:.1%} of {fit['training_images']} training images",
        "outside their disc": f"{fit['outside']:.1%} of training, {fit['calibration_outside']:.1%} of held-out images",
        "honest answers a client may learn per class": f"about {fit['answers_per_class'][0]}, never above "
        f"{fit['records_per_class'][0]}",
        "a benign client's first spent class": f"after {fit['calibration_first_spent']} held-out images"
        if fit["calibration_first_spent"] is not None
        else "none within the held-out images",
        "shadows": f"{fit['shadow_kind']}, accuracy {fit['shadow_accuracy']:.1%}, "
        f"confidence {fit['shadow_confidence']:.1%}",
    }
    return html_table(("figure", "value"), list(facts.items()))
