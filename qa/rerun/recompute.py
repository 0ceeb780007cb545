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
CELLS: Sequence[tuple[str, str]] = (("none", "direct"), ("modelguard_w", "direct"), ("modelguard_w", "pbayes"))
LEARNT = 0.1  # above chance: less is no copy
HURT = 0.05  # of accuracy, which a thief loses that believes ModelGuard's answers
LOST = 0.02  # share of the right labels that a recovery may lose

Result = Mapping[str, Any]
Results = Mapping[tuple[str, str], Result]


def small_spec(*, quick: bool, defended: bool = True) -> Spec:
    """The spec of the matrix with three of its cells, made small; unless `defended`, ModelGuard is none."""
    content = read_yaml(SPEC)
    protectee, share = content["protectee"], 1 if quick else 2
    protectee |= {"train": 6000 * share, "calibration": 0, "benign": 0, "victim_per_seed": False}
    protectee["network"] |= {"name": "small_cnn", "width": 16, "hidden": 128, "grid": 8}
    protectee["schedule"] = {"epochs": 10, "lr": 0.05, "batch": 64}
    protectee["pool"]["count"], protectee["test"]["count"], protectee["outliers"]["count"] = 3000 * share, 2000, 1000
    content["thief"]["schedule"] = {"epochs": 10, "lr": 0.05, "batch": 64, "min_steps": 300}
    content["budget"] = 3000 * share
    content["sizes"] |= {"table": 20000, "ask_batch": 256}
    content["defenses"] = {"none": {}, "modelguard_w": {} if defended else {"defense": "none"}}
    content["matrix"] = [{"queries": "knockoff", "defenses": column, "attacks": attack} for column, attack in CELLS]
    return make_spec(content)


def run(folder: Path, quick: bool) -> list[Check]:
    """Make the cells, judge them, and make the first one again from nothing."""
    spec = small_spec(quick=quick)
    results = _make(spec, folder / "first")
    again = _make(spec, folder / "second", columns=["none"])
    first = CELLS[0]
    same = _figures(results[first]) == _figures(again[first])
    weights = [made[first]["protectee"]["weights"][:16] for made in (results, again)]
    return [
        *judge(results, folder / "first"),
        Check("a second run trains the same victim", weights[0] == weights[1], " and ".join(weights)),
        Check("and has the same figures", same, f"thief {again[first]['thief']['accuracy']:.1%}"),
    ]


def control(folder: Path, quick: bool) -> list[Check]:
    """The same checks where there is no defense."""
    return judge(_make(small_spec(quick=quick, defended=False), folder), folder)


def judge(results: Results, folder: Path) -> list[Check]:
    """What the matrix says of these cells."""
    plain, believing, recovering = (results[cell] for cell in CELLS)
    undefended, believed, recovered = (result["thief"]["accuracy"] for result in (plain, believing, recovering))
    right, told = recovering["believed"]["label_right"], recovering["answers"]["label_kept"]
    flagged = [f"{cell}: {flag}" for cell, result in results.items() for flag in open_flags(result)]
    return [
        none_of("flags that nothing explains", flagged, len(results)),
        Check("the undefended thief learns", undefended > plain["protectee"]["chance"] + LEARNT, f"{undefended:.1%}"),
        Check("ModelGuard-W hurts who believes it", believed < undefended - HURT, f"{believed:.1%}"),
        Check("pBayes gets most of that back", recovered > (believed + undefended) / 2, f"{recovered:.1%}"),
        Check("and loses no labels", right >= (1 - LOST) * told, f"{right:.1%} right of {told:.1%} told"),
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


def _figures(result: Result) -> dict[str, Any]:
    """What does not depend on how busy the machine was."""
    thief = {name: result["thief"][name] for name in ("accuracy", "agreement", "epochs", "fits")}
    return {"thief": thief, **{part: result[part] for part in ("answers", "verdicts", "utility")}}
