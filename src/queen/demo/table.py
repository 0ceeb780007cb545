"""The demo's results as tables: one place that the terminal, the report and the documents are rendered from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from queen.bench.render.markdown import markdown_table
from queen.bench.render.table import EXPLAINED, FLAG, MARKS
from queen.demo.summary import best_thief

Results = Mapping[str, Any]
HEADER = (
    "policy",
    "thief's images",
    "honest answers",
    "thief direct",
    "thief labels",
    "agrees",
    "A/B/C/D %",
    "benign right",
    "L1",
    "time ratio",
)
THIEVES_HEADER = ("attacker", "queries", "honest answers", "accused", "thief undefended", "thief sentinel")
ACCOUNTS_HEADER = ("accounts", "honest answers alone", "pooled in a group")


@dataclass(frozen=True)
class DemoTable:
    """A table with its title and the notes below it; the first `left` columns are text."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    left: int = 1


def demo_tables(results: Results) -> list[DemoTable]:
    """All tables of a run: the policies', and those of the adaptive attackers where they were run."""
    policies = DemoTable("", HEADER, tuple(rows(results)), tuple(notes(results)), left=2)
    return [policies, *(adaptive_tables(results) if "adaptive" in results else [])]


def adaptive_tables(results: Results) -> list[DemoTable]:
    """What attackers who know the sentinel get, with how many accounts, and when each score raises the alarm."""
    adaptive = results["adaptive"]
    accounts = tuple((name, str(row["alone"]), str(row["pooled"])) for name, row in adaptive["accounts"].items())
    scores = tuple(next(iter(adaptive["alarms"].values())))
    alarms = tuple((kind, *map(_alarm, row.values())) for kind, row in adaptive["alarms"].items())
    return [
        DemoTable(
            "Thieves who know the sentinel",
            THIEVES_HEADER,
            tuple(_thief_row(name, row) for name, row in adaptive["thieves"].items()),
            tuple(_thief_notes(results)),
        ),
        DemoTable(
            "Many accounts",
            ACCOUNTS_HEADER,
            accounts,
            (
                f"{results['images']['pool_foreign']} foreign images dealt to accounts in turn, each account alone or "
                "all in one group that has the limits of one client.",
            ),
        ),
        DemoTable(
            "Images made to look usual",
            ("images", *scores),
            alarms,
            (
                "How many random orders of the images are accused by a sentinel that watches these scores, and at "
                "which query in the median. look-alike: the foreign images that look most usual to the victim; "
                "binarised: all in black and white.",
            ),
        ),
    ]


def rows(results: Results) -> Iterator[tuple[str, ...]]:
    """One row per policy and attacker; what a benign client gets stands in the policy's first row."""
    for name, policy in results["policies"].items():
        for pool in ("foreign", "own_kind"):
            attack = policy[pool]
            first = pool == "foreign"
            yield (
                name if first else "",
                pool.replace("_", " "),
                f"{attack['honest_answers']:.0f}",
                _percent(attack["thief_direct"]) + _star(attack, "direct"),
                _percent(attack["thief_label_only"]) + _star(attack, "label-only"),
                _percent(attack["agreement"]),
                verdict_shares(attack["verdicts"]),
                _percent(policy["benign_accuracy"]) if first else "",
                f"{policy['benign_l1']:.2f}" if first else "",
                f"{policy['time_ratio']:.2f}" if first else "",
            )
        if "foreign_honest_only" in policy:
            honest = policy["foreign_honest_only"]
            direct = _percent(honest["thief_direct"]) + _star(honest, "direct")
            yield "", "(honest)", f"{honest['answers']:.0f}", direct, "", _percent(honest["agreement"]), "", "", "", ""


def notes(results: Results) -> Iterator[str]:
    """What a reader must know to read the table of policies."""
    images = results["images"]
    yield (
        f"Victim: small CNN, {results['victim_accuracy']:.1%} on {images['test']} held-out MNIST digits; always "
        f"guessing one class scores {results['chance']:.1%}. Thief figures are means over seeds {results['seeds']}: "
        "trained on the answers (direct) or on their labels alone; agreement is the direct thief's with the victim."
    )
    yield (
        f"foreign: {images['pool_foreign']} scikit-learn digits. own kind: {images['pool_own_kind']} held-out MNIST "
        "digits. Benign: one client sending all test images, and the share it gets right; L1 is the mean distance of "
        "its answers from the honest ones (0 to 2). A/B/C/D: share of the thief's queries by verdict. (honest): the "
        "foreign thief that keeps only its honest answers."
    )
    plain = results["policies"]["undefended"]
    for name, policy in results["policies"].items():
        if policy is not plain:
            yield (
                f"{name}: the better of both thieves gets {_best(policy['foreign'])} with foreign images (undefended "
                f"{_best(plain['foreign'])}) and {_best(policy['own_kind'])} with the victim's own kind "
                f"({_best(plain['own_kind'])}); the benign client gets {_percent(policy['benign_accuracy'])} "
                f"({_percent(plain['benign_accuracy'])})."
            )
    yield from _sentinel_notes(results)
    yield from (f"{FLAG} {name}: {flag}" for name, policy in results["policies"].items() for flag in policy["flags"])


