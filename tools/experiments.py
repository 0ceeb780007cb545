"""Every table and figure of the paper, where it was run again, and what came of it: a table for docs/paper.md."""

from __future__ import annotations

from dataclasses import dataclass

from queen.bench.render.markdown import markdown_table
from tools.rerun import ROOT, read_rerun

RESULTS = ROOT / "results"


@dataclass(frozen=True)
class Experiment:
    """An item of the paper, the place of ours in the documents, and what ours says of it.

    `small` is the result at the size of the smoke test, `light` one with the paper's images and a small network, `full`
    those at the paper's size, or near it, as far as they can be had here: files of `results`, there or yet to come.
    """

    item: str
    ours: str
    says: str
    small: str | None = None
    light: str | None = None
    full: tuple[str, ...] = ()


HERE = "results.md"
STUDIES = "studies.md"
CANNOT = "cannot be run here: no ImageNet, whose images are the pool and whose weights the networks start from"
EXPERIMENTS = (
    Experiment(
        "Figures of the overview, the workflow and the sensitivity measurement",
        "[how-it-works.md](how-it-works.md)",
        "drawn from real queries",
    ),
    Experiment(
        "Threshold (figure, CIFAR-10)",
        f"[studies.md]({STUDIES}#threshold)",
        "confirmed for queries inside the discs: a larger threshold records more, reverses less, and both accuracies "
        "rise. At our default radius few foreign queries fall inside, so for these it hardly matters. (The paper's "
        "summary sentence says the opposite of its figure.)",
        "studies/threshold.json",
        "studies-cifar10-light/threshold.json",
        ("studies-cifar10/threshold.json",),
    ),
    Experiment(
        "Radius (figure, CIFAR-10)",
        f"[studies.md]({STUDIES}#radius)",
        "confirmed under `queen`: recorded falls, reversed rises and falls again",
        "studies/radius.json",
        "studies-cifar10-light/radius.json",
        ("studies-cifar10/radius.json",),
    ),
    Experiment(
        "Number of shadow models (four tables: CIFAR-10 and CIFAR-100, D-DAE+ and pBayes)",
        f"[studies.md]({STUDIES}#number-of-shadow-models)",
        "confirmed: it hardly matters (direct thief)",
        "studies/shadow_models.json",
        full=("studies-cifar10/shadow_models.json", "studies-cifar100/shadow_models.json"),
    ),
    Experiment(
        "Kolmogorov-Smirnov test (figure)",
        f"[studies.md]({STUDIES}#forget-quality)",
        "confirmed, but it proves little: a thief with the same clean answers and another seed is told apart as well "
        "early in training",
        "studies/forget_quality.json",
        full=("studies-cifar10/forget_quality.json",),
    ),
    Experiment(
        "Run time (two tables: preparation, 1,000 queries)",
        f"[studies.md]({STUDIES}#run-time)",
        "differs: QUEEN, MAD and ModelGuard cost less here, since exact batched solutions replaced their solvers",
        "studies/runtime.json",
        full=("studies-cifar10/runtime.json", "studies-cifar100/runtime.json", "studies-mnist/runtime.json"),
    ),
    Experiment(
        "Central against peripheral images (figure, MNIST)",
        f"[studies.md]({STUDIES}#central-against-peripheral-images)",
        "the opposite: on MNIST, as the paper describes it, peripheral images teach most, by far where distances are "
        "those between features",
        "studies/quartiles.json",
        full=("studies-mnist/quartiles.json",),
    ),
    Experiment(
        "t-SNE of features (figure)",
        f"[studies.md]({STUDIES}#features)",
        "confirmed: classes are separate, and training and test images lie together",
        "studies/features.json",
        full=("studies-mnist/features.json",),
    ),
    Experiment("Theorem 1", "`tests/core/test_theorem_1.py`", "differs where the answer must be a probability (above)"),
    Experiment("Theorems 2 and 3", "`queen certify`", "rules for the radius and a bound on recovery (above)"),
)
TABLES = {
    "cifar10": ("CIFAR-10 (table)", f"[results.md]({HERE}#beside-the-papers-figures)"),
    "cifar100": ("CIFAR-100 (table)", f"[results.md]({HERE}#cifar-100)"),
    "cub200-64": ("CUB200 (table)", f"[results.md]({HERE}#cub-200)"),
    "caltech101-64": ("Caltech256 (table)", f"[results.md]({HERE}#caltech-101)"),
}
STAND_IN = {
    "cub200-64": f"as published it {CANNOT}; in its place 64 pixels and weights of TinyImageNet",
    "caltech101-64": f"as published it {CANNOT}; in its place Caltech-101 at 64 pixels",
}


def experiments_table() -> str:
    """Every table and figure of the paper with the place of ours, what ours says, and how much of it was run."""
    rows = [(item, ours, _table_says(name), _cells_run(name)) for name, (item, ours) in TABLES.items()]
    rows += [(one.item, one.ours, one.says, _sizes_run(one)) for one in EXPERIMENTS]
    return markdown_table(("in the paper", "ours", "says", "run so far"), rows)


def _table_says(name: str) -> str:
    found = "" if not read_rerun(name).results else "[where it confirms the paper and where not](honest-rerun.md)"
    return "; ".join(part for part in (found, STAND_IN.get(name, "")) if part) or "-"


def _cells_run(name: str) -> str:
    rerun = read_rerun(name)
    return f"{len(rerun.results)} of {len(list(rerun.spec.cells()))} cells"


def _sizes_run(one: Experiment) -> str:
    """Links to the results that are there, and how many of the paper's size are not."""
    there = [path for path in (one.small, one.light, *one.full) if path and (RESULTS / path).exists()]
    missing = len([path for path in one.full if not (RESULTS / path).exists()])
    links = ", ".join(f"[{path.removesuffix('.json')}](../results/{path})" for path in there)
    lacks = f"not yet at the paper's size ({missing} to run)" if missing else ""
    return "; ".join(part for part in (links, lacks) if part) or "-"
