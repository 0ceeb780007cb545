"""How to submit a defense or an attack, once for the page of `queen bench view` and for CONTRIBUTING.md."""

from __future__ import annotations

import re
from html import escape

STEPS = (
    "Put it into the source. A defense is `src/queen/defenses/NAME.py`, registered in `DEFENSES`; an attack is "
    "`src/queen/attacks/strategies/NAME.py` (what to make of answers) or `src/queen/attacks/queries/NAME.py` (how to "
    "ask), registered in `ATTACKS` or `QUERIES`. The tables of `CONTRIBUTING.md` say what else it needs.",
    "Name it in a spec, a defense under `defenses`, an attack in the `matrix`. Run a defense against every attack "
    "there, and an attack against every defense: `queen bench run benchmarks/smoke.yaml --column NAME --out "
    "results/NAME`, or `--attack NAME` in place of `--column NAME`.",
    "Look at every cell: `queen bench view results/NAME`. A flag says why a run proves nothing: find its cause before "
    "you believe the figure.",
    "Send a pull request with the source, its tests, the spec and every result file, flagged and unflattering ones "
    "too. A defense is as good as what it does against the best attack on it.",
)
"""What to do, a paragraph a step; code stands between backticks."""


def submit_markdown() -> str:
    """The steps for a document."""
    return "".join(f"{number}. {step}\n" for number, step in enumerate(STEPS, 1))


def submit_html() -> str:
    """The steps for a page."""
    steps = (re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(step)) for step in STEPS)
    return f"<ol>{''.join(f'<li>{step}</li>' for step in steps)}</ol>"
