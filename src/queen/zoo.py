"""Networks that ship with the package, by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from queen.errors import OptionError
from queen.recipe import Recipe


class SmallCNN(nn.Module):
    """Two convolutions and a hidden layer: learns digits in seconds on a CPU.

    Without batch norm, because its statistics would tie a thief's copy to the images it was trained on. `grid` is the
    side of the maps that the hidden layer sees: a quarter of the images' side leaves nothing to pool or repeat.
    """

    def __init__(self, classes: int, channels: int = 1, width: int = 8, hidden: int = 64, grid: int = 7) -> None:
        super().__init__()
        self.grid = grid
        blocks: list[nn.Module] = []
        for a, b in ((channels, width), (width, 2 * width)):
            # Pooling before ReLU gives the same as after it, and is cheaper.
            blocks += [nn.Conv2d(a, b, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
        self.blocks = nn.Sequential(*blocks)
        self.hidden = nn.Linear(2 * width * grid**2, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, height, width) -> (n, classes)."""
        maps = self.blocks(x)
        if maps.shape[2:] != (self.grid, self.grid):  # else the pooling would change nothing, but take its time
            maps = F.adaptive_avg_pool2d(maps, self.grid)
        logits: Tensor = self.head(F.relu(self.hidden(maps.flatten(1))))
        return logits


class MLP(nn.Module):
    """Hidden layers on flattened inputs of any shape; without one, a linear classifier."""

    def __init__(self, inputs: int, classes: int, hidden: Sequence[int] = (128,)) -> None:
        super().__init__()
        widths = (inputs, *hidden)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """(n, ...) with `inputs` numbers a row -> (n, classes)."""
        x = x.flatten(1)
        for layer in self.layers:
            x = F.relu(layer(x))
        logits: Tensor = self.head(x)
        return logits


class VGG(nn.Module):
    """VGG with batch norm for 32x32 images: convolutions, then ONE linear layer on 512 features."""

    def __init__(self, plan: str, classes: int, channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for layer in plan.split():
            if layer == "M":
                layers.append(nn.MaxPool2d(2, ceil_mode=True))
                continue
            layers += [nn.Conv2d(channels, int(layer), 3, padding=1), nn.BatchNorm2d(int(layer)), nn.ReLU()]
            channels = int(layer)
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=(2 / (9 * module.out_channels)) ** 0.5)
                nn.init.zeros_(module.bias) if module.bias is not None else None
        nn.init.normal_(self.classifier.weight, std=0.01)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, height, width) -> (n, classes)."""
        logits: Tensor = self.classifier(self.features(x))
        return logits


class AlexNet(nn.Module):
    """AlexNet for small images: five convolutions, then ONE linear layer on 256 features."""

    def __init__(self, classes: int, channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for outputs, kernel, stride, pooled in (
            (64, 11, 4, True), (192, 5, 1, True), (384, 3, 1, False), (256, 3, 1, False), (256, 3, 1, True),
        ):  # fmt: skip
            layers += [nn.Conv2d(channels, outputs, kernel, stride, kernel // 2), nn.ReLU()]
            layers += [nn.MaxPool2d(2, ceil_mode=True)] if pooled else []
            channels = outputs
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, height, width), at least 8x8 -> (n, classes)."""
        logits: Tensor = self.classifier(self.features(x))
        return logits


