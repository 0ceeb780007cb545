"""What docs/honest-rerun.md says of single cells: collapsed ones of the paper, labels that our attacks threw away."""

from __future__ import annotations

from queen.attacks import ATTACKS, QUERIES
from queen.bench.render.comparison import is_collapsed
from queen.bench.render.leaderboard import name_cells
from queen.bench.render.markdown import markdown_table
from queen.bench.run import read_results
from tools.rerun import PAPERS, read_paper
from tools.strength import AFTER, BEFORE, by_cell

ORDER = [*QUERIES, *ATTACKS]
FIGURES = (("believed", "label_right"), ("thief", "accuracy"))  # of a recovery attack, as results hold them


def collapsed_table() -> str:
    """How many of the paper's figures are exactly one class's share of the test set, and which."""
    rows = []
    for path in sorted(PAPERS.glob("*.json"), key=lambda path: read_paper(path.stem)["classes"]):
        paper = read_paper(path.stem)
        figures = [
            (query, attack, column, value)
            for query, attacks in paper["thief_accuracy"].items()
            for attack, columns in attacks.items()
            for column, value in columns.items()
        ]
        collapsed = [cell for cell in figures if is_collapsed(cell[3], paper["classes"])]
        columns = ", ".join(dict.fromkeys(column for *_, column, _ in collapsed))
        named = name_cells((query, attack, 0) for query, attack, *_ in collapsed)
        share = f"{100 / paper['classes']:.2f} %"
        rows.append((path.stem, share, f"{len(collapsed)} of {len(figures)}", f"{columns}: {named}"))
    return markdown_table(("data set", "one class's share", "cells that are exactly that", "which"), rows)


def release_table() -> str:
    """Thieves who learn from what the release answers: their first training, later ones, the paper's figure."""
    results, paper = read_results(AFTER), read_paper("cifar10")["thief_accuracy"]
    release, rows = [r for r in results if r["column"] == "queen-artifact"], []
    for result in sorted(release, key=lambda r: (ORDER.index(r["query"]), ORDER.index(r["attack"]))):
        first, *later = (f"{accuracy:.1%}" for accuracy in result["thief"]["tries"])
        printed = paper[result["query"]].get(result["attack"], {}).get("queen")
        rows.append(
            (result["query"], result["attack"], first, ", ".join(later) or "-", f"{printed:.1f}%" if printed else "-")
        )
    table = markdown_table(("query", "attack", "first training", "again", "the paper's QUEEN"), rows)
    valid = [r for r in results if r["column"] not in ("queen-artifact", "queen-sentinel")]
    again = [r for r in valid if len(r["thief"]["tries"]) > 1]
    named = ", ".join(f"`{r['column']}` {name_cells([(r['query'], r['attack'], 0)])}" for r in again) or "none"
    return (
        f"{table}\nOf the {len(valid)} thieves of the other columns (the sentinel's apart, who get few answers) "
        f"{len(again)} had to be\ntrained again: {named}.\n"
    )


def thrown_away_table() -> str:
    """Recovery attacks that lost right labels, before and after they believed them, beside the paper's figures."""
    before, after, paper = by_cell(BEFORE), by_cell(AFTER), read_paper("cifar10")["thief_accuracy"]
    rows = []
    for column, query, attack in sorted(before):
        cell = (column, query, attack)
        if cell in after and attack in ("ddae_plus", "pbayes") and column in paper[query][attack]:
            old, new = (results[cell] for results in (before, after))
            if old["believed"]["label_right"] < 0.98:
                shown = (f"{r[key][name]:.1%}" for key, name in FIGURES for r in (old, new))
                rows.append((column, attack, *shown, f"{paper[query][attack][column]:.1f}%"))
    header = ("defense", "attack", "right labels before", "after", "thief before", "after", "the paper's thief")
    return markdown_table(header, rows)
