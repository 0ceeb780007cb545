"""What thieves still get behind the sentinel, for docs/threat-model.md: from the results of demo and CIFAR-10."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from queen.bench.render.markdown import markdown_table

THIEVES = {
    "direct": "foreign images, one account",
    "evade_score": "foreign images, changed until they look usual to a model of its own",
    "cover_3": "foreign images, and three of the victim's kind sent with each",
    "cover_10": "foreign images, and ten of the victim's kind sent with each",
    "evade_score_own_kind": "foreign images, changed until they look as usual as its images of the victim's kind",
    "own_encoder_head": "an encoder of its own, trained on many labelled images",
    "many_accounts": "foreign images, ten accounts without a group",
    "greybox_head": "the victim's own encoder, for example a public one that got a new head",
}
Result = Mapping[str, Any]


def remaining_markdown(demo: Result, matrix: Sequence[Result]) -> str:
    """Copies that thieves make behind the sentinel as it comes, and benign clients that it accuses.

    `matrix` are results of the CIFAR-10 matrix; of these, thieves with random images count.
    """
    thieves = demo["adaptive"]["thieves"]
    behind = [result for result in matrix if (result["column"], result["query"]) == ("queen-sentinel", "knockoff")]
    rows = [(f"`{name}`", has, *_demo_cells(thieves.get(name)), _mean(behind, name)) for name, has in THIEVES.items()]
    benign = demo["sentinel"]["benign_clients"].values()
    notes = [
        f"Accuracy of the copy; the demo's victim has {demo['victim_accuracy']:.1%}, guessing one class scores "
        f"{demo['chance']:.1%}. Honest answers and undefended: in the demo.",
        f"CIFAR-10: {max(result['queries']['budget'] for result in behind):,} queries each, [the matrix](results.md).",
        f"Benign clients accused in the demo: {sum(kind['accused'] for kind in benign)} of "
        f"{sum(kind['clients'] for kind in benign):,} simulated.",
    ]
    header = ("attack", "the thief has", "honest answers", "undefended", "demo", "CIFAR-10")
    return f"{markdown_table(header, rows)}\n{' '.join(notes)}\n"


def _demo_cells(thief: Result | None) -> tuple[str, str, str]:
    if thief is None:
        return "", "", ""
    columns = thief["columns"]
    plain, behind = columns.get("undefended"), columns["sentinel"]
    return f"{behind['honest_answers']:.0f}", f"{plain['thief']:.1%}" if plain else "", f"{behind['thief']:.1%}"


def _mean(results: Sequence[Result], attack: str) -> str:
    accuracies = [result["thief"]["accuracy"] for result in results if result["attack"] == attack]
    return f"{fmean(accuracies):.1%}" if accuracies else ""
