"""`queen certify`: what limits promise, by themselves or for a bundle."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queen.allowance import NAMES
from queen.cli.shared import (
    Json,
    LedgerUrl,
    ModelOption,
    app,
    epilog,
    is_typed,
    open_existing,
    out,
    print_json,
    print_table,
)
from queen.errors import OptionError

QUANTITIES = {
    "answers_per_class": "answers a class may give, by Theorem 2",
    "rho_paper": "radius that the paper takes for this",
    "rho_sound": "radius that keeps to it",
    "radius": "radius asked about",
    "records_per_class": "answers recorded in a class, at most",
}

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queen.bundle.bundle import Bundle
    from queen.guard import Guard
    from queen.sentinel.power import AlarmAfter


@app.command(
    epilog=epilog(
        "`queen certify --epsilon .1 --delta .05 --threshold .2`",
        "epsilon delta threshold radius answers_per_class rho_paper rho_sound records_per_class statements",
        sometimes="benign_queries_before_first_spent_class benign_queries_before_first_refusal benign_queries_replayed "
        "honest_answers_per_client honest_answers_renew alpha account alarm_after sentinel price theorem3",
    )
)
def certify(
    context: typer.Context,
    folder: Annotated[
        Path | None, typer.Argument(help="The bundle; without one, only what Theorem 2 of the paper says.")
    ] = None,
    epsilon: Annotated[float, typer.Option(help="Error of a thief that the paper's Theorem 2 allows.")] = 0.1,
    delta: Annotated[float, typer.Option(help="Probability of that error.")] = 0.05,
    threshold: Annotated[
        float | None, typer.Option(help="Share of a disc after which a class is spent; by default the bundle's, or .2.")
    ] = None,
    radius: Annotated[
        float | None, typer.Option(help="Radius of a query; by default the bundle's smallest, or the sound one.")
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(help=".npy of queries: estimate Theorem 3 on them (needs a bundle).")
    ] = None,
    ledger: LedgerUrl = None,
    model: ModelOption = None,
    as_json: Json = False,
) -> None:
    """Say what a bundle promises: honest answers for a client, false accusations, how soon thieves are caught."""
    from queen.bench.recovery import recovery_by_verdict
    from queen.core import certify as maths
    from queen.fit.files import read_query
    from queen.guard import load
    from queen.price.stored import bundle_price_lines

    guard, asked = load(folder, model) if folder else None, radius is not None or threshold is not None
    if guard:
        limits = guard.bundle.limits
        threshold = limits.class_allowance.amount if threshold is None else threshold
        smallest = min(limits.radius) if isinstance(limits.radius, tuple) else limits.radius
        radius = smallest if radius is None else radius
    elif queries or is_typed(context, "ledger"):
        raise OptionError("--queries and --ledger need a bundle: queen certify BUNDLE --queries file.npy")
    certificate = maths.certify(epsilon, delta, 0.2 if threshold is None else threshold, radius=radius)
    facts = vars(certificate) | {"answers_per_class": certificate.eta_hat, "statements": list(certificate.statements)}
    result: dict[str, Any] = {name: value for name, value in facts.items() if name != "eta_hat"}  # the paper's name
    if guard:
        result["benign_queries_before_first_spent_class"] = guard.report["calibration_first_spent"]
        result["benign_queries_before_first_refusal"] = guard.report["calibration_first_refused"]
        result["benign_queries_replayed"] = guard.report["calibration_images"]
        if guard.bundle.policy == "sentinel":
            result["honest_answers_per_client"] = guard.report["honest_answers"]
            result["honest_answers_renew"] = _renewals(guard.bundle)
            result["alpha"] = guard.bundle.sentinel.alpha
            result["account"] = _account(guard.bundle, ledger)
            result["alarm_after"] = guard.bundle.alarm_after(result["account"]["number"])
            result["sentinel"] = list(_sentinel_statements(guard.bundle, result["account"], result["alarm_after"]))
        result["price"] = list(bundle_price_lines(guard.bundle))
    if guard and queries:
        recoveries = recovery_by_verdict(guard, read_query(queries, guard.bundle))
        result["theorem3"] = {letter: vars(one) for letter, one in recoveries.items()}
    if as_json:
        print_json(result)
        return
    _print(result, guard, spends=asked or guard is None or _spends_classes(guard.bundle))


def _spends_classes(bundle: Bundle) -> bool:
    """Whether Theorem 2, which chooses a radius for classes that are spent one day, says anything of this bundle."""
    return bundle.policy != "sentinel" or bundle.limits.spends_classes


def _print(result: dict[str, Any], guard: Guard | None, *, spends: bool) -> None:
    """What matters first: the theorem where it applies, else the sentinel."""
    if spends:
        lines = [(words, f"{result[name]:.6g}") for name, words in QUANTITIES.items()]
        print_table(("quantity", "value"), lines, left=1)
        for statement in result["statements"]:
            out.print(f"- {statement}")
    if guard and guard.bundle.calibration:
        spent = guard.report["calibration_first_spent"]
        when = f"a first class is spent after {spent} of them" if spent is not None else "no class is spent"
        out.print(f"- Replaying {guard.report['calibration_images']} held-out images: {when}.")
    for statement in (*result.get("sentinel", ()), *result.get("price", ())):
        out.print(f"- {statement}")
    for letter, one in result.get("theorem3", {}).items():
        out.print(
            f"- Verdict {letter}, {one['rows']} queries: no attacker recovers answers with a squared error below "
            f"{one['bound']:.5f} per query (Theorem 3, estimated); the best attempt had {one['fitted']:.5f}."
        )
    if not spends:
        out.print(
            "- No class is ever spent under these limits: answers are counted instead. Theorem 2, which chooses a "
            "radius for classes that can be spent, does not apply."
        )


def _account(bundle: Bundle, ledger: str | None) -> dict[str, Any]:
    """What the bundle's calibration may spend of alpha in a ledger, by default a new one; claims nothing."""
    if ledger is None:
        return bundle.account(1) | {"ledger": None}
    with closing(open_existing(ledger)) as opened:
        return bundle.account(opened.number_of(bundle.test, claim=False)) | {"ledger": ledger}


