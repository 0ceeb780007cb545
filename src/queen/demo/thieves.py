"""Training copies on what an attacker collected, and saying how good they are."""

from __future__ import annotations

import hashlib
import os
import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from joblib import Parallel, delayed
from torch import Tensor, nn
from torch.nn import functional as F

from queen.progress import Progress
from queen.training import Schedule, collapsed, predict, train
from queen.zoo import build, seeded

MIN_STEPS, EPOCHS, MAX_STEPS = 200, 14, 600  # a thief with few answers goes over them more often
RATE = 0.1
KINDS = ("direct", "label_only")
Key = TypeVar("Key", bound=Hashable)
TrainingSet = tuple[Tensor, Tensor]
"""Images (n, ...) and the answers (n, K) an attacker got to them."""


def new_network(generator: torch.Generator) -> nn.Module:
    """The demo's architecture, for victim and thieves alike."""
    with seeded(generator):
        return build("small_cnn", classes=10, channels=1)


def rob(
    loot: Mapping[Key, TrainingSet],
    test: tuple[Tensor, Tensor],
    original: Tensor,
    seeds: Sequence[int],
    show: Progress,
    kinds: Sequence[str] = KINDS,
) -> dict[Key, dict[str, Any]]:
    """Train thieves on the answers (direct) and on their labels alone, once a seed, and try them on the test images.

    `original` are the victim's labels of the test images. Training is deterministic, so equal loot is trained on once.
    """
    targets = {}
    for key, (x, answers) in loot.items():
        for kind in kinds if len(x) else ():
            labels = F.one_hot(answers.argmax(1), answers.shape[1]).float()
            targets[key, kind] = (x, answers if kind == "direct" else labels)
    names = {key: _digest(*pair) for key, pair in targets.items()}
    unique = {names[key]: pair for key, pair in targets.items()}
    # One thread a process: tiny networks gain nothing from more, and lose much on a busy machine.
    jobs = [(digest, seed) for digest in unique for seed in seeds]
    work = Parallel(n_jobs=min(4, os.cpu_count() or 1), return_as="generator")(
        delayed(_guesses)(*unique[digest], seed, test[0]) for digest, seed in jobs
    )
    guesses: dict[bytes, list[Tensor]] = {digest: [] for digest in unique}
    for (digest, _), guess in zip(jobs, show.each("train the thieves", work, len(jobs)), strict=True):
        guesses[digest].append(guess)
    return {
        key: _scores({kind: guesses[names[key, kind]] if len(x) else [] for kind in kinds}, test[1], original, len(x))
        for key, (x, _) in loot.items()
    }


def _scores(runs: dict[str, list[Tensor]], truth: Tensor, original: Tensor, answers: int) -> dict[str, Any]:
    found: dict[str, Any] = {"answers": answers, "flags": []}
    for kind, guesses in runs.items():
        each = [accuracy(guess, truth) for guess in guesses]
        found |= {f"thief_{kind}": statistics.mean(each) if each else None, f"thief_{kind}_runs": each}
        bad = sum(map(collapsed, guesses))
        if bad:
            what = kind.replace("_", "-")
            found["flags"].append(f"{bad} of {len(guesses)} {what} thieves collapsed to one class")
    found["agreement"] = statistics.mean(accuracy(g, original) for g in runs["direct"]) if runs["direct"] else None
    return found


def best(attack: Mapping[str, Any]) -> float | None:
    """The better of direct and label-only, each a mean over seeds; None if there was nothing to train on."""
    if attack["thief_direct"] is None:
        return None
    return float(max(attack["thief_direct"], attack["thief_label_only"]))


def accuracy(guess: Tensor, truth: Tensor) -> float:
    """Share of equal labels."""
    return (guess == truth).double().mean().item()


def _digest(x: Tensor, target: Tensor) -> bytes:
    return hashlib.sha256(x.contiguous().numpy().tobytes() + target.contiguous().numpy().tobytes()).digest()


def _guesses(x: Tensor, target: Tensor, seed: int, test: Tensor) -> Tensor:
    """Train one thief (in a process of its own) and let it label the test images."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1000 + seed)
    an_epoch = max(1, len(x) // 64)
    epochs = -(-min(max(EPOCHS * an_epoch, MIN_STEPS), MAX_STEPS) // an_epoch)
    thief = new_network(generator)
    return predict(train(thief, x.clone(), target.clone(), Schedule(epochs=epochs, lr=RATE), generator), test)
