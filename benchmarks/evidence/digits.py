"""How many decimals an answer should have: what a head-solving thief gets from it, beside what an honest client loses.

    PYTHONPATH=src:. python3 -m benchmarks.evidence.digits [--out results/sentinel/digits.json]

The demo's victim, its encoder known to the thief to the last bit: the worst case. The thief (`greybox_head`) solves for
the head from its first n answers, in random orders of the foreign images; n is about what it gets before the alarm
(16), twice that, and what it would get without one (100). The client sends held-out images of the victim's kind and
gets honest answers, rounded. Takes minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from queen.attacks.strategies.heads import encoder_of, features_of, solve_head
from queen.bench.protectee import Protectee, make_protectee
from queen.bench.render.accused import digits_markdown
from queen.bench.trials.utility import calibration_error
from queen.cache import Cache
from queen.demo.run import demo_spec
from queen.sentinel.rounding import round_answers
from queen.training import one_thread

DIGITS = (None, 6, 4, 3, 2, 1)
ANSWERS = (16, 32, 100)
ORDERS = 20


def main() -> None:
    """Measure, print a table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/sentinel/digits.json"))
    parser.add_argument("--orders", type=int, default=ORDERS)
    options = parser.parse_args()
    spec = demo_spec(0)
    with tempfile.TemporaryDirectory() as folder, one_thread():
        protectee = make_protectee(spec.protectee, spec.thief, Cache(Path(folder)), "cpu", None)
        figures = measure(protectee, options.orders)
    print(digits_markdown(figures))
    options.out.write_text(json.dumps(figures, indent=1) + "\n")


def measure(protectee: Protectee, orders: int) -> dict[str, Any]:
    """All figures as plain JSON; `digits` maps "exact", a number of decimals or "label" to both sides."""
    rounders: dict[str, Callable[[Tensor], Tensor]] = {"exact": lambda answers: answers}
    rounders |= {str(d): lambda answers, d=d: round_answers(answers, d) for d in DIGITS if d is not None}
    rounders["label"] = lambda answers: F.one_hot(answers.argmax(1), answers.shape[1]).to(answers)
    test, truth = protectee.test
    own_kind = protectee.benign or protectee.test
    images, labels = torch.cat([test, own_kind[0]]), torch.cat([truth, own_kind[1]])
    honest = protectee.victim.clean(images)
    units = {name: 0.0 if name == "exact" else 1.0 if name == "label" else 10.0 ** -int(name) for name in rounders}
    return {
        "victim_accuracy": (honest[: len(truth)].argmax(1) == truth).double().mean().item(),
        "images": {"pool": len(protectee.pool), "test": len(truth), "client": len(labels)},
        "orders": orders,
        "digits": {
            name: {
                "thief": {str(n): thief_accuracy(protectee, rounded, n, orders) for n in ANSWERS},
                "client": client_loss(honest, rounded(honest), labels, units[name]),
            }
            for name, rounded in rounders.items()
        },
    }


def thief_accuracy(protectee: Protectee, rounded: Callable[[Tensor], Tensor], answers: int, orders: int) -> Any:
    """The mean test accuracy of solved copies, its deviation over orders, and each order's."""
    encoder = encoder_of(protectee.victim.model, protectee.pool[:2])
    pool, test = (features_of(encoder, x) for x in (protectee.pool, protectee.test[0]))
    replies = rounded(protectee.victim.clean(protectee.pool))
    runs = []
    for order in range(orders):
        rows = torch.randperm(len(pool), generator=torch.Generator().manual_seed(order))[:answers]
        head = solve_head(pool[rows], replies[rows], pool)
        runs.append((head(test).argmax(1) == protectee.test[1]).double().mean().item())
    return {"mean": statistics.mean(runs), "deviation": statistics.stdev(runs), "runs": runs}


def client_loss(honest: Tensor, answers: Tensor, labels: Tensor, unit: float) -> dict[str, float]:
    """What rounding costs an honest client: mean L1, and the answers' calibration error and log loss.

    Who takes a logarithm must take a rounded zero for something. `log_loss`: for half a unit, and scales the answer to
    sum 1 again, without which coarse answers would seem to gain. `log_loss_naive`: for a millionth.
    """
    floored = answers.double().clamp(min=unit / 2 or 1e-30)
    likely = (floored / floored.sum(1, keepdim=True)).gather(1, labels[:, None])
    naive = answers.double().gather(1, labels[:, None]).clamp(min=1e-6)
    return {
        "l1": (answers - honest).abs().sum(1).double().mean().item(),
        "calibration_error": calibration_error(answers, labels),
        "log_loss": -likely.log().mean().item(),
        "log_loss_naive": -naive.log().mean().item(),
        "true_label_zero": (answers.gather(1, labels[:, None]) == 0).double().mean().item(),
    }


if __name__ == "__main__":
    main()
