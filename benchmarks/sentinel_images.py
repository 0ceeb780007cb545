"""How soon the sentinel accuses, and whom, for a VGG16-BN trained here on images of your own (made for CIFAR-10).

    python benchmarks/sentinel_images.py --train train.npz --held-out test.npz --pool foreign.npz > result.json

Every file holds x (n, height, width, 3) in 0..255; train and held-out also y. Half of the held-out images calibrate
(all of it and a fifth of it), the other half are benign clients. Takes about five minutes on a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import queen
from queen.bench.orders import OrderReplay
from queen.core.certify import certify
from queen.options import Limits
from queen.sentinel.sketch import Memory
from queen.zoo import build

EPOCHS, BATCH, ORDERS = 30, 256, 100
RATIOS = (1, 3, 10)


def read(path: Path) -> tuple[Tensor, Tensor | None]:
    """Images (n, 3, H, W) in 0..1, and labels if there are any."""
    arrays = np.load(path)
    x = torch.from_numpy(arrays["x"]).permute(0, 3, 1, 2).float() / 255
    return x, torch.from_numpy(arrays["y"]).long() if "y" in arrays.files else None


def train(x: Tensor, y: Tensor, device: torch.device) -> nn.Module:
    """SGD in one cycle, with flips and shifts."""
    torch.manual_seed(0)
    model = build("vgg16_bn", classes=int(y.max()) + 1, channels=3).to(device)
    x, y = x.to(device), y.to(device)
    steps = len(x) // BATCH
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.1, total_steps=EPOCHS * steps)
    for _ in range(EPOCHS):
        order = torch.randperm(len(x), device=device)
        for rows in order[: steps * BATCH].view(steps, BATCH):
            batch = x[rows].flip(3) if torch.rand(()) < 0.5 else x[rows]
            dy, dx = torch.randint(0, 9, (2,)).tolist()
            batch = F.pad(batch, (4, 4, 4, 4))[:, :, dy : dy + x.shape[2], dx : dx + x.shape[3]]
            with torch.autocast(device.type, torch.bfloat16):
                loss = F.cross_entropy(model(batch), y[rows])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()
    return model.eval().requires_grad_(False)


def measure(guard: queen.Guard, benign: Tensor, pool: Tensor) -> dict[str, object]:
    """Alarms of attackers and benign clients in random orders; repeats, jitter and decoys."""
    rng = np.random.default_rng(0)
    many, some = len(benign), min(len(pool), 10_000)
    replay = OrderReplay(guard, torch.cat([benign, pool[:some]]))
    attackers = [many + rng.permutation(some)[:3000] for _ in range(ORDERS)]
    one_class = [np.flatnonzero(replay.labels[:many] == k) for k in np.unique(replay.labels[:many])]
    found = {
        "attack_alarm_at": summary([replay.alarm_at(order) for order in attackers]),
        "benign_clients": {"queries": many, "clients": ORDERS}
        | {"accused": replay.accused(rng.permutation(many) for _ in range(ORDERS))},
        "one_class_clients": {"clients": 5 * len(one_class)}
        | {"accused": replay.accused(rng.permutation(rows) for rows in one_class for _ in range(5))},
        "cover": {},
    }
    for ratio in RATIOS:
        alarms = []
        for _ in range(20):
            rounds = many // ratio
            order = np.concatenate(
                [rng.permutation(many)[: rounds * ratio].reshape(rounds, ratio), many + rng.choice(some, (rounds, 1))],
                1,
            ).ravel()
            at = replay.alarm_at(order)
            alarms.append(None if at is None else int((order[:at] >= many).sum()))
        found["cover"][f"{ratio}:1"] = summary(alarms)
    found["different_images_taken_for_repeats"] = {
        "benign": taken_for_repeats(replay, range(many)),
        "pool": taken_for_repeats(replay, range(many, many + some)),
    }
    found["decoys"] = decoy_facts(guard, pool[:some])
    found["jitter"] = {str(size): after_jitter(guard, benign[:512], size) for size in (1e-3, 3e-3, 1e-2)}
    return found


def summary(alarms: list[int | None]) -> dict[str, object]:
    """How many were accused, and after how many queries."""
    caught = [at for at in alarms if at is not None]
    figures = (
        dict(zip(("median", "p95", "worst"), np.percentile(caught, [50, 95, 100]).tolist(), strict=True))
        if caught
        else {}
    )
    return {"clients": len(alarms), "accused": len(caught)} | figures


def taken_for_repeats(replay: OrderReplay, rows: range) -> float:
    """The share of different images that the memory takes for repeats of others."""
    memory, hits = Memory(), 0
    for i in rows:
        hits += memory.has_near(replay.bets.sketches[i])
        memory.add(replay.bets.digests[i], replay.bets.sketches[i])
    return hits / len(rows)


def decoy_facts(guard: queen.Guard, pool: Tensor) -> dict[str, float]:
    """How often a decoy names the honest class, and how often the best exchange of classes would, over all answers."""
    decoys = guard.fresh(on_spent="decoy", limits=Limits(threshold=0.0, extra_answers=0))
    told, honest = [], []
    for part in pool.split(500):
        told.append(decoys.answer(part, client="a").probabilities.argmax(1).cpu())
        honest.append(guard.measure(part).honest.argmax(1).cpu())
    pairs = torch.stack([torch.cat(told), torch.cat(honest)])
    classes = int(pairs.max()) + 1
    votes = torch.zeros(classes, classes).index_put_(tuple(pairs), torch.ones(pairs.shape[1]), accumulate=True)
    return {
        "names_the_honest_class": (pairs[0] == pairs[1]).double().mean().item(),
        "best_exchange_of_classes": votes.amax(1).sum().item() / pairs.shape[1],
        "largest_class": votes.sum(0).max().item() / pairs.shape[1],
    }


def after_jitter(guard: queen.Guard, x: Tensor, size: float) -> dict[str, float]:
    """Shares of jittered images that keep their decoy's top label and are known as repeats."""
    decoys = guard.fresh(on_spent="decoy", limits=Limits(threshold=0.0, extra_answers=0))
    noise = 2 * torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) - 1
    other = x + size * (x.max() - x.min()) * noise
    kept = decoys.answer(x, client="a").probabilities.argmax(1) == decoys.answer(
        other, client="b"
    ).probabilities.argmax(1)
    memory = Memory()
    for digest, sketch in zip(*(getattr(guard.measure(x).bets, name) for name in ("digests", "sketches")), strict=True):
        memory.add(digest, sketch)
    known = [memory.has_near(sketch) for sketch in guard.measure(other).bets.sketches]
    return {"decoy_kept": kept.double().mean().item(), "known_as_repeat": float(np.mean(known))}


