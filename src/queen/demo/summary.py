"""What the benchmark's cells say of every policy and attacker, as means over the seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Result = Mapping[str, Any]
KINDS = ("direct", "label_only")


def summarise_policy(pools: Mapping[str, Sequence[Result]], policy: str) -> dict[str, Any]:
    """What thieves with foreign and own-kind images and one benign client got from a policy."""
    attacks = {pool: _summarise_attack(results, policy) for pool, results in pools.items()}
    foreign = attacks["foreign"]
    benign = [cell["utility"]["one_client"] for cell in _pick(pools["foreign"], policy, "direct")]
    summary = {
        **{key: foreign[key] for key in ("thief_direct", "thief_label_only", "agreement", "verdicts")},
        **attacks,
        "flags": [f"{pool.replace('_', ' ')}: {flag}" for pool in attacks for flag in attacks[pool]["flags"]],
        **{f"benign_{name}": _mean(client[name] for client in benign) for name in ("accuracy", "refused", "l1")},
    }
    honest_only = _pick(pools["foreign"], policy, "drop_after_alarm")
    if honest_only:
        summary |= {key: foreign[key] for key in ("alarm_at", "honest_answers")}
        summary["foreign_honest_only"] = {
            "answers": foreign["honest_answers"],
            **_summarise_thieves({"direct": honest_only}),
        }
    return summary


def summarise_adaptive(results: Sequence[Result], attacks: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What attackers who know the sentinel got from it: attack -> figures."""
    summaries = {}
    for attack in attacks:
        cells, undefended = _pick(results, "sentinel", attack), _pick(results, "undefended", attack)
        thieves = _summarise_thieves({"direct": cells})
        summaries[attack] = {
            "queries": cells[0]["queries"]["sent"],
            "honest_answers": _mean(map(_honest_answers, cells)),
            "alarmed": _mean(cell["verdicts"]["alarmed"] for cell in cells),
            "knows": list(cells[0]["knows"]),
            "thief_accuracy": thieves["thief_direct"],
            "thief_runs": thieves["thief_direct_runs"],
            "thief_undefended": _summarise_thieves({"direct": undefended})["thief_direct"],
            "flags": thieves["flags"],
        }
    return summaries


def best_thief(attack: Mapping[str, Any]) -> float | None:
    """The better of direct and label-only, each a mean over seeds; None if there was nothing to train on."""
    return max((attack[f"thief_{kind}"] for kind in KINDS if attack.get(f"thief_{kind}") is not None), default=None)


def _summarise_attack(results: Sequence[Result], policy: str) -> dict[str, Any]:
    """What thieves with one pool got from one policy; `alarm_at` is the median of the accused ones."""
    cells = {kind: _pick(results, policy, kind) for kind in KINDS}
    direct = cells["direct"]
    alarms = [at for at in map(_alarm_at, direct) if at is not None]
    letters = sorted({letter for cell in direct for letter in cell["verdicts"] if len(letter) == 1})
    return {
        "queries": direct[0]["queries"]["sent"],
        "answers": _mean(cell["queries"]["answered"] for cell in direct),
        "honest_answers": _mean(map(_honest_answers, direct)),
        "alarm_at": statistics.median(alarms) if alarms else None,
        "verdicts": {letter: _mean(cell["verdicts"].get(letter, 0.0) for cell in direct) for letter in letters},
        **_summarise_thieves(cells),
    }


def _summarise_thieves(cells: Mapping[str, Sequence[Result]]) -> dict[str, Any]:
    """Accuracy of the thieves of each kind, one figure per seed and their mean, and what is wrong with some of them."""
    summary: dict[str, Any] = {"agreement": _mean(_figures(cells["direct"], "agreement")), "flags": []}
    for kind, runs in cells.items():
        accuracies = _figures(runs, "accuracy")
        summary |= {f"thief_{kind}": _mean(accuracies), f"thief_{kind}_runs": accuracies}
        flags = [flag for run in runs for flag in run["flags"]]
        summary["flags"] += [
            f"{flags.count(flag)} of {len(runs)} {kind.replace('_', '-')} runs: {flag}" for flag in dict.fromkeys(flags)
        ]
    return summary


def _pick(results: Sequence[Result], column: str, attack: str) -> list[Result]:
    return [result for result in results if (result["column"], result["attack"]) == (column, attack)]


def _figures(cells: Sequence[Result], name: str) -> list[float]:
    """One figure of every thief that had something to train on."""
    return [cell["thief"][name] for cell in cells if cell["thief"]["accuracy"] is not None]


def _honest_answers(cell: Result) -> int:
    return round(float(cell["answers"]["honest"]) * int(cell["queries"]["answered"]))


def _alarm_at(cell: Result) -> int | None:
    """The query of a single account that raised the alarm: all later ones are alarmed too."""
    sent = int(cell["queries"]["sent"])
    alarmed = round(cell["verdicts"].get("alarmed", 0.0) * sent)
    return sent - alarmed + 1 if alarmed else None


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return statistics.mean(listed) if listed else None