def _sentinel_notes(results: Results) -> Iterator[str]:
    watched, policy = results["sentinel"], results["policies"]["sentinel"]
    honest, orders = policy["foreign_honest_only"], watched["foreign_orders"]
    when = f"accused in {orders['accused']} of {orders['orders']} random orders"
    if orders["accused"]:
        when += f" (median at query {orders['median']:.0f}, 95 % by {orders['p95']:.0f}, the last at {orders['worst']})"
    here = "never" if policy["alarm_at"] is None else f"at query {policy['alarm_at']:.0f} in the median"
    yield (
        f"sentinel: the foreign thief is {when}, in the runs above {here}, and gets decoys from then on. A thief "
        f"that throws those away and keeps its {honest['answers']:.0f} honest answers reaches {_best(honest)}: "
        "digits are easy. The own-kind thief looks like any benign client and is bounded by the budget alone: at most "
        f"{watched['honest_answers_bound']} honest answers."
    )
    clients = watched["benign_clients"]
    listed = ", ".join(f"{c['accused']} of {c['clients']} {name.replace('_', ' ')}" for name, c in clients.items())
    yield (
        f"Benign clients accused: {listed}. That is conditional on these {results['images']['test']} images. "
        f"{watched['statement']}"
    )


def _thief_row(name: str, row: Results) -> tuple[str, ...]:
    return (
        name + "".join(mark for knowledge, mark in MARKS.items() if knowledge in row["knows"]),
        str(row["queries"]),
        f"{row['honest_answers']:.0f}",
        f"{row['alarmed']:.0%}",
        _percent(row["thief_undefended"]),
        _percent(row["thief_accuracy"]) + (FLAG if row["flags"] else ""),
    )


def _thief_notes(results: Results) -> Iterator[str]:
    thieves = results["adaptive"]["thieves"]
    yield (
        "Attacks, named as in docs/attacks.md, with foreign images. honest answers: to all queries, cover included; "
        "accused: share of the queries that were sent while accused; thief: accuracy of a copy trained on all answers, "
        f"without a defense and under the sentinel, means over seeds {results['seeds']}; chance: "
        f"{_percent(results['chance'])}."
    )
    known = {MARKS[knowledge] for row in thieves.values() for knowledge in row["knows"] if knowledge in MARKS}
    yield from (f"{mark} {meaning}" for mark, meaning in EXPLAINED.items() if mark in known)
    yield from (f"{FLAG} {name}: {flag}" for name, row in thieves.items() for flag in row["flags"])


def _alarm(row: Results) -> str:
    at = f", at {row['median']:.0f}" if row["accused"] else ""
    return f"{row['accused']} of {row['orders']}{at}"


def markdown(results: Results) -> str:
    """The table of policies and its notes in Markdown, as the README shows them."""
    return _markdown(demo_tables(results)[:1])


def adaptive_markdown(results: Results) -> str:
    """The tables of the adaptive attackers in Markdown, as the docs show them."""
    return _markdown(adaptive_tables(results))


def _markdown(tables: Iterable[DemoTable]) -> str:
    return "\n".join(
        (f"**{table.title}**\n\n" if table.title else "")
        + f"{markdown_table(table.header, table.rows)}\n"
        + "".join(f"- {note}\n" for note in table.notes)
        for table in tables
    )


def verdict_shares(shares: Mapping[str, float]) -> str:
    """Four percentages, or a dash where nothing was judged."""
    return "/".join(f"{100 * shares.get(letter, 0):.0f}" for letter in "ABCD") if shares else "-"


def _star(attack: Results, kind: str) -> str:
    return FLAG if any(f" {kind} " in flag for flag in attack["flags"]) else ""


def _best(attack: Results) -> str:
    return _percent(best_thief(attack))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