def main() -> None:
    """Train, protect, measure, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("train", "held-out", "pool"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    asked = parser.parse_args()
    start = time.time()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    (x, y), (test_x, test_y), (pool, _) = read(asked.train), read(asked.held_out), read(asked.pool)
    mean, std = x.mean((0, 2, 3)), x.std((0, 2, 3))
    x, test_x, pool = ((t - mean[:, None, None]) / std[:, None, None] for t in (x, test_x, pool))
    model = train(x, y, device)
    with torch.inference_mode():
        right = torch.cat([model(part.to(device)).argmax(1).cpu() for part in test_x.split(1000)]) == test_y
    half = len(test_x) // 2
    radius = certify(0.1, 0.05, 0.2).rho_sound
    guard = queen.protect(
        model,
        (x, y),
        calibration=(test_x[:half], test_y[:half]),
        policy="sentinel",
        limits=Limits(radius=radius, extra_answers=10**6),
        secret=bytes(32),
        pixel_mean=mean.tolist(),
        pixel_std=std.tolist(),
        progress=False,
    )
    fewer = queen.calibrate(guard, (test_x[: half // 5], test_y[: half // 5]), progress=False)
    result = {"victim_accuracy": right.double().mean().item(), "alpha": guard.bundle.sentinel.alpha, "radius": radius}
    result |= {"agreement": guard.report["agreement"], "calibration_outside": guard.report["calibration_outside"]}
    for served in (guard, fewer):
        result[f"calibration_{served.report['calibration_images']}"] = measure(served, test_x[half:], pool)
    conditions = ["noise", "noise:0.063", "blur", "brightness", "contrast"]
    widened = queen.calibrate(guard, (test_x[:half], test_y[:half]), conditions=conditions, progress=False)
    result["alarm_rates_after_calibrating_for_conditions"] = widened.report["alarm_rates"]
    result["widened_attack_alarm_at"] = measure(widened, test_x[half:], pool)["attack_alarm_at"]
    result |= {"seconds": round(time.time() - start), "torch": torch.__version__, "device": device.type}
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
