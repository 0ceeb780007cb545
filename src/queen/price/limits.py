"""From "no copy better than this" to limits: how many honest answers one client may get, and how it gets them."""

from __future__ import annotations

from queen.core.certify import records_bound
from queen.errors import LimitsError
from queen.options import NEVER_SPENT, WHOLE_DISC, Limits, Sentinel
from queen.price.curve import Curve


def check_max_copy(max_copy: object) -> None:
    """Refuse what is no share."""
    if isinstance(max_copy, bool) or not (isinstance(max_copy, float | int) and 0 < max_copy <= 1):
        raise LimitsError(f"max_copy must be a share above 0 and at most 1, such as .6, got {max_copy!r}")


def check_policy_bounds_copies(policy: str, settings: Sentinel, *, observe: bool) -> None:
    """Refuse a policy that does not bound the honest answers, or the labels, that a client gets."""
    if policy != "sentinel" or observe:
        got = f"policy '{policy}'" + (" that only observes" if observe else "")
        raise LimitsError(f"max_copy needs policy 'sentinel', the only one that bounds honest answers, got {got}")
    if not settings.tells_nothing:
        raise LimitsError(
            "max_copy needs a sentinel that tells accused clients and those without budget nothing, got "
            f"on_alarm={settings.on_alarm!r} and on_spent={settings.on_spent!r}: choose 'refuse' or 'decoy' for both"
        )


def most_answers(curve: Curve, max_copy: float, classes: int) -> int:
    """How many honest answers one client may get so that the best reference student stays below `max_copy`.

    What counts is more than the highest of a point's seeds (`PriceRow.lucky`), whatever the images and the kind of
    answers: with a few dozen answers much depends on which they are, and thieves who are no reference students were
    luckier than these. A task that is too easy
    to be protected by a budget is a `LimitsError` that says so in numbers: one that fewer answers than were measured,
    or than one a class, are enough to copy so well.
    """
    check_max_copy(max_copy)
    answers = curve.answers_for(max_copy, "lucky")
    least = max(curve.smallest, 2 * classes)  # one answer a class for the records, and one beside it
    if answers < least:
        least = min(least, curve.largest)
        reached = curve.agreement_at(least, "lucky")
        raise LimitsError(
            f"no budget of use keeps every copy below {max_copy:.0%}: {least:,} honest answers may already make one "
            f"that agrees with this model on {reached:.1%} of held-out inputs. This task is too easy to be protected "
            f"by a budget: choose max_copy above {reached:.2f}, or give limits= yourself and rely on the sentinel, "
            "which accuses who asks unusual things, and on groups, in which many accounts share one budget"
        )
    return answers


def limits_for(answers: int, classes: int) -> Limits:
    """Limits under which one client gets at most so many distinct honest answers, in all, and can get all of them.

    The certificate counts records by their worst case, but clients meet their average: of a share given to the discs a
    benign client gets about half, and less if it asks more for some classes than for others. So all of the budget goes
    to the extra answers, which are counted one by one: a radius that covers the whole disc leaves one record a class,
    and whatever comes after it is near that record, thus an extra answer.
    """
    records = classes * records_bound(WHOLE_DISC, NEVER_SPENT)
    if answers <= records:
        raise LimitsError(f"expected more than {records} answers to share among {classes} classes, got {answers}")
    return Limits(radius=WHOLE_DISC, threshold=NEVER_SPENT, extra_answers=answers - records)
