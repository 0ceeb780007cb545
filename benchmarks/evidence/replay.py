"""The sentinel's evidence on the victims that `measure` left behind: who is accused, how soon, and who wrongly.

    PYTHONPATH=src:. python3 -m benchmarks.evidence.replay build/evidence [--only NAME]

Writes results/sentinel/evidence.json (thieves and benign clients), tolerance.json (honest clients with cameras of their
own), odd.json (benign but odd clients, and what helps them) and threshold.json (a fixed threshold beside the certified
test). Runs on a CPU, in about half an hour.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.evidence.clients import (
    FIRST_BAR,
    HONEST,
    MARGINS,
    ORDERS,
    QUERIES,
    SENT,
    SETTINGS,
    Images,
    Measured,
    Rows,
    alarms,
    attacks_until,
    hidden_thieves,
    make_bets,
    make_betting,
    orders,
    summary,
)
from benchmarks.evidence.measure import CHANGED, CHANGES
from benchmarks.evidence.odd import odd
from benchmarks.evidence.threshold import compare_thresholds
from benchmarks.evidence.victims import VICTIMS
from queen.ledger import MemoryLedger
from queen.ledger.rows import make_rows
from queen.options import SCORES, Limits
from queen.sentinel.bets import Betting

RESULTS = Path(__file__).parents[2] / "results/sentinel"
SPLITS, CLIENTS, LENGTH = 20, 50, 5000  # benign clients: calibrations, clients of each, queries of each
WARM_UP = 1000
OLD_BAR = 20_000.0  # of the prototype, which did not save alpha for further calibrations
FACTS = {"alpha": SETTINGS.alpha, "delta": SETTINGS.delta, "bar": FIRST_BAR, "queries": QUERIES, "warm_up": WARM_UP}
Result = dict[str, Any]


def evidence(victim: Measured) -> Result:
    """Thieves at every margin, hard cases, and benign clients."""
    calibration, held_out = victim.images("calibration"), victim.images("held out")
    pools = {name: victim.images(f"pool {name}") for name in victim.pools}
    result: Result = {"facts": {k: v for k, v in victim.about.items() if k != "accuracy_changed"}, "thieves": {}}
    _check_ledger(victim, calibration, next(iter(pools.values())))
    for name, pool in pools.items():
        result["thieves"][name] = {
            f"{margin:g}": thieves(calibration, held_out, pool, victim.classes, margin, FIRST_BAR) for margin in MARGINS
        } | {"0, bar 20,000": thieves(calibration, held_out, pool, victim.classes, 0.0, OLD_BAR)}
    result["few_images"] = {
        str(count): few_images(calibration, next(iter(pools.values())), victim.classes, count)
        for count in (5, 10, 20, 50)
    }
    return result | {"benign": benign(victim, calibration, held_out), "cascade": cascade(victim, calibration, held_out)}


def _check_ledger(victim: Measured, calibration: Images, pool: Images) -> None:
    """A ledger, asked one query at a time, must raise its alarm where the replay does."""
    betting, asked = make_betting(calibration, victim.classes, SETTINGS.margin), np.arange(min(500, len(pool)))
    at = int(alarms(betting, pool, asked[None], FIRST_BAR)[0])
    ledger, limits = MemoryLedger(), Limits(extra_answers=10**6)
    for row in asked.tolist():
        bets = make_bets(betting, pool, asked[row : row + 1], distinct=True)
        rows = make_rows(("thief",), None, pool.labels[[row]], np.full((1, 2), 2.0), limits, bets=bets)
        if ledger.judge_rows(rows).alarmed[0]:
            break
    if row != min(at, asked[-1]):
        raise ValueError(f"the ledger raised its alarm at query {row + 1}, the replay at {at + 1}")


def thieves(calibration: Images, cover: Images, pool: Images, classes: int, margin: float, bar: float) -> Result:
    """Attack queries until the alarm, for every way of a thief to hide."""
    rng = np.random.default_rng(0)
    betting, both = make_betting(calibration, classes, margin), cover + pool
    foreign = len(cover) + np.arange(len(pool))
    central = _central(calibration, cover, classes)

    def hidden(ratio: int, among: Rows) -> Result:
        return hidden_thieves(rng, betting, both, foreign, among, ratio, bar)

    def warmed_up() -> Result:
        first, attack = (
            orders(rng, len(cover), WARM_UP, ORDERS),
            orders(rng, foreign, min(QUERIES - WARM_UP, len(pool)), ORDERS),
        )
        sent = np.concatenate([first, attack], axis=1)
        return summary(attacks_until(alarms(betting, both, sent, bar), sent >= len(cover)))

    return {
        "plain": hidden(0, np.arange(len(cover))),
        **{f"{ratio}:1": hidden(ratio, np.arange(len(cover))) for ratio in (1, 3, 10)},
        "10:1 central": hidden(10, central),
        "warm-up": warmed_up(),
    }


def _central(calibration: Images, images: Images, classes: int) -> Any:
    """The half of the images that look least foreign, by the largest of their scores' places in calibration."""
    shares = np.zeros(images.scores.shape)
    for k in range(classes):
        mine, rows = calibration.scores[calibration.labels == k], images.labels == k
        for j in range(shares.shape[1]):
            shares[rows, j] = np.searchsorted(np.sort(mine[:, j]), images.scores[rows, j]) / max(1, len(mine))
    return np.argsort(shares.max(1), kind="stable")[: len(images) // 2]


def few_images(calibration: Images, pool: Images, classes: int, count: int) -> Result:
    """Plain thieves of a guard that was calibrated on so many images of every predicted class, redrawn ten times."""
    rng, sent = np.random.default_rng(0), {0.0: [], 0.2: []}
    for _ in range(10):
        shuffled = rng.permutation(len(calibration))
        labels = calibration.labels[shuffled]
        chosen = np.concatenate([shuffled[labels == k][:count] for k in range(classes)])
        clients = orders(rng, len(pool), QUERIES, 10)
        for margin in sent:
            betting = make_betting(calibration.take(chosen), classes, margin)
            sent[margin] += attacks_until(alarms(betting, pool, clients, FIRST_BAR), np.ones(clients.shape, np.bool_))
    return {f"{margin:g}": summary(numbers) for margin, numbers in sent.items()}


def benign(victim: Measured, calibration: Images, held_out: Images) -> Result:
    """Benign clients accused with margin 0, where wealth is highest, in random orders, and with one predicted class only.

    Calibration and held-out images are divided anew for every fifty clients.
    """
    rng, accused = np.random.default_rng(0), 0
    together, count = calibration + held_out.take(np.arange(victim.about["images"]["same_draw"])), len(calibration)
    length = min(LENGTH, len(together) - count)
    for _ in range(SPLITS):
        rows = rng.permutation(len(together))
        betting = make_betting(together.take(rows[:count]), victim.classes, 0.0)
        clients = orders(rng, rows[count:], length, CLIENTS)
        accused += int((alarms(betting, together, clients, FIRST_BAR) < length).sum())
    same_class = one_class({"0": make_betting(calibration, victim.classes, 0.0)}, held_out, held_out.labels)
    return {
        "clients": SPLITS * CLIENTS,
        "queries": length,
        "accused": accused,
        "one_predicted_class": same_class | {"accused": same_class["accused"]["0"]},
    }


def cascade(victim: Measured, calibration: Images, held_out: Images) -> Result:
    """Clients that send only the fifth of their images that the victim is least sure of."""
    rng = np.random.default_rng(0)
    unsure = np.argsort(-held_out.all_scores[:, SCORES.index("confidence")], kind="stable")[: len(held_out) // 5]
    clients = orders(rng, unsure, min(len(unsure), SENT), HONEST)
    return {
        f"{margin:g}": summary(
            attacks_until(
                alarms(make_betting(calibration, victim.classes, margin), held_out, clients, FIRST_BAR),
                np.ones(clients.shape, np.bool_),
            )
        )
        for margin in MARGINS
    }


def tolerance(victim: Measured) -> Result:
    """Honest clients whose camera changes every image alike: how many are accused at every margin."""
    calibration = victim.images("calibration")
    bettings = {f"{margin:g}": make_betting(calibration, victim.classes, margin) for margin in MARGINS}
    held_out = victim.images("held out")
    result: Result = {
        "unchanged": _cameras(bettings, [held_out.take(np.arange(CHANGED))]),
        "one true class": one_class(bettings, held_out, victim.truth),
    }
    for kind, ranges in CHANGES.items():
        for name, levels in ranges.items():
            cameras = [victim.images(f"{kind} {level}") for level in levels]
            accuracy = [victim.about["accuracy_changed"][f"{kind} {level}"] for level in levels]
            result[f"{kind} {name}"] = _cameras(bettings, cameras) | {"accuracy": [min(accuracy), max(accuracy)]}
    return result


def _cameras(bettings: Mapping[str, Betting], cameras: list[Images]) -> Result:
    """Clients with one of the cameras each, drawn at random."""
    rng = np.random.default_rng(0)
    accused = dict.fromkeys(bettings, 0)
    for images, count in zip(cameras, np.bincount(rng.integers(len(cameras), size=HONEST)), strict=False):
        for margin, number in _accused(bettings, images, orders(rng, len(images), SENT, count)).items():
            accused[margin] += number
    return {"clients": HONEST, "queries": SENT, "accused": accused}


def _accused(bettings: Mapping[str, Betting], images: Images, clients: Rows) -> dict[str, int]:
    """How many of the clients are accused at every margin, from the smallest on.

    A larger margin makes every bet smaller and no price: it accuses nobody whom a smaller one does not.
    """
    accused = {}
    for margin, betting in bettings.items():
        clients = clients[alarms(betting, images, clients, FIRST_BAR) < clients.shape[1]] if len(clients) else clients
        accused[margin] = len(clients)
    return accused


def one_class(bettings: Mapping[str, Betting], images: Images, classes: NDArray[Any]) -> Result:
    """Clients that send images of one class only, ten orders of each."""
    rng = np.random.default_rng(0)
    accused, clients, longest = dict.fromkeys(bettings, 0), 0, 0
    for k in np.unique(classes):
        mine = np.flatnonzero(classes == k)
        streams = orders(rng, mine, min(len(mine), LENGTH), 10)
        clients, longest = clients + len(streams), max(longest, streams.shape[1])
        for margin, number in _accused(bettings, images, streams).items():
            accused[margin] += number
    return {"clients": clients, "queries": longest, "accused": accused}


def main() -> None:
    """Replay the victims found and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=("evidence", "tolerance", "odd", "threshold"))
    asked = parser.parse_args()
    jobs: Mapping[str, Callable[[Measured], Result]] = {"evidence": evidence, "tolerance": tolerance, "odd": odd}
    for job, work in jobs.items():
        if asked.only in (None, job):
            results = {name: work(Measured(asked.folder / f"{name}.npz")) for name in VICTIMS}
            _write(job, FACTS | {"victims": results})
    if asked.only in (None, "threshold"):
        _write("threshold", compare_thresholds(Measured(asked.folder / "mnist_cnn.npz")))


def _write(name: str, result: Result) -> None:
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
