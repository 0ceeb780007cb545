"""What it took to bring attackers to full strength, before and after: tables for docs/attacks.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from queen.bench.render.markdown import markdown_table
from queen.bench.run import read_results
from queen.bench.spec import read_spec

RESULTS = Path(__file__).parents[1] / "results"
BEFORE, AFTER, QUEEN = RESULTS / "cifar10-h200", RESULTS / "cifar10", RESULTS / "queen"
SPEED, ABLATION = RESULTS / "training/h200.json", RESULTS / "training/ablation-h200.json"
RADIUS, DATA_FREE = RESULTS / "training/radius-h200.json", RESULTS / "data-free"
DATA_FREE_SPEC = RESULTS.parent / "benchmarks/data-free.yaml"
FEW, PLAN = RESULTS / "training/few-cpu.json", RESULTS / "plan/cifar10-h200.json"
KINDS = {
    "plain": "every step in Python",
    "recorded": "one CUDA graph per step",
    "compiled": "the same, network compiled",
}
Result = Mapping[str, Any]


def speed_table() -> str:
    """Images per second of a thief's training."""
    report = json.loads(SPEED.read_text())
    rows = [
        (
            KINDS[row["kind"]],
            f"{row['batch']:,}",
            "yes" if row["augment"] else "no",
            f"{row['images_per_second']:,}",
            f"{row['seconds_before']:.0f}",
        )
        for row in report["rows"]
    ]
    header = ("how", "batch", "shifted and mirrored", "images/s", "seconds before it runs at that speed")
    return f"{markdown_table(header, rows)}\nVGG16-BN, 32 x 32 pixels, {report['hardware']['device']}.\n"


def labels_table() -> str:
    """Right labels after recovery and the thief's accuracy, before and after, of all attacks that ran in both."""
    before, after = (by_cell(folder) for folder in (BEFORE, AFTER))
    recovering = [cell for cell in before if cell in after and cell[2] in ("ddae_plus", "pbayes")]
    rows = []
    for cell in sorted(recovering):
        labels, thieves = zip(*((_labels(r), _accuracy(r)) for r in (before[cell], after[cell])), strict=True)
        if cell[0] != "queen-sentinel":  # another sentinel then
            rows.append((f"`{cell[0]}`", f"`{cell[2]}`", *labels, *thieves))
    header = ("defense", "attack", "right labels before", "after", "thief before", "after")
    return markdown_table(header, rows)


def shadows_line() -> str:
    """What D-DAE's shadows learnt."""
    facts = [r["recovery"]["shadows"] for r in read_results(AFTER) if "shadows" in r.get("recovery", {})]
    worst = min(facts, key=lambda shadows: shadows["accuracy"] - shadows["chance"])
    return (
        f"In {len(facts)} trials D-DAE's shadows knew at least {worst['accuracy']:.0%} of their own training images "
        f"(a constant guess: {worst['chance']:.0%}),\nwith a mean top probability of {worst['top_probability']:.2f} "
        "on the images asked.\n"
    )


def release_line() -> str:
    """What the authors' release leaves to a thief, on digits."""
    results = {r["attack"]: r for r in read_results(QUEEN) if r["column"] == "queen-artifact"}
    direct, sanitiser = results["direct"]["thief"], results["sanitiser"]["thief"]
    chance = results["direct"]["protectee"]["chance"]
    tries = ", ".join(f"{accuracy:.1%}" for accuracy in direct["tries"])
    return (
        f"On digits, where a constant guess has {chance:.1%}, a direct thief's trainings on the release's answers end\n"
        f"at {tries}. One that makes probabilities of the answers first (`sanitiser`)\n"
        f"has {sanitiser['accuracy']:.1%}.\n"
    )


