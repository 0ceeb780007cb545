"""The demo's HTML report: one file, no scripts, nothing loaded from elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from html import escape
from typing import Any

from queen.demo.plot import draw_cost
from queen.demo.run import Demo
from queen.demo.table import ADAPTIVE_HEADER, HEADER, adaptive_notes, adaptive_rows, notes, rows
from queen.plots import draw_map

STYLE = """
:root { color-scheme: light dark; --ink: #1c1c22; --soft: #62626d; --line: #dcdce2; --card: #ffffff; --page: #f5f5f8;
  --thief: #c8102e; --label: #e8a33d; --benign: #1b7f4d; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececf1; --soft: #a3a3b0; --line: #3a3a44; --card: #1f1f26;
  --page: #141418; --thief: #ff5c74; --label: #f0b860; --benign: #4cc38a; } }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p.lead { color: var(--soft); margin: 0 0 1.2rem; max-width: 70ch; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 1rem 1.2rem; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .38rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
th { color: var(--soft); font-weight: 600; } td:first-child { font-weight: 650; }
ul { color: var(--soft); font-size: .92rem; padding-left: 1.1rem; max-width: 95ch; }
.bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: .3rem .8rem; align-items: center;
  font-size: .92rem; }
.track { background: var(--line); border-radius: 4px; height: 1.15rem; position: relative; }
.fill { height: 100%; border-radius: 4px; } .value { text-align: right; font-variant-numeric: tabular-nums; }
.chance { position: absolute; top: 0; bottom: 0; width: 2px; background: var(--ink); opacity: .55; }
.key span { display: inline-block; width: .8rem; height: .8rem; border-radius: 3px; margin: 0 .35rem 0 .9rem; }
@media (max-width: 640px) { .bars { grid-template-columns: 1fr max-content; }
  .bars > div:nth-child(3n+1) { grid-column: 1 / -1; margin-top: .4rem; } }
.maps { display: grid; gap: 1.6rem; }
figure { margin: 0; } figure img { width: 100%; background: #fff; border-radius: 6px; }
figcaption { color: var(--soft); font-size: .9rem; margin-top: .4rem; }
"""

MAP_WORDS = {
    "foreign": "The foreign attacker's digits. Most fall outside every disc (grey): their confidences are distorted, "
    "their labels are kept.",
    "own_kind": "The attacker with the victim's own kind of images. Its queries fill the discs, classes are spent and "
    "gradient reverse answers (red).",
}


def html_report(demo: Demo) -> str:
    """The whole page."""
    results = demo.results
    chosen = "; ".join(
        f"{name} {limits['radius']:.3f} (epsilon {limits['epsilon']})" for name, limits in results["limits"].items()
    )
    lead = (
        "A small digit classifier, protected with QUEEN and attacked by two thieves. Relative radius, the sound choice "
        f"for the epsilon given, at threshold {results['limits']['paper']['threshold']}: {chosen}. Everything here was "
        f"measured in this run, in {results['seconds']:.0f} seconds."
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>QUEEN demo report</title><style>{STYLE}</style></head><body><main>
<h1>What a thief gets, and what it costs a client</h1>
<p class="lead">{escape(lead)}</p>
<div class="card">{_table(HEADER, rows(results))}</div>
<ul>{"".join(f"<li>{escape(note)}</li>" for note in notes(results))}</ul>
{_adaptive(results)}<h2>What a benign client pays as it sends more</h2>
<div class="card">{_cost(results)}</div>
<h2>Accuracy of the stolen copy</h2>
<div class="card">{_bars(results)}</div>
<h2>The 2-D map under the paper's policy</h2>
<div class="card maps">{"".join(_map(demo, pool) for pool in demo.maps)}</div>
<h2>Could the honest answer be recovered?</h2>
<div class="card">{_theorem3(results)}</div>
<h2>The fit</h2>
<div class="card">{_fit(results["fit"])}</div>
</main></body></html>
"""


def _table(header: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _adaptive(results: dict[str, Any]) -> str:
    if "adaptive" not in results:
        return ""
    told = "".join(f"<li>{escape(note)}</li>" for note in adaptive_notes(results))
    table = _table(ADAPTIVE_HEADER, adaptive_rows(results))
    return f'<h2>Attackers who know the sentinel</h2>\n<div class="card">{table}</div>\n<ul>{told}</ul>\n'


def _cost(results: dict[str, Any]) -> str:
    image = base64.b64encode(draw_cost(results["sentinel"]["cost"])).decode()
    return (
        '<figure><img alt="Three plots over the queries one benign client has sent: share answered with the true '
        f'label, share answered at all, distance from the honest answers" src="data:image/png;base64,{image}">'
        "<figcaption>One client sending held-out images, in windows of 100. The sentinel answers honestly until a "
        "budget is spent and then refuses; the other policies go on answering wrongly.</figcaption></figure>"
    )


def _bars(results: dict[str, Any]) -> str:
    lines = []
    for name, policy in results["policies"].items():
        for pool in ("foreign", "own_kind"):
            for kind, colour in (("direct", "thief"), ("label_only", "label")):
                what = f"{name}, {pool.replace('_', ' ')}, {kind.replace('_', '-')}"
                lines.append(_bar(what, policy[pool][f"thief_{kind}"], colour, results["chance"]))
        lines.append(_bar(f"{name}, benign client's accuracy", policy["benign_accuracy"], "benign", None))
    key = "".join(
        f'<span style="background:var(--{colour})"></span>{words}'
        for colour, words in (("thief", "direct thief"), ("label", "label-only thief"), ("benign", "benign client"))
    )
    return f'<div class="bars">{"".join(lines)}</div><p class="key">{key}; the line marks chance.</p>'


def _bar(what: str, value: float, colour: str, chance: float | None) -> str:
    mark = "" if chance is None else f'<div class="chance" style="left:{chance:.1%}"></div>'
    return (
        f'<div>{escape(what)}</div><div class="track"><div class="fill" style="width:{value:.1%};'
        f'background:var(--{colour})"></div>{mark}</div><div class="value">{value:.1%}</div>'
    )


def _map(demo: Demo, pool: str) -> str:
    title = f"{pool.replace('_', ' ')}: {len(demo.maps[pool].letters)} queries"
    png = draw_map(demo.guard.bundle, title, benign=demo.train_points, queries=demo.maps[pool])
    words = MAP_WORDS[pool]
    image = base64.b64encode(png).decode()
    return (
        f'<figure><img alt="2-D map with discs, training points and queries of the {pool} attacker" '
        f'src="data:image/png;base64,{image}">'
        f"<figcaption>{escape(words)} Faint dots are training images.</figcaption></figure>"
    )


def _theorem3(results: dict[str, Any]) -> str:
    head = (
        "<th>verdict</th><th>queries</th><th>no recovery below (Theorem 3, estimated)</th><th>best recovery fitted</th>"
    )
    body = "".join(
        f"<tr><td>{letter}</td><td>{r['rows']}</td><td>{r['bound']:.4f}</td><td>{r['fitted']:.4f}</td></tr>"
        for letter, r in results["theorem3_paper_own_kind"].items()
    )
    words = (
        "Mean squared error per query against the honest answer, for the own-kind attacker under the paper's policy. "
        "A bound of 0 promises nothing: the answer is honest, or follows from what the attacker sees."
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p class='lead'>{words}</p>"


def _fit(fit: dict[str, Any]) -> str:
    facts = {
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
    body = "".join(f"<tr><td>{escape(k)}</td><td>{escape(v)}</td></tr>" for k, v in facts.items())
    return f"<table><tbody>{body}</tbody></table>"
