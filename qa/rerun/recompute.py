"""Goal 33: three cells of the CIFAR-10 matrix, made again from the images to the table, at a fraction of their size.

The spec is `benchmarks/paper/cifar10.yaml` with fewer images and queries and a small network, so that two cores take
minutes. The figures are not those of the matrix; what it says of these cells must hold all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from qa.serving.scenario import Check, none_of
from queen.bench.datasets.load import files_of_set
from queen.bench.parsing import read_yaml
from queen.bench.render.table import open_flags, tables
from queen.bench.run import read_results, run_spec
from queen.bench.spec import Spec, make_spec
from queen.errors import QueenError

SPEC = Path(__file__).parents[2] / "benchmarks" / "paper" / "cifar10.yaml"
SETS = ("cifar10", "tinyimagenet", "svhn")
CELLS: Sequence[tuple[str, str]] = (("none", "direct"), ("modelguard_w", "pbayes"), ("queen-sentinel", "direct"))
LEARNT = 0.1  # above chance: less is no copy
SOON = 300  # queries, within which a thief with foreign images is accused
LOST = 0.02  # share of the right labels that a recovery may lose

Result = Mapping[str, Any]
Results = Mapping[tuple[str, str], Result]


def small_spec(*, quick: bool, watched: bool = True) -> Spec:
    """The spec of the matrix with three of its cells, made small; unless `watched`, nobody watches in the sentinel's
    column."""
    content = read_yaml(SPEC)
    protectee, share = content["protectee"], 1 if quick else 2
    protectee |= {"train": 6000 * share, "calibration": 2000 * share, "benign": 500, "victim_per_seed": False}
    protectee["network"] |= {"name": "small_cnn", "width": 16, "hidden": 128, "grid": 8}
    protectee["schedule"] = {"epochs": 10, "lr": 0.05, "batch": 64}
    protectee["pool"]["count"], protectee["test"]["count"], protectee["outliers"]["count"] = 3000 * share, 2000, 1000
    content["thief"]["schedule"] = {"epochs": 10, "lr": 0.05, "batch": 64, "min_steps": 300}
    content["budget"] = 3000 * share
    content["sizes"] |= {"table": 20000, "ask_batch": 256}
    columns = dict.fromkeys(column for column, _ in CELLS)
    content["defenses"] = {column: content["defenses"][column] for column in columns}
    if not watched:
        content["defenses"]["queen-sentinel"] = {"defense": "none"}
    content["matrix"] = [{"queries": "knockoff", "defenses": column, "attacks": attack} for column, attack in CELLS]
    return make_spec(content)


def run(folder: Path, quick: bool) -> list[Check]:
    """Make the cells, judge them, and make the first one again from nothing."""
    spec = small_spec(quick=quick)
    results = _make(spec, folder / "first")
    again = _make(spec, folder / "second", columns=["none"])
    first = CELLS[0]
    same = all(results[first][part] == again[first][part] for part in ("thief", "answers", "verdicts"))
    weights = [made[first]["protectee"]["weights"][:16] for made in (results, again)]
    return [
        *judge(results, folder / "first"),
        Check("a second run trains the same victim", weights[0] == weights[1], " and ".join(weights)),
        Check("and has the same figures", same, f"thief {_accuracy(again[first])}"),
    ]


def control(folder: Path, quick: bool) -> list[Check]:
    """The same checks where nobody watches."""
    return judge(_make(small_spec(quick=quick, watched=False), folder), folder)


def judge(results: Results, folder: Path) -> list[Check]:
    """What the matrix says of these cells."""
    plain, recovered, watched = (results[cell] for cell in CELLS)
    chance = plain["protectee"]["chance"]
    honest = round(watched["verdicts"]["honest"] * watched["queries"]["sent"])
    right, told = recovered["believed"]["label_right"], recovered["answers"]["label_kept"]
    flagged = [f"{cell}: {flag}" for cell, result in results.items() for flag in open_flags(result)]
    return [
        none_of("flags that nothing explains", flagged, len(results)),
        Check("the undefended thief has learnt", plain["thief"]["accuracy"] > chance + LEARNT, _accuracy(plain)),
        Check(f"the sentinel accuses within {SOON} queries", 0 < honest <= SOON, f"{honest} honest answers"),
        Check("its thief has less than the undefended one", _less(watched, plain), _accuracy(watched)),
        Check("recovery loses no labels", right >= (1 - LOST) * told, f"{right:.1%} right of {told:.1%} told"),
        _check_table(results, folder),
    ]


def _check_table(results: Results, folder: Path) -> Check:
    """Whether the printed table holds the figures of the files."""
    [table] = tables(read_results(folder))
    printed = {
        (column, row.attack): entry.text().rstrip("*")
        for row in table.rows
        for column, entry in zip(table.columns, row.entries, strict=True)
        if entry is not None
    }
    wrong = [cell for cell in CELLS if printed[cell] != f"{100 * results[cell]['thief']['accuracy']:.1f}"]
    return none_of("figures of the table that no file holds", wrong, len(CELLS))


def _make(spec: Spec, out: Path, columns: Sequence[str] = ()) -> Results:
    """Run the cells in this process, from the images on; skipped, where there are none."""
    try:
        for name in SETS:
            files_of_set(name)
    except QueenError as missing:
        pytest.skip(f"needs published images: {missing}")
    done = run_spec(spec, out, jobs=1, selected=spec.select(columns=columns))
    if done.failed:
        raise AssertionError(f"cells failed: {done.failed}")
    return {(result["column"], result["attack"]): result for result in read_results(out)}


def _less(one: Result, other: Result) -> bool:
    return bool(one["thief"]["accuracy"] < other["thief"]["accuracy"] - LEARNT / 2)


def _accuracy(result: Result) -> str:
    return f"{result['thief']['accuracy']:.1%}"
