"""The demo's results as tables: one place that the terminal, the report and the documents are rendered from."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from queen.bench.render.markdown import markdown_list, markdown_table
from queen.bench.render.table import EXPLAINED, FLAG, MARKS
from queen.demo.summary import COLUMNS, BestThief, best_thief, best_thieves
from queen.sentinel.statement import reword

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
BEST_HEADER = (
    "policy",
    "best thief, foreign images",
    "with images of the victim's kind",
    "with many accounts",
    "benign right",
    "heavy benign client right",
    "of its queries answered",
)
THIEVES_HEADER = (
    "attacker", "queries", "honest answers", "accused", "undefended", "sentinel", "decoys", "labels right",
)  # fmt: skip
ACCOUNTS_HEADER = ("accounts", "honest answers alone", "pooled in a group")
CLIENTS = {  # the simulated benign clients, by what they do
    "random_orders": "that send the images in a random order",
    "one_predicted_class": "that send one predicted class only",
    "one_true_class": "that send one true class only",
    "retry_loops": "that send one image again and again",
    "retries_in_a_stream": "that repeat images within their traffic",
}
REFUSALS, DECOYS = "sentinel", "decoys"  # columns of the attackers who know the sentinel


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
                f"{results['images']['pool_foreign']} foreign images, sent by the accounts in turn. Either each "
                "account is watched alone, or all are in one group that has the limits of one client.",
            ),
        ),
        DemoTable(
            "Images made to look usual",
            ("images", *scores),
            alarms,
            (
                "In how many random orders of the images a sentinel that watches these scores raises the alarm, and at "
                "which query in the median. look-alike: the foreign images that look most usual to the victim; "
                "binarised: all images in black and white.",
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


def notes(results: Results) -> Iterator[str]:
    """What a reader must know to read the table of policies."""
    images = results["images"]
    yield (
        f"Victim: small CNN, {results['victim_accuracy']:.1%} on {images['test']} held-out MNIST digits; always "
        f"guessing one class scores {results['chance']:.1%}. Thief figures are means over seeds {results['seeds']}: "
        "trained on the answers (direct) or on their labels alone. agrees: the share of these digits for which the "
        "direct thief's copy names the same class as the victim."
    )
    yield (
        f"foreign: {images['pool_foreign']} scikit-learn digits. own kind: {images['pool_own_kind']} held-out MNIST "
        "digits. A/B/C/D: share of the thief's queries by verdict. benign right: one client sends all test images, and "
        "this share of its answers is right; L1: the mean distance of its answers from the honest ones (0 to 2); time "
        "ratio: the time that they take, where the undefended model takes 1."
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
    orders = watched["foreign_orders"]
    when = f"accused in {orders['accused']} of {orders['orders']} random orders"
    if orders["accused"]:
        when += f" (median at query {orders['median']:.0f}, 95 % by {orders['p95']:.0f}, the last at {orders['worst']})"
    here = "never" if policy["alarm_at"] is None else f"at query {policy['alarm_at']:.0f} in the median"
    yield (
        f"sentinel: the foreign thief is {when}, in the runs above {here}, and gets no answer from then on. Its "
        f"{policy['honest_answers']:.0f} honest answers before that make a copy of {_best(policy['foreign'])}: digits "
        "are easy. The own-kind thief looks like any benign client and is bounded by the budget alone: at most "
        f"{watched['honest_answers_bound']} honest answers."
    )
    clients = watched["benign_clients"]
    listed = ", ".join(
        f"{c['accused']} of {c['clients']} {CLIENTS.get(name, name.replace('_', ' '))}" for name, c in clients.items()
    )
    yield (
        f"Benign clients accused: {listed}. All of them send these {results['images']['test']} images, so other images "
        f"may give other counts. {reword(watched['statement'])}"
    )


def _thief_row(name: str, row: Results) -> tuple[str, ...]:
    columns = row["columns"]
    watched = columns.get(REFUSALS) or columns[DECOYS]
    flagged = any(column["flags"] for column in columns.values())
    return (
        name + "".join(mark for knowledge, mark in MARKS.items() if knowledge in row["knows"]) + FLAG * flagged,
        str(row["queries"]),
        f"{watched['honest_answers']:.0f}",
        f"{watched['alarmed']:.0%}",
        *(_percent(columns[column]["thief"]) if column in columns else "-" for column in COLUMNS),
        _percent(columns[DECOYS]["labels_right"]) if DECOYS in columns else "-",
    )


def _thief_notes(results: Results) -> Iterator[str]:
    thieves = results["adaptive"]["thieves"]
    yield (
        "Attacks, named as in docs/attacks.md, with foreign images. honest answers: to all queries, cover included. "
        "accused: the share of the queries that were sent after the accusation. The next three columns are the "
        "accuracy of a copy that is trained on all that the attacker believes. undefended: without a defense; "
        "sentinel: accused clients are refused (the default); decoys: they get decoys for ever (on_alarm decoy, "
        "after_alarm None). labels right: of the labels that the attacker believes under decoys, the share that are "
        "the victim's, honest answers before the alarm included. Means over seeds "
        f"{results['adaptive']['seeds']}; chance: {_percent(results['chance'])}."
    )
    known = {MARKS[knowledge] for row in thieves.values() for knowledge in row["knows"] if knowledge in MARKS}
    yield from (f"{mark} {meaning}" for mark, meaning in EXPLAINED.items() if mark in known)
    for name, row in thieves.items():
        for column, figures in row["columns"].items():
            yield from (f"{FLAG} {name}, {column}: {flag}" for flag in figures["flags"])


def _alarm(row: Results) -> str:
    at = f", at {row['median']:.0f}" if row["accused"] else ""
    return f"{row['accused']} of {row['orders']}{at}"


def best_table(results: Results) -> DemoTable:
    """What the best of all thieves got from every policy, and beside it what benign clients got."""
    cost = results["sentinel"]["cost"]
    rows = []
    for policy, figures in results["policies"].items():
        thieves = [_name_best(best) for best in best_thieves(results, policy).values()]
        heavy = cost.get(policy)
        right, answered = (_percent(statistics.mean(heavy[key])) if heavy else "" for key in ("right", "answered"))
        plain = _percent(results["victim_accuracy"]), _percent(1.0)
        rows.append((policy, *thieves, _percent(figures["benign_accuracy"]), *((right, answered) if heavy else plain)))
    heaviest = max(curve["queries"][-1] for curve in cost.values())
    return DemoTable("", BEST_HEADER, tuple(rows), tuple(_best_notes(results, heaviest)))


def _name_best(best: BestThief | None) -> str:
    return "-" if best is None else f"{best.accuracy:.1%} ({best.attack}, best of {best.tried})"


def _best_notes(results: Results, heaviest: int) -> Iterator[str]:
    images, clients = results["images"], results["sentinel"]["benign_clients"]
    yield (
        f"Accuracy of the best copy on {images['test']} held-out digits; the victim has "
        f"{results['victim_accuracy']:.1%}, always guessing one class {results['chance']:.1%}. In brackets: the best "
        "attack, and how many were tried. foreign: images of another scanner, one account."
    )
    yield (
        f"Benign right: one client sends {images['test']} held-out digits, and gets this share right. Heavy: it sends "
        f"{heaviest}; a query without an answer counts as wrong."
    )
    accused, total = (sum(one[key] for one in clients.values()) for key in ("accused", "clients"))
    yield f"Benign clients accused by the sentinel: {accused} of {total} simulated."
    if "adaptive" in results:
        accounts, thieves = results["adaptive"]["accounts"], results["adaptive"]["thieves"]
        yield from (
            f"Not in the table: {name}, {_percent(row['columns'][REFUSALS]['thief'])} under the sentinel. It owns the "
            "victim's encoder and needs only the head."
            for name, row in thieves.items()
            if "encoder" in row["knows"] and REFUSALS in row["columns"]
        )
        yield (
            f"Many accounts: each account is watched by itself. So a hundred accounts get {accounts['100']['alone']} "
            f"honest answers together, while a single account gets {accounts['1']['alone']}. In one group, the hundred "
            f"get {accounts['100']['pooled']} together."
        )


def best_markdown(results: Results) -> str:
    """The table of the best thieves in Markdown, as the README shows it."""
    return _markdown([best_table(results)])


def markdown(results: Results) -> str:
    """The table of policies and its notes in Markdown, as the docs show them."""
    return _markdown(demo_tables(results)[:1])


def adaptive_markdown(results: Results) -> str:
    """The tables of the adaptive attackers in Markdown, as the docs show them."""
    return _markdown(adaptive_tables(results))


def _markdown(tables: Iterable[DemoTable]) -> str:
    return "\n".join(
        (f"**{table.title}**\n\n" if table.title else "")
        + f"{markdown_table(table.header, table.rows)}\n{markdown_list(table.notes)}"
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
