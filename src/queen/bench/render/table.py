"""Results as tables in the paper's layout: one row per attack, one column per defense, and the best attacker's row."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from queen.attacks import ATTACKS, QUERIES
from queen.bench.render.markdown import markdown_list, markdown_table
from queen.defenses import DEFENSES
from queen.errors import OptionError

METRICS = ("accuracy", "best_accuracy", "agreement", "best_agreement")
FLAG, ORACLE, OWN_KIND, ENCODER = "*", "°", "†", "‡"
MARKS = {"prior": ORACLE, "benign": OWN_KIND, "encoder": ENCODER}  # of what an attack knows
EXPLAINED = {
    ORACLE: "knows the victim's clean answers, as no real attacker does.",
    OWN_KIND: "owns images of the victim's own kind, and trains on the answers to them too.",
    ENCODER: "owns the victim's encoder, for example because it is a public one that only got a new head.",
}
BEST, BEST_ADAPTIVE = "max", "max of adaptive"


@dataclass(frozen=True)
class Entry:
    """An attack on a defense over all seeds: the accuracies, and what is wrong with them."""

    values: tuple[float, ...]
    flags: tuple[str, ...] = ()

    @property
    def mean(self) -> float | None:
        """The mean over seeds."""
        return statistics.mean(self.values) if self.values else None

    def text(self) -> str:
        """The mean in percent, plus-minus the spread of several seeds, and a star if a result is flagged."""
        if self.mean is None:
            return "-" + (FLAG if self.flags else "")
        spread = f"±{100 * statistics.stdev(self.values):.1f}" if len(self.values) > 1 else ""
        return f"{100 * self.mean:.1f}{spread}{FLAG if self.flags else ''}"


@dataclass(frozen=True)
class Row:
    """A row of a table; `query` is empty in rows about benign clients, `marks` are of what its attack knows."""

    query: str
    attack: str
    entries: tuple[Entry | None, ...]
    marks: str = ""

    @property
    def name(self) -> str:
        """The attack as tables show it, or what else the row is about."""
        return self.attack + self.marks

    def texts(self) -> list[str]:
        """The entries as text."""
        return ["" if entry is None else entry.text() for entry in self.entries]


@dataclass(frozen=True)
class Table:
    """All results of one protectee."""

    protectee: str
    metric: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def tables(results: Sequence[Mapping[str, Any]], metric: str = "accuracy") -> list[Table]:
    """One table per protectee."""
    if metric not in METRICS:
        raise OptionError(f"no metric '{metric}'; known: {', '.join(METRICS)}")
    names = dict.fromkeys(result["protectee"]["name"] for result in results)
    return [_table([r for r in results if r["protectee"]["name"] == name], metric) for name in names]


def _table(results: Sequence[Mapping[str, Any]], metric: str) -> Table:
    columns = sort_by((r["column"] for r in results), DEFENSES)
    rows = [_benign_row(results, columns, name, clients) for name, clients in BENIGN.items()]
    for query in sort_by((r["query"] for r in results), QUERIES):
        here = [r for r in results if r["query"] == query]
        attacks = sort_by((r["attack"] for r in here), ATTACKS)
        lines = [_attack_row(here, columns, query, attack, metric) for attack in attacks]
        adaptive = [line for attack, line in zip(attacks, lines, strict=True) if _is_adaptive(attack)]
        published = [line for line in lines if line not in adaptive]
        rows += [*published, *([_best_row(published, query, BEST)] if published else [])]
        rows += [*adaptive, *([_best_row(adaptive, query, BEST_ADAPTIVE)] if adaptive else [])]
    return Table(results[0]["protectee"]["name"], metric, columns, tuple(rows), tuple(_notes(results, metric)))


BENIGN = {"benign accuracy, one client": "one_client", "benign accuracy, many clients": "many_clients"}


def _benign_row(results: Sequence[Mapping[str, Any]], columns: Sequence[str], name: str, clients: str) -> Row:
    entries = []
    for column in columns:
        by_seed = {r["seed"]: r["utility"][clients]["accuracy"] for r in results if r["column"] == column}
        entries.append(Entry(tuple(by_seed.values())))
    return Row("", name, tuple(entries))


def _attack_row(
    results: Sequence[Mapping[str, Any]], columns: Sequence[str], query: str, attack: str, metric: str
) -> Row:
    here = [r for r in results if r["attack"] == attack]
    by_column = [[r for r in here if r["column"] == column] for column in columns]
    entries = tuple(make_entry(cells, metric) if cells else None for cells in by_column)
    return Row(query, attack, entries, knowledge_marks(here))


def make_entry(results: Sequence[Mapping[str, Any]], metric: str = "accuracy") -> Entry:
    """One attack on one defense, from its results over all seeds."""
    values = tuple(r["thief"][metric] for r in results if r["thief"].get("accuracy") is not None)
    return Entry(values, tuple(dict.fromkeys(flag for r in results for flag in open_flags(r))))


def knowledge_marks(results: Sequence[Mapping[str, Any]]) -> str:
    """The marks of what an attack knows that others do not."""
    return "".join(mark for knowledge, mark in MARKS.items() if any(knowledge in r["knows"] for r in results))


def _is_adaptive(attack: str) -> bool:
    return attack in ATTACKS and ATTACKS[attack].adaptive


def _best_row(rows: Sequence[Row], query: str, name: str) -> Row:
    """The best attacker's entry against every defense, with its flags."""
    best = []
    for column in zip(*(row.entries for row in rows), strict=True):
        measured = [entry for entry in column if entry is not None and entry.mean is not None]
        best.append(max(measured, key=lambda entry: entry.mean or 0.0) if measured else None)
    return Row(query, name, tuple(best))