class Residual(nn.Module):
    """One residual block: two 3x3 convolutions, or 1x1-3x3-1x1 with `expansion` 4."""

    def __init__(self, inputs: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        out = width * expansion
        kernels = ((inputs, width, 3, stride), (width, out, 3, 1))
        if expansion > 1:
            kernels = ((inputs, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1))  # type: ignore[assignment]
        layers: list[nn.Module] = []
        for a, b, size, by in kernels:
            layers += [nn.Conv2d(a, b, size, by, size // 2, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        self.body = nn.Sequential(*layers[:-1])
        self.skip: nn.Module = nn.Identity()
        if stride > 1 or inputs != out:
            self.skip = nn.Sequential(nn.Conv2d(inputs, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape, or halve it with stride 2."""
        return F.relu(self.body(x) + self.skip(x))


# Of a ResNet, by the side of its images: kernel and stride of the first convolution, and whether pooling follows.
STEMS: Mapping[int, tuple[int, int, bool]] = {32: (3, 1, False), 64: (3, 2, False), 224: (7, 2, True)}


class ResNet(nn.Module):
    """ResNet with a stem for images of this size; features are the global average, the head one linear layer.

    That for 224 pixels is torchvision's, so that its weights fit (`queen.bench.weights`).
    """

    def __init__(
        self, depths: tuple[int, ...], expansion: int, classes: int, channels: int = 3, image_size: int = 32
    ) -> None:
        super().__init__()
        if image_size not in STEMS:
            raise OptionError(f"image_size must be one of {', '.join(map(str, STEMS))}, got {image_size!r}")
        self.depths = depths
        kernel, stride, pooled = STEMS[image_size]
        layers: list[nn.Module] = [
            nn.Conv2d(channels, 64, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            *([nn.MaxPool2d(3, 2, 1)] if pooled else []),
        ]
        inputs = 64
        for stage, depth in enumerate(depths):
            for block in range(depth):
                width = 64 << stage
                layers.append(Residual(inputs, width, 2 if stage and not block else 1, expansion))
                inputs = width * expansion
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, height, width) -> (n, classes)."""
        logits: Tensor = self.classifier(self.features(x))
        return logits


class Normalised(nn.Module):
    """A network behind (x - mean) / std, one number per channel, so that images everywhere are in 0..1."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, height, width) in 0..1 -> (n, classes)."""
        logits: Tensor = self.network((x - self.mean) / self.std)
        return logits


PLAN_SMALL = "32 M 64 M 128 M 256 M"  # learns CIFAR in minutes on a CPU
PLAN_A = "64 M 128 M 256 256 M 512 512 M 512 512 M"
PLAN_D = "64 64 M 128 128 M 256 256 256 M 512 512 512 M 512 512 512 M"

NETWORKS: Mapping[str, Callable[..., nn.Module]] = {
    "small_cnn": SmallCNN,
    "small_vgg": lambda **args: VGG(PLAN_SMALL, **args),
    "vgg11_bn": lambda **args: VGG(PLAN_A, **args),
    "vgg16_bn": lambda **args: VGG(PLAN_D, **args),
    "resnet18": lambda **args: ResNet((2, 2, 2, 2), 1, **args),
    "resnet50": lambda **args: ResNet((3, 4, 6, 3), 4, **args),
    "alexnet": AlexNet,
}
SIZED = ("resnet18", "resnet50")  # those that take `image_size`


def build(
    name: str, *, mean: Sequence[float] | None = None, std: Sequence[float] | None = None, **args: Any
) -> nn.Module:
    """A network of this file by name, remembering how it was built (`.recipe`).

    With `mean` and `std`, one number per channel, the network normalises images in 0..1 itself.
    """
    if name not in NETWORKS:
        raise OptionError(f"no network '{name}'; known: {', '.join(NETWORKS)}")
    network = NETWORKS[name](**args)
    if mean is not None or std is not None:
        normal = {"mean": _numbers("mean", mean, network), "std": _numbers("std", std, network)}
        network, args = Normalised(network, **normal), {**args, **normal}
    network.recipe = Recipe("queen.zoo:build", {"name": name, **args})  # type: ignore[assignment]
    return network


def arguments_for(name: str, shape: Sequence[int]) -> dict[str, Any]:
    """What `build` needs to make this network for images of a shape (..., channels, height, width).

    A ResNet has a stem for large images where there is one for their size; its usual one, for 32 pixels, would take
    many times as long on them.
    """
    channels, height, width = shape[-3:]
    if name in SIZED and height == width and width in STEMS and width > min(STEMS):
        return {"channels": channels, "image_size": width}
    return {"channels": channels}


def _numbers(name: str, values: Sequence[float] | None, network: nn.Module) -> list[float]:
    """One finite number per channel, those of std above 0."""
    channels = next(layer.in_channels for layer in network.modules() if isinstance(layer, nn.Conv2d))
    numbers = list(values) if isinstance(values, Sequence) and not isinstance(values, str) else []
    usable = all(isinstance(v, int | float) and math.isfinite(v) and (v > 0 or name == "mean") for v in numbers)
    if len(numbers) != channels or not usable:
        positive = " above 0" if name == "std" else ""
        raise OptionError(f"{name} must have one number{positive} for each of {channels} channels, got {values!r}")
    return [float(value) for value in numbers]


@contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    """Layers take their first weights from the global random state: give them a seeded state for a while."""
    seed = int(torch.randint(2**62, (1,), generator=generator))
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):  # manual_seed seeds the GPUs too
        torch.manual_seed(seed)
        yield
