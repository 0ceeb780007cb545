"""Does `max_copy` hold? The demo's model with limits for it, and the benchmark's own-kind thieves against them.

    python benchmarks/price/max_copy.py --price results/price/demo.json --json > results/max_copy/demo.json

For every bound: the limits that `protect(..., max_copy=bound)` chooses from the price, or its refusal to promise; then
thieves with 600 images of the victim's own kind, direct and label-only, of five seeds. Each asks for all of them, keeps
whatever the guard answers, and must agree with the victim on less than the bound. The thieves are the benchmark's
attackers (`queen.attacks`), not the reference students, and are judged on other images. The exit status is 1 if one of
them gets more.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from queen.bench.protectee import Protectee, make_protectee
from queen.bench.spec import Spec, Utility
from queen.bench.trials.cell import run_trial
from queen.bench.trials.trial import Trial
from queen.cache import Cache
from queen.demo.run import demo_spec, own_kind_spec
from queen.errors import LimitsError
from queen.price.curve import Curve, read_curve
from queen.price.limits import limits_for, most_answers
from queen.training import one_thread

BOUNDS, SEEDS, ATTACKS = (0.7, 0.8, 0.9), range(5), ("direct", "label_only")
STEPS = 1500  # of a thief at least, as of a reference student


def thieves_spec() -> Spec:
    """The demo's victim and own-kind thieves, who learn as long as the reference students do."""
    spec = own_kind_spec(demo_spec(0))
    schedule = replace(spec.thief.schedule, min_steps=STEPS)
    return replace(spec, thief=replace(spec.thief, schedule=schedule))


def try_bound(
    bound: float, curve: Curve, protectee: Protectee, cache: Cache, *, seeds: Sequence[int], options: Mapping[str, Any]
) -> dict[str, Any]:
    """What is promised for a bound, and what every thief got."""
    classes = protectee.classes
    try:
        answers = most_answers(curve, bound, classes)
    except LimitsError as refusal:
        return {"max_copy": bound, "promised": False, "refusal": str(refusal)}
    spread = curve.agreement_at(answers, "high") - curve.agreement_at(answers, "low")
    limits = vars(limits_for(answers, classes))
    thieves = list(_thieves(protectee, cache, seeds, {**options, **limits}))
    holds = all(thief["agreement"] < bound and thief["answered"] <= answers for thief in thieves)
    return {
        "max_copy": bound,
        "promised": True,
        "answers": answers,
        "limits": limits,
        "spread": spread,
        "thieves": thieves,
        "best": max(thief["agreement"] for thief in thieves),
        "holds": holds,
    }


def _thieves(
    protectee: Protectee, cache: Cache, seeds: Sequence[int], options: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    for seed in seeds:
        for attack in ATTACKS:
            trial = Trial(
                column="max_copy",
                defense="queen-sentinel",
                query="knockoff",
                attack=attack,
                budget=len(protectee.pool),
                seed=seed,
                options=options,
                utility=Utility(clients=1, queries=1),
            )
            result = run_trial(trial, protectee, cache)
            figures = {name: result["thief"][name] for name in ("agreement", "accuracy")}
            yield {"attack": attack, "seed": seed, **result["queries"], **figures, "flags": result["flags"]}
            print(f"{attack}, seed {seed}: {figures['agreement']:.1%}", file=sys.stderr)


def main(arguments: Sequence[str]) -> int:
    """Try all bounds and print the findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--price", type=Path, required=True, help="what `queen price BUNDLE --json` printed")
    parser.add_argument("--bound", type=float, nargs="+", default=BOUNDS, help="values of max_copy")
    parser.add_argument("--cache", type=Path, help="folder of what an earlier run has computed")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    given = parser.parse_args(arguments)
    curve, spec = read_curve(json.loads(given.price.read_text())), thieves_spec()
    with tempfile.TemporaryDirectory() as folder, one_thread():
        cache = Cache(given.cache or Path(folder))
        protectee = make_protectee(spec.protectee, spec.thief, cache, "cpu", None)
        tries = [try_bound(bound, curve, protectee, cache, seeds=SEEDS, options={"seed": 0}) for bound in given.bound]
    holds = all(one["holds"] for one in tries if one["promised"])
    facts = {
        "images": len(protectee.pool),
        "judged": len(protectee.test[1]),
        "steps": STEPS,
        "weights": protectee.weights,
    }
    if given.json:
        print(json.dumps({**facts, "bounds": tries, "holds": holds}, indent=1))
    else:
        print("\n".join(map(sentence, tries)))
    return 0 if holds else 1


def sentence(one: Mapping[str, Any]) -> str:
    """What came of one bound, in words."""
    if not one["promised"]:
        return f"max_copy {one['max_copy']:g}: refused: {one['refusal']}."
    verb = "holds" if one["holds"] else "does NOT hold"
    return (
        f"max_copy {one['max_copy']:g}: at most {one['answers']} honest answers; the best of {len(one['thieves'])} "
        f"own-kind thieves agrees on {one['best']:.1%}, the reference students' spread is {one['spread']:.1%}: {verb}."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