def sort_by(names: Iterable[str], known: Mapping[str, Any]) -> tuple[str, ...]:
    """Each name once: known ones in the order of `known`, the others after them."""
    order = {name: i for i, name in enumerate(known)}
    return tuple(sorted(dict.fromkeys(names), key=lambda name: (order.get(name, len(order)), name)))


def _notes(results: Sequence[Mapping[str, Any]], metric: str) -> list[str]:
    victim, seeds = results[0]["protectee"], sorted({r["seed"] for r in results})
    alone = sorted({r["protectee"]["accuracy"] for r in results})
    budgets = sorted({r["queries"]["budget"] for r in results})
    notes = [
        f"Thief {metric.replace('_', ' ')} in percent on {victim['images']['test']} test images, seeds {seeds}"
        f"{'' if len(seeds) == 1 else ' (± where a cell has several)'}, "
        f"{budgets[0] if len(budgets) == 1 else budgets} queries. The victim alone has "
        f"{' to '.join(f'{100 * value:.1f}' for value in dict.fromkeys([alone[0], alone[-1]]))} %; "
        f"always guessing one class scores {100 * victim['chance']:.1f} %.",
        f"Images from {', '.join(victim['sources'])}{_where_from(results)}.",
    ]
    notes += [
        f"{column}: one benign client that sends all {queries:,} test images gets no answer to {refused:.0%} of them; "
        "a query without an answer counts as wrong."
        for column, queries, refused in sorted(_refusals(results))
    ]
    known = {MARKS[knowledge] for result in results for knowledge in result["knows"] if knowledge in MARKS}
    notes += [f"{mark} {meaning}" for mark, meaning in EXPLAINED.items() if mark in known]
    flags: dict[str, int] = {}
    for result in results:
        for flag in open_flags(result):
            kind = flag.partition(" (")[0]  # what follows are a run's own figures
            flags[kind] = flags.get(kind, 0) + 1
    notes += [f"{FLAG} {flag}: {count} of {len(results)} runs." for flag, count in sorted(flags.items())]
    codes = {result.get("versions", {}).get("code") for result in results}
    if len(codes) > 1:
        notes.append(f"Results of {len(codes)} versions of the code.")
    excused = sum(bool(result.get("explained")) for result in results)
    if excused:
        notes.append(f"The flags of {excused} runs are explained by measurements in their results and not marked here.")
    return notes


def _where_from(results: Sequence[Mapping[str, Any]]) -> str:
    """What a note says of where the networks' weights come from."""
    specs = [result.get("config", {}).get("protectee") for result in results]
    if any(spec is None or spec.get("weights") for spec in specs):  # a user's own model, or weights that a spec names
        return ""
    return "; networks are trained from scratch, not from ImageNet weights"


def open_flags(result: Mapping[str, Any]) -> list[str]:
    """The flags of a result that nothing in it explains."""
    return [flag for flag in result["flags"] if flag not in result.get("explained", {})]


def _refusals(results: Sequence[Mapping[str, Any]]) -> set[tuple[str, int, float]]:
    """Columns whose one benign client is refused something, with its queries and the share refused."""
    clients = {result["column"]: result["utility"]["one_client"] for result in results}
    return {(column, one["queries"], one["refused"]) for column, one in clients.items() if one.get("refused")}


def to_json(table: Table) -> dict[str, Any]:
    """The table for scripts."""
    return {
        "protectee": table.protectee,
        "metric": table.metric,
        "columns": list(table.columns),
        "rows": [
            {
                "query": row.query,
                "name": row.name,
                "values": {
                    column: {"mean": entry.mean, "runs": list(entry.values), "flags": list(entry.flags)}
                    for column, entry in zip(table.columns, row.entries, strict=True)
                    if entry is not None
                },
            }
            for row in table.rows
        ],
        "notes": list(table.notes),
    }


def to_markdown(table: Table) -> str:
    """The table for documents."""
    rows = [(row.query, row.name, *row.texts()) for row in table.rows]
    return f"{markdown_table(('query', 'attack', *table.columns), rows)}\n{markdown_list(table.notes)}"


LATEX = {letter: f"\\{letter}" for letter in "_%&#${}"} | {
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "±": r"$\pm$",
    ORACLE: r"$^\circ$",
    OWN_KIND: r"$^\dagger$",
    ENCODER: r"$^\ddagger$",
    FLAG: r"$^\ast$",
}


def to_latex(table: Table) -> str:
    """The table for papers; it needs booktabs."""

    def safe(text: str) -> str:
        return "".join(LATEX.get(letter, letter) for letter in text)

    lines = [rf"\begin{{tabular}}{{ll{'r' * len(table.columns)}}}", r"\toprule"]
    lines.append(" & ".join(map(safe, ["query", "attack", *table.columns])) + r" \\")
    query = None
    for row in table.rows:
        if row.query != query:
            lines.append(r"\midrule")
            query = row.query
        lines.append(" & ".join(map(safe, [row.query, row.name, *row.texts()])) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join([*lines, *(f"% {note}" for note in table.notes)]) + "\n"
