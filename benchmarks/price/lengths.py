"""Does it pay for a reference student to learn longer? Copies after so many passes over so many answers.

    python benchmarks/price/lengths.py build/cifar10/bundle --data build/cifar10/train.npz \\
      --calibration build/cifar10/held_out.npz --device cuda --jobs 6 --json > results/price_lengths/cifar10.json

The bundle and its images are those of `queen price` (benchmarks/price/limits.py --save writes CIFAR-10's, --demo takes
the demo's). Students are the model's own network, learning from held-out images, probabilities and labels, two seeds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from queen.bench.code import describe_code
from queen.bench.protectee import make_protectee
from queen.bench.trials.cell import hardware
from queen.bundle.bundle import Bundle
from queen.bundle.store import load_bundle
from queen.cache import Cache
from queen.demo.run import demo_spec
from queen.fit.data import Images
from queen.fit.files import read_data, read_images
from queen.fit.price import ask_for_students
from queen.parallel.processes import in_processes
from queen.price.measure import Pricing, Work
from queen.price.students import Jury, Pool, Student, choose_networks
from queen.progress import Progress

LENGTHS = ((32, 1500, 1), (32, 6000, 1), (128, 1500, 1))  # images a step, steps at least, passes at least
SEEDS = (0, 1)


def measure(
    bundle: Bundle, pool: Pool, jury: Jury, sizes: Sequence[int], *, jobs: int, device: str
) -> Iterator[dict[str, Any]]:
    """One row for every length, number of answers and kind of answers."""
    networks = choose_networks(pool.images.shape[1:], pool.answers.shape[1], bundle.recipe)
    name, recipe = next(iter(networks.items()))
    for (batch, steps, epochs), answers, label_only in product(LENGTHS, sizes, (False, True)):
        pricing = Pricing(batch=batch, steps=steps, epochs=epochs, seeds=SEEDS)
        work = Work({pool.name: pool}, jury, pricing, device, None)
        students = [Student(name, recipe, pool.name, answers, label_only, seed) for seed in SEEDS]
        outcomes = in_processes(work.run, students, jobs) if jobs > 1 else map(work.run, students)
        agreements = [float(figures["agreement"] or 0) for _, figures in outcomes]
        yield {
            "batch": batch,
            "steps": steps,
            "passes": steps * batch / answers,
            "answers": answers,
            "label_only": label_only,
            "network": name,
            "agreement": mean(agreements),
            "low": min(agreements),
            "high": max(agreements),
        }


def read_demo() -> tuple[Images, Images]:
    """The demo's training and held-out images."""
    spec = demo_spec(0)
    with tempfile.TemporaryDirectory() as folder:
        victim = make_protectee(spec.protectee, spec.thief, Cache(Path(folder)), "cpu", None).victim
    if victim.calibration is None:
        raise SystemExit("expected a demo that sets calibration images aside")
    return victim.train, victim.calibration


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--demo", action="store_true", help="the images are the demo's; else give both files")
    parser.add_argument("--data", type=Path, help="training data, .npz")
    parser.add_argument("--calibration", type=Path, help="held-out images, .npz")
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 3000], help="numbers of answers")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true", help="all figures, for results/")
    options = parser.parse_args()
    bundle = load_bundle(options.bundle, device=options.device)
    if options.demo:
        train, held_out = read_demo()
    elif options.data and options.calibration:
        train, held_out = read_data(options.data), read_images(options.calibration)
    else:
        parser.error("expected --demo, or --data FILE and --calibration FILE")
    with Progress(False) as show:
        pools, jury = ask_for_students(bundle, train, held_out, show)
    pool = next(pool for pool in pools if pool.name == "held-out")
    rows = []
    for row in measure(bundle, pool, jury, options.sizes, jobs=options.jobs, device=options.device):
        rows.append(row)
        if not options.json:
            told = "labels" if row["label_only"] else "answers"
            print(f"{row['answers']:6,} {told:8} {row['steps']:,} steps of {row['batch']}: {row['agreement']:.1%}")
    if options.json:
        device = bundle.probe.logits.device
        print(
            json.dumps(
                {"rows": rows, "seeds": SEEDS, "hardware": hardware(device), "versions": describe_code()}, indent=1
            )
        )


if __name__ == "__main__":
    main()
