"""Statement: what may be said about false accusations, in plain sentences, and first of whom it may not be said.

Over calibration images and client together, wealth ever reaches 1/p with probability at most p. The bars of a ledger's
calibrations are 1/p_j with p_1 + p_2 + ... = alpha delta, so a benign client is ever accused under any of them with at
most that probability. So (Markov) with confidence 1 - delta over the images of all calibrations, a benign client is
ever accused with probability at most alpha, and likewise the expected share of accused in any population of such.
"""

from __future__ import annotations

from collections.abc import Sequence

from queen.options import Sentinel

BENIGN = (
    "Benign means: given the predicted classes of all its queries, the scores of a client's different pictures are "
    "independent and follow the law of the calibration images of their class. So which class comes next does not "
    "depend on how foreign earlier pictures looked, and nothing was chosen by looking at the calibration scores."
)


def statement(
    settings: Sentinel, *, certified: bool, conditions: Sequence[str], trusted: int = 0, started_over: bool = False
) -> str:
    """The statements that hold for the settings chosen, in one paragraph.

    `trusted` clients set the bar as well (0: none did). `started_over`: the operator began a new account.
    """
    if certified:
        sentences = [_not_covered(settings), BENIGN, _promise(settings, conditions)]
    else:
        sentences = ["No certificate: the sentinel was calibrated on images that trained the model."]
    if trusted:
        whom, they = (f"the {trusted} trusted ones", "they") if trusted > 1 else ("the trusted one", "it")
        sentences.append(
            f"A client like {whom} whose traffic was replayed is accused within as many queries with probability at "
            f"most 1/{trusted + 1}, however its queries depend on each other: the bar is above all that {they} reached."
        )
    if started_over:
        sentences.append("The account was started over: what earlier calibrations spent is not counted.")
    return " ".join(sentences)


def _not_covered(settings: Sentinel) -> str:
    return (
        "Not covered: clients who send only what their own model is unsure of (cascades), cameras that shift scores by "
        f"more than the margin ({settings.margin:g} standard deviations), drift, another mix of true classes behind a "
        "predicted class, bursts of near-duplicates."
    )


def _promise(settings: Sentinel, conditions: Sequence[str]) -> str:
    whom = "a benign client"
    if len(conditions) > 1:
        whom += f" whose images are a mixture like that of {', '.join(conditions)}"
    return (
        f"With confidence {1 - settings.delta:g} over the calibration images, {whom} is ever accused with probability "
        f"at most {settings.alpha:g}, over all calibrations of a ledger together; and of any population of benign "
        "clients at most this share is ever accused, on average."
    )
