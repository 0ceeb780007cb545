"""The demo's results as rows: one place that the terminal, the report and the README are rendered from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from queen.demo.thieves import best

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
ADAPTIVE_HEADER = (
    "attacker",
    "accounts",
    "asked",
    "alarm at",
    "honest answers",
    "honest cover",
    "all kept",
    "honest kept",
)


def rows(results: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """One row a policy and attacker; what a benign client sees stands on the policy's first row."""
    for name, policy in results["policies"].items():
        for pool in ("foreign", "own_kind"):
            attack = policy[pool]
            first = pool == "foreign"
            yield (
                name if first else "",
                pool.replace("_", " "),
                str(attack["honest_answers"]),
                _percent(attack["thief_direct"]) + _star(attack, "direct"),
                _percent(attack["thief_label_only"]) + _star(attack, "label-only"),
                _percent(attack["agreement"]),
                verdict_shares(attack["verdicts"]),
                _percent(policy["benign_accuracy"]) if first else "",
                f"{policy['benign_l1']:.2f}" if first else "",
                f"{policy['time_ratio']:.2f}" if first else "",
            )
        if "foreign_honest_only" in policy:
            kept = policy["foreign_honest_only"]
            yield (
                "",
                "(honest)",
                str(kept["answers"]),
                _percent(kept["thief_direct"]) + _star(kept, "direct"),
                _percent(kept["thief_label_only"]) + _star(kept, "label-only"),
                _percent(kept["agreement"]),
                "",
                "",
                "",
                "",
            )


def notes(results: dict[str, Any]) -> Iterator[str]:
    """What a reader must know to read the table."""
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
    yield from (f"* {name}: {flag}" for name, policy in results["policies"].items() for flag in policy["flags"])


def _sentinel_notes(results: dict[str, Any]) -> Iterator[str]:
    watched, policy = results["sentinel"], results["policies"]["sentinel"]
    kept, orders = policy["foreign_honest_only"], watched["foreign_orders"]
    when = f"accused in {orders['accused']} of {orders['orders']} random orders"
    if orders["accused"]:
        when += f" (median at query {orders['median']:.0f}, 95 % by {orders['p95']:.0f}, the last at {orders['worst']})"
    here = "never" if policy["alarm_at"] is None else f"at query {policy['alarm_at']}"
    yield (
        f"sentinel: the foreign thief is {when}, in the run above {here}, and gets decoys from then on. A thief "
        f"that throws those away and keeps its {kept['answers']} honest answers reaches {_best(kept)}: "
        "digits are easy. The own-kind thief looks like any benign client and is bounded by the budget alone: at most "
        f"{watched['honest_answers_bound']} honest answers."
    )
    clients = watched["benign_clients"]
    listed = ", ".join(f"{c['accused']} of {c['clients']} {name.replace('_', ' ')}" for name, c in clients.items())
    yield (
        f"Benign clients accused: {listed}. That is conditional on these {results['images']['test']} images. "
        f"{watched['statement']}"
    )


def adaptive_rows(results: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """One row an attacker who knows the sentinel."""
    for name, found in results["adaptive"].items():
        star = "*" if found["flags"] else ""
        yield (
            name,
            str(found["accounts"]),
            str(found["attack_queries"]),
            "never" if found["alarm_at"] is None else str(found["alarm_at"]),
            str(found["honest_answers"]),
            str(found["honest_cover"]),
            _percent(found["thief_all"]) + star,
            _percent(found["thief_honest_only"]) + star,
        )


def adaptive_notes(results: dict[str, Any]) -> Iterator[str]:
    """What a reader must know to read the table of adaptive attackers."""
    yield (
        "All send foreign images and know the sentinel. asked: attack queries; alarm at: the one that raised it; "
        "honest answers: to attack queries; honest cover: to benign images sent along, which the thief trains on too. "
        "all kept and honest kept: accuracy of direct thieves trained on all they got, or on the honest answers alone; "
        f"means over seeds {results['seeds']}. "
        f"Undefended: {_best(results['policies']['undefended']['foreign'])}; chance: {_percent(results['chance'])}."
    )
    yield (
        "Cover and warm-up images are held-out MNIST digits and their shifts by one pixel; 'central' takes the quarter "
        "with the most usual scores (which a thief cannot know), 'jittered copies' repeats twenty of those with noise. "
        "'knn too': against a sentinel that also watches the distance to training features."
    )
    for name, found in results["adaptive"].items():
        yield from (f"* {name}: {flag}" for flag in found["flags"])


def adaptive_markdown(results: dict[str, Any]) -> str:
    """The adaptive table and its notes in Markdown, as the docs show them."""
    return _markdown(ADAPTIVE_HEADER, adaptive_rows(results), adaptive_notes(results))


def markdown(results: dict[str, Any]) -> str:
    """The table and its notes in Markdown, as the README shows them."""
    return _markdown(HEADER, rows(results), notes(results))


def _markdown(header: Sequence[str], lines: Iterable[Sequence[str]], told: Iterable[str]) -> str:
    table = [header, ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in table) + "\n\n" + "".join(f"- {note}\n" for note in told)


def verdict_shares(shares: dict[str, float]) -> str:
    """Four percentages, or a dash where nothing was judged."""
    return "/".join(f"{100 * shares.get(letter, 0):.0f}" for letter in "ABCD") if shares else "-"


def _star(attack: dict[str, Any], kind: str) -> str:
    return "*" if any(f" {kind} " in flag for flag in attack["flags"]) else ""


def _best(attack: dict[str, Any]) -> str:
    return _percent(best(attack))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
