"""The price of a copy in sentences: what one client can buy, what many accounts can, and what that does not promise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from queen.price.curve import Curve

ACCOUNTS = (1, 10, 100)  # of one thief
NOT_CERTIFIED = (
    "measured with reference students, not proved: a thief with a better way to learn, with labels or with your "
    "encoder may get more, and so may every client whose budget an operator raises"
)


def bought(curve: Curve, answers: int) -> dict[str, Any]:
    """The best copy that so many honest answers make; `beyond`: more than were measured, so it may be better."""
    return {
        "answers": answers,
        **{end: curve.agreement_at(answers, end) for end in ("agreement", "low", "high")},
        "beyond": answers > curve.largest,
    }


def purchases(curve: Curve, answers: int) -> list[dict[str, Any]]:
    """What 1, 10 and 100 accounts buy that get so many answers each and are in no group."""
    return [{"accounts": accounts, **bought(curve, accounts * answers)} for accounts in ACCOUNTS]


def budget_sentence(curve: Curve, answers: int) -> str:
    """What one client buys at its budget of so many honest answers, and what ten accounts do."""
    one, ten, *_ = purchases(curve, answers)
    accounts = f"{ten['accounts']} accounts buy {_share(ten)}"
    beyond = f"; no more than {curve.largest:,} answers were measured" if ten["beyond"] else ""
    return (
        f"At your budget ({answers:,} honest answers) one client can buy a copy of {_share(one)}; {accounts}{beyond}."
    )


def span_sentence(curve: Curve, within: Mapping[str, int]) -> str:
    """What one client buys in a day, a month and a year, where its budget renews."""
    parts = [f"{_share(bought(curve, answers))} in a {span} ({answers:,} answers)" for span, answers in within.items()]
    beyond = f"; no more than {curve.largest:,} were measured" if max(within.values()) > curve.largest else ""
    return (
        f"At your budget, which renews, one client can buy a copy of {', '.join(parts)}{beyond}. A budget that renews "
        "slows a thief down; only a budget for life stops it."
    )


def _share(copy: dict[str, Any]) -> str:
    """The share of inputs that a copy answers as the model does, and how it varies from seed to seed, if it does."""
    least = "at least " if copy["beyond"] else ""
    varies = f" ({copy['low']:.1%} to {copy['high']:.1%})" if copy["low"] < copy["high"] else ""
    return f"{least}{copy['agreement']:.1%}{varies}"


def method_sentence(curve: Curve) -> str:
    """How the curve was measured, and what it does not promise."""
    several = len(curve.seeds) > 1
    seeds = f"mean of {len(curve.seeds)} seeds (lowest to highest)" if several else "one seed, which may be a lucky one"
    decimals = "all decimals" if curve.digits is None else f"{curve.digits} decimals"
    return (
        f"The quality of a copy is the share of {curve.judged:,} held-out inputs, which it never saw, on which it "
        f"agrees with the model: the better of {' and '.join(curve.networks)}, {seeds}, after at least "
        f"{curve.steps:,} steps and {curve.epochs} passes over answers with {decimals}. It is {NOT_CERTIFIED}."
    )


def price_lines(
    curve: Curve, answers: int | None, max_copy: float | None, *, within: Mapping[str, int] | None = None
) -> Iterator[str]:
    """The price for reports; `answers` is what one client ever gets, None where nothing bounds that.

    `within` is what it gets in a day, a month and a year, where its budget renews.
    """
    if within:
        yield span_sentence(curve, within)
    elif answers is None:
        yield (
            "Nothing here limits what one client can learn. Only the policy sentinel does, if it does not observe, and "
            "if accused clients and clients without budget get refusals or decoys."
        )
    else:
        yield budget_sentence(curve, answers)
    if max_copy is not None:
        yield f"The limits were chosen so that no reference student reaches {max_copy:.0%} (max_copy)."
    yield method_sentence(curve)


HEADER = ("images", "learns from", "answers", "agreement", "low", "high", "accuracy", "network")


def table_rows(curve: Curve) -> list[tuple[str, ...]]:
    """The curve as rows of text under `HEADER`."""
    return [
        (
            row.images,
            "labels" if row.label_only else "answers",
            f"{row.answers:,}",
            *(f"{value:.1%}" for value in (row.agreement, row.low, row.high)),
            "-" if row.accuracy is None else f"{row.accuracy:.1%}",
            row.network,
        )
        for row in curve.rows
    ]
