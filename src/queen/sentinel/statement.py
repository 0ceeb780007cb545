"""Statement: what may be said about false accusations, in plain sentences.

Over calibration images and client together, P(wealth ever reaches 1 / (alpha delta)) <= alpha delta. So (Markov) with
confidence 1 - delta over the calibration images, a benign client is ever accused with probability at most alpha.
"""

from __future__ import annotations

from collections.abc import Sequence

from queen.options import Sentinel


def statement(
    settings: Sentinel, *, certified: bool, conditions: Sequence[str], trusted: int = 0, started_over: bool = False
) -> str:
    """The statements that hold for the settings chosen, in one paragraph.

    `trusted` clients set the bar as well (0: none did). `started_over`: the operator began a new account.
    """
    sentences = []
    if not certified:
        sentences.append("No certificate: the sentinel was calibrated on images that trained the model.")
    else:
        whom = "a benign client"
        if len(conditions) > 1:
            whom += f" whose images are a mixture like that of {', '.join(conditions)}"
        sentences.append(
            f"With confidence {1 - settings.delta:g} over the calibration images, {whom} is ever accused with "
            f"probability at most {settings.alpha:g}, over all calibrations of a ledger together."
        )
    if trusted:
        sentences.append(
            f"A client like the {trusted} trusted ones whose traffic was replayed is ever accused with probability at "
            f"most 1/{trusted + 1}, however its queries depend on each other."
        )
    if started_over:
        sentences.append("The account was started over: what earlier calibrations spent is not counted.")
    return " ".join(sentences)