def data_free_line() -> str:
    """What a thief without images gets, without a defense, behind the sentinel, and behind others as far as run."""
    found = {r["column"]: r for r in read_results(DATA_FREE)}
    none, sentinel = found.pop("none"), found.pop("queen-sentinel")
    planned = [cell.column for cell in read_spec(DATA_FREE_SPEC).cells()]
    others = [f"`{column}` {_accuracy(found[column])}" for column in planned if column in found]
    missing = [f"`{name}`" for name in planned if name not in (*found, none["column"], sentinel["column"])]
    lines = [f"Behind the others: {', '.join(others)}.\n"] if others else []
    lines += [f"Not run yet: {', '.join(missing)}.\n"] if missing else []
    return (
        f"On CIFAR-10 ([results/data-free](../results/data-free)) {none['queries']['answered']:,} answers of the "
        f"undefended victim ({none['protectee']['accuracy']:.1%})\nmake a copy of {_accuracy(none)}, without a single "
        f"image of the attacker's own. The sentinel answers {sentinel['queries']['answered']} queries and\nrefuses all "
        f"others; what was learnt from those has {_accuracy(sentinel)}, "
        f"{'one class for nearly every image' if sentinel['thief']['collapsed'] else 'by its last epoch'}.\n"
        + "".join(lines)
    )


def few_table() -> str:
    """What a thief with few answers learns in more and more steps."""
    rows = json.loads(FEW.read_text())["rows"]
    steps = sorted({row["steps"] for row in rows})
    found = {(row["answers"], row["steps"]): row["accuracies"] for row in rows}
    body = [
        (f"{answers:,}", *(f"{mean(found[answers, count]):.1%}" for count in steps))
        for answers in sorted({row["answers"] for row in rows})
    ]
    header = ("answers", *(f"{count:,} steps" for count in steps))
    return (
        f"{markdown_table(header, body)}\nA VGG16-BN an eighth as wide on true labels of CIFAR-10, mean of two seeds.\n"
    )


def plan_line() -> str:
    """What the plan of the whole matrix says, and the columns that were run to show it."""
    report = json.loads(PLAN.read_text())
    plan, shown = report["plan"], report["shown"]
    columns = ", ".join(f"`{name}`" for name in shown["columns"])
    minutes = f"{'' if plan['complete'] else 'at least '}{plan['minutes']:.0f} minutes"
    return (
        f"For thirteen of the matrix's columns and the paper's twelve attacks ({plan['cells']} cells) the plan says\n"
        f"{minutes} of one {shown['hardware']['device']}. Three columns run to show it ({columns}:\n"
        f"{shown['cells']} cells, {shown['jobs']} processes) took {shown['seconds'] / 60:.1f} minutes.\n"
    )


def ablation_table() -> str:
    """What an undefended thief's accuracy depends on."""
    report = json.loads(ABLATION.read_text())
    rows = [
        (row["change"], f"{row['accuracy']:.1%}", f"{row['victim']:.1%}", f"{row['steps']:,}") for row in report["rows"]
    ]
    table = markdown_table(("changed", "thief", "victim", "steps"), rows)
    return f"{table}\n50,000 queries, one seed, {report['hardware']['device']}.\n"


def radius_table() -> str:
    """What becomes of a thief's queries and of a benign client, radius by radius."""
    rows = [
        (
            f"{row['absolute_radius']:g}",
            *(f"{row['thief'][letter]:.1%}" for letter in "AB"),
            f"{row['points_lost']:.1f}",
        )
        for row in json.loads(RADIUS.read_text())["rows"]
    ]
    header = ("radius", "thief's queries outside a disc", "reversed", "points a benign client of 10,000 queries loses")
    return markdown_table(header, rows)


def by_cell(folder: Path) -> dict[tuple[str, str, str], Result]:
    """The results of a folder with the first seed, the only one that all cells have, by defense, query and attack."""
    return {(r["column"], r["query"], r["attack"]): r for r in read_results(folder) if r["seed"] == 0}


def _labels(result: Result) -> str:
    return f"{result['believed']['label_right']:.1%}"


def _accuracy(result: Result) -> str:
    return f"{result['thief']['accuracy']:.1%}"
