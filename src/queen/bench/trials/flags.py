"""What makes a result prove nothing: broken answers, thieves whose training failed, attacks that failed.

A flag that a measurement explains away stays in the result, with its explanation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from queen.attacks.base import CountedOracle, Transcript
from queen.bench.protectee import Protectee
from queen.bench.trials.thief import is_at_chance
from queen.bench.trials.trial import Trial
from queen.defenses import DEFENSES
from queen.defenses.base import Defense

MOSTLY = 0.5  # of the way from chance to 1: with more right labels a thief must learn something, wrong ones being noise
LOST = 0.02  # share of the right labels that a recovery attack must not lose
LEARNT = 0.25  # of the way from chance to 1: less on its own training images, and a network has learnt nothing
PROBE = 32  # queries that are asked twice
FITS = 0.9  # share of its own answers from which on a thief has learnt them
AT_CHANCE = "the thief is at chance though most labels it learnt from are right: its training failed"
COLLAPSED = "the thief collapsed to one class"
NO_THIEF = "no thief: nothing was answered"
LOST_LABELS = "recovery lost right labels"  # how the flag begins; figures follow


def flag_answers(transcript: Transcript, defense: Defense, *, repeated: bool) -> list[str]:
    """What is wrong with a defense's answers; `repeated`: whether it `repeats_itself`."""
    flags, answers = [], transcript.answers
    if not answers.isfinite().all():
        flags.append("answers are NaN or infinite")
    off = ((answers.sum(1) - 1).abs() > 1e-3) | (answers < -1e-6).any(1)
    if off.any() and defense.on_simplex:
        flags.append(f"{off.double().mean().item():.0%} of the answers are off the simplex")
    if not repeated:
        flags.append("a query repeated in the same client state gets another answer")
    return flags


def repeats_itself(trial: Trial, protectee: Protectee) -> bool:
    """Whether a new client gets the same answers whatever others asked before, and the same ones a second time from a
    stateless defense."""
    probe, other = protectee.pool[:PROBE], protectee.pool[-PROBE:]
    oracles = [CountedOracle(trial.start_endpoint(protectee).client, 4 * PROBE) for _ in range(2)]
    oracles[1].ask(other, "somebody else")
    answers = [oracle.ask(probe, "probe")[0] for oracle in oracles]
    if not DEFENSES[trial.defense].stateful:
        answers.append(oracles[0].ask(probe, "probe")[0])
    return all(torch.equal(answers[0], again) for again in answers[1:])


def should_learn(label_right: float, protectee: Protectee) -> bool:
    """Whether most labels that a thief learns from are right, beyond those that a constant guess has right."""
    return label_right > protectee.chance + MOSTLY * (1 - protectee.chance)


def flag_thief(thief: Mapping[str, Any], label_right: float, label_kept: float, protectee: Protectee) -> list[str]:
    """Why a thief's failure would be no success of the defense.

    `label_right` is the share of labels that the thief learnt from and that are the victim's, `label_kept` the share of
    such labels among the answers.
    """
    if thief["accuracy"] is None:
        return [NO_THIEF]
    flags = []
    if thief["nan"]:
        flags.append("the thief's answers are NaN")
    elif thief["collapsed"]:
        flags.append(COLLAPSED)
    elif should_learn(label_right, protectee) and is_at_chance(thief, protectee):
        flags.append(AT_CHANCE)
    if label_right < (1 - LOST) * label_kept:
        flags.append(f"{LOST_LABELS} ({label_kept:.2%} of the answers had them, {label_right:.2%} have now)")
    return flags


def flag_recovery(findings: Mapping[str, Any]) -> list[str]:
    """What an attack's own findings say against it."""
    shadows = findings.get("shadows")
    if shadows is None or shadows["accuracy"] >= shadows["chance"] + LEARNT * (1 - shadows["chance"]):
        return []
    figures = f"training accuracy {shadows['accuracy']:.2f}, chance {shadows['chance']:.2f}"
    return [f"the attack's shadow networks did not learn ({figures})"]


def explain_flags(flags: Sequence[str], result: Mapping[str, Any], answers: int) -> dict[str, str]:
    """Why some of the flags do not speak against a result with a thief, findings of its `recovery` and counts of its
    `queries`, each with what was measured; the thief learnt from so many answers.

    A thief that knows nearly all of them was trained well, however little they taught it about other images. A recovery
    that lost labels did what any attacker would do, if it corrected labels on the pairs that the attacker could check.
    """
    thief, recovery, explained = result["thief"], result["recovery"], {}
    for flag in flags:
        if flag == NO_THIEF:
            explained[flag] = f"none of {result['queries']['sent']:,} queries was answered"
        elif flag in (AT_CHANCE, COLLAPSED) and thief["fits"] >= FITS:
            explained[flag] = f"its training worked: it knows {thief['fits']:.0%} of the {answers:,} answers it got"
        elif flag.startswith(LOST_LABELS) and recovery.get("label_restored", 0) > recovery.get("label_kept", 1):
            before, after = recovery["label_kept"], recovery["label_restored"]
            explained[flag] = (
                f"the attacker could not know: in its own pairs it raised right labels from {before:.2%} to {after:.2%}"
            )
    return explained
