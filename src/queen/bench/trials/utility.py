"""What a defense costs benign clients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from queen.attacks.base import CountedOracle
from queen.bench.protectee import Protectee
from queen.bench.spec import Utility
from queen.defenses.base import Endpoint

BINS = 15


def measure_utility(endpoint: Endpoint, protectee: Protectee, utility: Utility) -> dict[str, Any]:
    """One client who sends the whole test set, and many who send a part of it each.

    A refused query counts as a wrong answer; distances are over the queries that were answered.
    """
    x, y = protectee.test
    clean = protectee.victim.clean(x)
    everything = CountedOracle(endpoint.client, len(x))
    answers, answered = everything.ask(x, "one client")
    right, agreeing = [], []
    generator = torch.Generator().manual_seed(0)
    count = min(utility.queries, len(x))
    for client in range(utility.clients):
        rows = torch.randperm(len(x), generator=generator)[:count].to(x.device)
        some, came = CountedOracle(endpoint.client, count).ask(x[rows], f"client {client}")
        guess = torch.where(came, some.argmax(1), -1)
        right.append((guess == y[rows]).double().mean())
        agreeing.append((guess == clean[rows].argmax(1)).double().mean())
    return {
        "one_client": {"queries": len(x), **measure_answers(answers, answered, clean, y)},
        "many_clients": {
            "clients": utility.clients,
            "queries": count,
            "accuracy": torch.stack(right).mean().item(),
            "agreement": torch.stack(agreeing).mean().item(),
        },
    }


def measure_answers(answers: Tensor, answered: Tensor, clean: Tensor, labels: Tensor) -> dict[str, float]:
    """What one client got: answers (n, K), which of them (n,) came at all, beside the clean ones and the true labels.

    A refused query counts as a wrong answer; distances and calibration are over the queries that were answered.
    """
    guess = torch.where(answered, answers.argmax(1), -1)
    return {
        "accuracy": (guess == labels).double().mean().item(),
        "agreement": (guess == clean.argmax(1)).double().mean().item(),
        "refused": 1 - answered.double().mean().item(),
        "calibration_error": calibration_error(answers[answered], labels[answered]),
        **distances(clean[answered], answers[answered]),
    }


def distances(clean: Tensor, answers: Tensor) -> dict[str, float]:
    """Mean L1, L2 and KL (clean from answers, nats) over the finite rows (n, K); no KL for answers off the simplex."""
    finite = answers.isfinite().all(1)
    clean, answers = clean[finite], answers[finite]
    if len(clean) == 0:
        return {"l1": 0.0, "l2": 0.0, "kl": 0.0}
    apart = (answers - clean).double()
    sums = answers.sum(1)
    figures = {"l1": apart.abs().sum(1).mean().item(), "l2": apart.square().sum(1).sqrt().mean().item()}
    if ((sums - 1).abs() > 1e-3).any() or (answers < 0).any():
        return figures
    floor = 1e-12
    ratio = clean.double().clamp(min=floor).log() - answers.double().clamp(min=floor).log()
    return figures | {"kl": (clean * ratio).sum(1).mean().item()}


def calibration_error(answers: Tensor, labels: Tensor) -> float:
    """Expected calibration error of the finite rows: confidence against accuracy in 15 equal bins, weighted by size."""
    finite = answers.isfinite().all(1)
    answers, labels = answers[finite], labels[finite]
    if len(answers) == 0:
        return 0.0
    confidence, guess = answers.double().max(1)
    bins = (confidence.clamp(0, 1) * BINS).long().clamp(max=BINS - 1)
    right = (guess == labels).double()
    gaps = torch.zeros(BINS, dtype=torch.float64, device=answers.device).index_add_(0, bins, right - confidence)
    return (gaps.abs().sum() / len(answers)).item()
