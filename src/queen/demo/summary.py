"""What the benchmark's cells say of every policy and attacker, as means over the seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Result = Mapping[str, Any]
KINDS = ("direct", "label_only")
COLUMNS = ("undefended", "sentinel", "decoys")  # that attackers who know the sentinel run against
KINDS_OF_THIEVES = ("foreign", "own_kind", "many_accounts")
MANY_ACCOUNTS = ("many_accounts", "two_accounts")


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
    return summary | {key: foreign[key] for key in ("alarm_at", "honest_answers")}


def summarise_adaptive(results: Sequence[Result], attacks: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What attackers who know the sentinel got: attack -> what it knows, its queries, and column -> figures."""
    summaries = {}
    for attack in attacks:
        columns = {column: _pick(results, column, attack) for column in COLUMNS}
        cells = {column: listed for column, listed in columns.items() if listed}
        one = next(iter(cells.values()))[0]
        summaries[attack] = {
            "queries": one["queries"]["sent"],
            "knows": list(one["knows"]),
            "columns": {column: _summarise_column(listed) for column, listed in cells.items()},
        }
    return summaries


def _summarise_column(cells: Sequence[Result]) -> dict[str, Any]:
    thieves = _summarise_thieves({"direct": cells})
    return {
        "thief": thieves["thief_direct"],
        "runs": thieves["thief_direct_runs"],
        "honest_answers": _mean(map(_honest_answers, cells)),
        "alarmed": _mean(cell["verdicts"].get("alarmed", 0.0) for cell in cells),
        "labels_right": _mean(cell["believed"]["label_right"] for cell in cells),
        "flags": thieves["flags"],
    }


@dataclass(frozen=True)
class BestThief:
    """The best of some attackers: its name, the accuracy of its copy, and how many attackers were tried."""

    attack: str
    accuracy: float
    tried: int


def best_thieves(results: Mapping[str, Any], policy: str) -> dict[str, BestThief | None]:
    """The best thief that a policy met, by what thieves have: foreign images alone, own-kind ones, many accounts.

    Attackers who know the victim's clean answers, or own its encoder, are not counted: they have a model already.
    """
    figures = results["policies"][policy]
    accuracies: dict[str, dict[str, float | None]] = {kind: {} for kind in KINDS_OF_THIEVES}
    for pool in ("foreign", "own_kind"):
        accuracies[pool] |= {f"{kind} ({pool})": figures[pool][f"thief_{kind}"] for kind in KINDS}
    for attack, row in results.get("adaptive", {}).get("thieves", {}).items():
        if policy in row["columns"] and not {"prior", "defense", "encoder"} & set(row["knows"]):
            has = "own_kind" if "benign" in row["knows"] else "foreign"
            accuracies["many_accounts" if attack in MANY_ACCOUNTS else has][attack] = row["columns"][policy]["thief"]
    return {kind: _best(listed) for kind, listed in accuracies.items()}


def _best(accuracies: Mapping[str, float | None]) -> BestThief | None:
    valid = {attack: accuracy for attack, accuracy in accuracies.items() if accuracy is not None}
    if not valid:
        return None
    attack = max(valid, key=lambda name: valid[name])
    return BestThief(attack.partition(" ")[0], valid[attack], len(valid))


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
    """How many of the answers were the victim's own, as a guard counts them; without one, all were."""
    return round(float(cell["verdicts"].get("honest", 1.0)) * int(cell["queries"]["sent"]))


def _alarm_at(cell: Result) -> int | None:
    """The query of a single account that raised the alarm: all later ones are alarmed too."""
    sent = int(cell["queries"]["sent"])
    alarmed = round(cell["verdicts"].get("alarmed", 0.0) * sent)
    return sent - alarmed + 1 if alarmed else None


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return statistics.mean(listed) if listed else None
