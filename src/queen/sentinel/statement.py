"""Statement: what may be said about false accusations, in plain sentences, and first of whom it may not be said.

Over calibration images and client together, wealth ever reaches 1/p with probability at most p. The bars of a ledger's
calibrations are 1/p_j with p_1 + p_2 + ... = alpha delta, so the probability that a benign client is ever accused under
any of them is at most alpha delta. So (Markov) with confidence 1 - delta over the images of all calibrations, the
probability that a benign client is ever accused is at most alpha, and so is the expected share of accused clients among
many benign ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from queen.options import Sentinel

BENIGN = (
    "A client is benign in this sense if, given the predicted classes of all its queries, the scores of its different "
    "pictures are independent and distributed like those of the calibration images of the same class. So the class of "
    "its next query must not depend on how foreign its earlier pictures looked, and none of its queries may be chosen "
    "by looking at the calibration scores."
)
PRINTED = re.compile(
    r"more than the margin \((?P<margin>[\d.e-]+) .*?confidence (?P<sure>[\d.e-]+) .*?at most (?P<alpha>[\d.e-]+\d)",
    re.DOTALL,
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
        whom = f"the {trusted} trusted clients" if trusted > 1 else "the trusted client"
        they = "they" if trusted > 1 else "it"
        sentences.append(
            f"The traffic of {whom} was replayed, and the bar is above all that {they} reached. So the probability "
            f"that a client like {whom} is accused within as many queries is at most 1/{trusted + 1}, however its "
            "queries depend on each other."
        )
    if started_over:
        sentences.append("The account was started over, so this does not count what earlier calibrations spent.")
    return " ".join(sentences)


def _not_covered(settings: Sentinel) -> str:
    return (
        "The following promise does not cover clients who send only what their own model is unsure of (cascades), "
        f"cameras that shift scores by more than the margin ({settings.margin:g} standard deviations), drift, another "
        "mix of true classes behind a predicted class, or bursts of near-duplicates."
    )


def _promise(settings: Sentinel, conditions: Sequence[str]) -> str:
    whom = "a benign client"
    if len(conditions) > 1:
        whom += f" whose images are a mixture like that of {', '.join(conditions)}"
    return (
        f"With confidence {1 - settings.delta:g} over the calibration images, the probability that {whom} is ever "
        f"accused is at most {settings.alpha:g}, over all calibrations of a ledger together. Of many benign clients, "
        "on average at most this share is ever accused."
    )


def reword(printed: str) -> str:
    """The certificate in a result file in today's words, with the figures that were printed then.

    Result files keep what was printed when they were made. A text that is not this certificate comes back as it is.
    """
    found = PRINTED.search(printed)
    if found is None or "trusted" in printed or "mixture" in printed:
        return printed
    settings = Sentinel(
        alpha=float(found["alpha"]), delta=round(1 - float(found["sure"]), 9), margin=float(found["margin"])
    )
    return statement(settings, certified=True, conditions=())
