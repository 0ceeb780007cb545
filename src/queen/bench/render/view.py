"""The page of `queen bench view`: tables to filter, and every cell of a folder of results with a page of its own.

The page holds the tables and a few facts of each cell; the rest it reads from the cell's own file when one is opened.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any

from queen.bench.render.html_page import STYLE
from queen.bench.render.submit import submit_html
from queen.bench.render.table import BEST, BEST_ADAPTIVE, EXPLAINED, MARKS, METRICS, Entry, Row, Table, tables
from queen.bench.spec import Spec
from queen.errors import OptionError

LARGEST = 1_000_000  # bytes of a page, which a browser opens at once and a repository can hold
SCRIPTS = ("dom.js", "tables.js", "curve.js", "cell.js", "app.js")  # one script; later ones use earlier ones
MEAN = "mean"  # over seeds
KNOWLEDGE = {name: {"mark": mark, "meaning": EXPLAINED[mark]} for name, mark in MARKS.items()} | {
    "defense": {"mark": "", "meaning": "holds the defender's own networks, which no real attacker does."}
}
Result = Mapping[str, Any]


def html_view(results: Mapping[str, Result], *, title: str, specs: Mapping[str, Spec], folder: str = "") -> str:
    """The whole page.

    `results` are by their paths below the folder of results, and `folder` is the way there from the page ("" where the
    page lies in it, else with a slash at its end). `specs` are by the name that a command gets: those of them that a
    result is of say how to compute it again.
    """
    known = {(str(cell.path), cell.hash): name for name, spec in specs.items() for cell in spec.cells()}
    data = {
        "folder": folder,
        "metrics": METRICS,
        "tables": {metric: _by_seed(list(results.values()), metric) for metric in METRICS},
        "knowledge": KNOWLEDGE,
        "cells": [{**_cell(path, result), **_again(path, result, known)} for path, result in results.items()],
    }
    page = _fill(title, _lead(results, specs), data)
    size = len(page.encode())
    if size > LARGEST:
        raise OptionError(
            f"a page of {len(results):,} cells would have {size:,} bytes, expected at most {LARGEST:,}: "
            "make one page for each folder below"
        )
    return page


def _by_seed(results: Sequence[Result], metric: str) -> dict[str, list[dict[str, Any]]]:
    """The tables over all seeds and, where there are several, of each."""
    seeds = sorted({result["seed"] for result in results})
    chosen = {MEAN: results}
    if len(seeds) > 1:
        chosen |= {str(seed): [r for r in results if r["seed"] == seed] for seed in seeds}
    return {name: [_table(table, some) for table in tables(some, metric)] for name, some in chosen.items()}


def _table(table: Table, results: Sequence[Result]) -> dict[str, Any]:
    """A table as the page draws it: every entry with its text, and how red it is."""
    victim = next(r["protectee"] for r in results if r["protectee"]["name"] == table.protectee)
    best = 1.0 if table.metric.endswith("agreement") else victim["accuracy"]
    return {
        "protectee": table.protectee,
        "chance": victim["chance"],
        "best": best,
        "columns": table.columns,
        "rows": [
            {
                "query": row.query,
                "attack": row.attack,
                "marks": row.marks,
                "kind": _kind(row),
                "entries": [_entry(entry, victim["chance"], best) for entry in row.entries],
            }
            for row in table.rows
        ],
        "notes": table.notes,
    }


def _kind(row: Row) -> str:
    if row.attack in (BEST, BEST_ADAPTIVE):
        return "best"
    return "attack" if row.query else "benign"


def _entry(entry: Entry | None, chance: float, best: float) -> tuple[str, float | None] | None:
    """What an entry says, and where it lies between chance (0) and as good as the victim (1)."""
    if entry is None:
        return None
    if entry.mean is None:
        return entry.text(), None
    return entry.text(), round(min(1.0, max(0.0, (entry.mean - chance) / max(best - chance, 1e-9))), 3)


def _cell(path: str, result: Result) -> dict[str, Any]:
    """What the page knows of a cell without its file."""
    thief, queries = result["thief"], result["queries"]
    return {
        "path": path,
        "hash": result.get("hash"),
        "protectee": result["protectee"]["name"],
        **{name: result[name] for name in ("column", "query", "attack", "seed", "knows", "flags")},
        "explained": result.get("explained", {}),
        **{metric: thief.get(metric) for metric in METRICS},
        "benign": {clients: facts["accuracy"] for clients, facts in result["utility"].items()},
        **{name: queries.get(name) for name in ("budget", "sent", "answered")},
        "honest": result.get("answers", {}).get("honest"),
        "commit": result.get("versions", {}).get("commit"),
    }


def _again(path: str, result: Result, known: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    """What computes a cell again, and whether a spec is known that does so.

    One of the same path is not enough: the hash of its config must be the cell's.
    """
    spec = known.get((path, result.get("hash", "")))
    chosen = (word for kind in ("column", "query", "attack", "seed") for word in (f"--{kind}", str(result[kind])))
    line = shlex.join(["queen", "bench", "run", spec or "SPEC", *chosen, "--out", "build/again"])
    return {"command": line, "repeatable": spec is not None}


def _lead(results: Mapping[str, Result], specs: Mapping[str, Spec]) -> str:
    """What the folder holds, what it lacks, and which code made it."""
    flagged = sum(bool(result["flags"]) for result in results.values())
    missing = {str(cell.path) for spec in specs.values() for cell in spec.cells()} - set(results)
    commits = [result.get("versions", {}).get("commit") for result in results.values()]
    unknown, known = commits.count(None), len({*commits} - {None})
    said = [f"{len(results):,} cells, {flagged:,} of them flagged"]
    said += [f"{len(missing):,} more cells of the spec have no result yet"] if missing else []
    said += [f"made by {known:,} commit{'s' if known > 1 else ''}"] if known else []
    said += [f"the commit of {unknown:,} was not recorded"] if unknown else []
    return "; ".join(said) + "."


def _fill(title: str, lead: str, data: Mapping[str, Any]) -> str:
    style, script = STYLE + _read("style.css"), _join(map(_read, SCRIPTS))
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return Template(_read("page.html")).substitute(
        policy=policy,
        title=escape(title),
        lead=escape(lead),
        style=style,
        submit=submit_html(),
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),  # so that no text ends the script
        script=script,
    )


def _join(scripts: Iterable[str]) -> str:
    return '"use strict";\n' + "\n".join(scripts)


def _digest(text: str) -> str:
    """How a content policy names an inline script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _read(name: str) -> str:
    return (resources.files("queen.bench.render") / "view_page" / name).read_text(encoding="utf-8")
