"""The demo's results as rows: one place that the terminal, the report and the README are rendered from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- demo table -->", "<!-- /demo table -->"

HEADER = (
    "policy",
    "thief's images",
    "thief direct",
    "thief labels",
    "agrees",
    "A/B/C/D %",
    "benign right",
    "L1",
    "time ratio",
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
                _percent(attack["thief_direct"]) + _star(attack, "direct"),
                _percent(attack["thief_label_only"]) + _star(attack, "label-only"),
                _percent(attack["agreement"]),
                verdict_shares(attack["verdicts"]),
                _percent(policy["benign_accuracy"]) if first else "",
                f"{policy['benign_l1']:.2f}" if first else "",
                f"{policy['time_ratio']:.2f}" if first else "",
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
        "its answers from the honest ones (0 to 2). A/B/C/D: share of the thief's queries by verdict."
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
    yield from (f"* {name}: {flag}" for name, policy in results["policies"].items() for flag in policy["flags"])


def markdown(results: dict[str, Any]) -> str:
    """The table and its notes in Markdown, as the README shows them."""
    lines = [
        " | ".join(HEADER),
        " | ".join("---" for _ in HEADER),
        *(" | ".join(row) for row in rows(results)),
    ]
    return (
        "\n".join(f"| {line} |" for line in lines) + "\n\n" + "\n".join(f"- {note}" for note in notes(results)) + "\n"
    )


def verdict_shares(shares: dict[str, float]) -> str:
    """Four percentages, or a dash where nothing was judged."""
    return "/".join(f"{100 * shares.get(letter, 0):.0f}" for letter in "ABCD") if shares else "-"


def _star(attack: dict[str, Any], kind: str) -> str:
    return "*" if any(f" {kind} " in flag for flag in attack["flags"]) else ""


def _best(attack: dict[str, Any]) -> str:
    return _percent(max(attack["thief_direct"], attack["thief_label_only"]))


def _percent(value: float) -> str:
    return f"{value:.1%}"


def fill_readme(readme: Path, results: Path) -> None:
    """Put the table of a committed result file between the README's markers."""
    before, _, rest = readme.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    readme.write_text(f"{before}{BEGIN}\n{markdown(json.loads(results.read_text()))}{END}{after}")


if __name__ == "__main__":
    fill_readme(Path("README.md"), Path("results/demo/demo.json"))