def _renewals(bundle: Bundle) -> dict[str, str | None]:
    """The period after which what is recorded in the discs, and what else is answered, renews; None: never."""
    limits = bundle.limits
    allowances = {"records": limits.class_allowance, "extra_answers": limits.extra_allowance}
    return {name: None if one.period is None else NAMES[one.period] for name, one in allowances.items()}


def _honest_answers(bundle: Bundle) -> str:
    """How many honest answers a client may get; a total only where none of them renew."""
    report, limits = bundle.report, bundle.limits
    records, extra = limits.class_allowance, limits.extra_allowance
    parts = (
        f"{sum(report['records_per_class'])}{records.per} recorded in the discs and {extra.amount}{extra.per} others"
    )
    total = f"{report['honest_answers']} distinct answers: " if records.per == extra.per == "" else ""
    return f"Honest answers per client under the sentinel: at most {total}{parts}."


def _sentinel_statements(bundle: Bundle, account: dict[str, Any], alarm_after: AlarmAfter) -> Iterator[str]:
    """What the sentinel promises, what it does not say, and how soon it catches thieves."""
    from queen.sentinel.power import in_words

    report, calibration = bundle.report, bundle.calibration
    yield bundle.statement
    which = "this" if account["ledger"] else "a new"
    yield (
        f"Account: calibration {account['number']} of {which} ledger: alpha {account['alpha']:.2g} "
        f"(delta {account['delta']:.2g})."
    )
    trusted = calibration.trusted_under(bundle.sentinel) if calibration else None
    if trusted:
        usual = 1 / (account["alpha"] * account["delta"])
        raised = (
            "so the bar is raised above their wealth, and alarms take longer"
            if trusted.highest >= usual
            else "which is above their wealth"
        )
        yield f"Trusted clients reached wealth {trusted.highest:.3g} at most; the usual bar is {usual:.3g}, {raised}."
    elif calibration and calibration.trusted:
        yield "Trusted clients were replayed with other scores or another margin, so they do not count here."
    if calibration and calibration.foreign:
        lines = "; ".join(in_words(alarm_after))
        yield f"How soon thieves are caught, by simulation with {calibration.foreign.name}: {lines}."
    yield _honest_answers(bundle)
    if bundle.sentinel.on_alarm in ("label-only", "observe"):
        yield f"Labels are NOT bounded: accused clients still get them (on_alarm {bundle.sentinel.on_alarm})."
    if bundle.sentinel.on_spent == "label-only":
        yield "Labels are NOT bounded: clients without budget still get them (on_spent label-only)."
    refused = report["calibration_first_refused"]
    when = f"a client is first refused after {refused} of them" if refused is not None else "no query is refused"
    yield f"Replaying {report['calibration_images']} held-out images: {when}."
    yield (
        "Not caught: thieves with many accounts outside any group, thieves whose queries look like benign ones "
        "(bounded by the honest answers above), and thieves with labels of their own."
    )
