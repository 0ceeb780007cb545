"""Weights from a file: those that fit are the network's, whoever named them; others are refused in words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from queen import zoo
from queen.bench import weights as weights_module
from queen.bench.weights import load_weights, sha256_of, travelling_network
from queen.cache import Cache
from queen.errors import OptionError


def blank(number: int, name: str = "small_cnn", **args: object) -> nn.Module:
    with zoo.seeded(torch.Generator().manual_seed(number)):
        return zoo.build(name, classes=4, **args).eval()


@pytest.mark.parametrize("form", ["safetensors", "pt"])
def test_a_network_answers_like_the_one_whose_weights_were_saved(tmp_path, form):
    theirs, path = blank(1), tmp_path / f"weights.{form}"
    (save_file if form == "safetensors" else torch.save)(theirs.state_dict(), path)
    ours = load_weights(blank(2).train(), path)
    x = torch.rand(3, 1, 28, 28)
    assert torch.equal(ours(x), theirs(x))
    assert not ours.training


@pytest.mark.parametrize("wrapped", [True, False], ids=["as it is", "without its normalisation"])
def test_a_normalising_network_takes_its_own_weights_or_those_it_wraps(tmp_path, wrapped):
    normal = {"mean": [0.4], "std": [0.2]}
    theirs = blank(1, **normal)
    save_file((theirs if wrapped else theirs.network).state_dict(), tmp_path / "w.safetensors")
    ours = load_weights(blank(2, **normal), tmp_path / "w.safetensors")
    x = torch.rand(3, 1, 28, 28)
    assert torch.equal(ours(x), theirs(x))


class PublishedBlock(nn.Module):
    """A block as torchvision names it."""

    def __init__(self, inputs: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        out = width * expansion
        shapes = [(inputs, width, 3, stride), (width, out, 3, 1)]
        if expansion > 1:
            shapes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1)]
        self.layers = len(shapes)
        for i, (a, b, kernel, by) in enumerate(shapes, 1):
            setattr(self, f"conv{i}", nn.Conv2d(a, b, kernel, by, kernel // 2, bias=False))
            setattr(self, f"bn{i}", nn.BatchNorm2d(b))
        self.downsample = None
        if stride > 1 or inputs != out:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for i in range(1, self.layers + 1):
            out = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(out))
            out = F.relu(out) if i < self.layers else out
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class PublishedResNet(nn.Module):
    """A ResNet as torchvision builds and names it, with random statistics, as trained ones have."""

    def __init__(self, depths: tuple[int, ...], expansion: int, classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.maxpool, inputs = nn.MaxPool2d(3, 2, 1), 64
        for stage, depth in enumerate(depths):
            blocks = []
            for block in range(depth):
                blocks.append(PublishedBlock(inputs, 64 << stage, 2 if stage and not block else 1, expansion))
                inputs = (64 << stage) * expansion
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.running_mean, -0.1, 0.1)
                nn.init.uniform_(module.running_var, 0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        for stage in range(1, 5):
            x = getattr(self, f"layer{stage}")(x)
        return self.fc(x.mean((2, 3)))


@pytest.mark.parametrize(
    ("name", "depths", "expansion"), [("resnet18", (2, 2, 2, 2), 1), ("resnet50", (3, 4, 6, 3), 4)]
)
def test_weights_of_torchvision_fit_a_resnet_for_224_pixels(tmp_path, name, depths, expansion):
    torch.manual_seed(0)
    theirs = PublishedResNet(depths, expansion, classes=4).eval()
    save_file(theirs.state_dict(), tmp_path / "w.safetensors")
    ours = load_weights(blank(2, name, image_size=224), tmp_path / "w.safetensors")
    x = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.allclose(ours(x), theirs(x), rtol=1e-4, atol=1e-4)
    with pytest.raises(OptionError, match=r"'features.0.weight' has shape \(64, 3, 7, 7\), expected \(64, 3, 3, 3\)"):
        load_weights(blank(2, name), tmp_path / "w.safetensors")


def write(path: Path, content: object) -> Path:
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    return path


WRONG = {
    "not there": ("nowhere.safetensors", None, "cannot read the weights '.*nowhere.safetensors': No such file"),
    "no safetensors": ("a.safetensors", b"abc", "holds no weights: expected"),
    "no state_dict": ("a.pt", b"abc", "holds no weights: expected"),
    "code": ("a.pt", blank(1), "holds no weights: expected"),
    "more than a state_dict": ("a.pt", {"epoch": 3}, r"must hold tensors by name, got dict: save model.state_dict\(\)"),
    "other names": ("a.pt", {"head.weight": torch.zeros(4, 64), "foot": torch.zeros(1)}, "no 'blocks.0.weight'"),
    "other shapes": (
        "a.pt",
        blank(1, width=4).state_dict(),
        r"do not fit the network: 'blocks.0.weight' has shape \(4, 1, 3, 3\), expected \(8, 1, 3, 3\).* and 2 more",
    ),
    "one too many": ("a.pt", {**blank(1).state_dict(), "foot": torch.zeros(1)}, "network: 'foot' is unknown. Expected"),
}


@pytest.mark.parametrize(("name", "content", "message"), WRONG.values(), ids=WRONG)
def test_weights_that_do_not_fit_are_refused_in_words(tmp_path, name, content, message):
    path = tmp_path / name if content is None else write(tmp_path / name, content)
    with pytest.raises(OptionError, match=message):
        load_weights(blank(0), path)


# Weights that travel


def must_not(*_: object) -> nn.Module:
    raise AssertionError("taught again")


def stored_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(weights_module, "PART", 20_000)


@pytest.mark.usefixtures("small_parts")
def test_a_network_travels_in_small_parts_as_float16_and_is_what_was_stored(tmp_path):
    taught = blank(1)
    first = travelling_network(Cache(tmp_path / "a"), "victim", blank(2), lambda _: taught)
    parts = stored_in(tmp_path / "a")
    assert [path.name for path in parts] == [
        f"victim-{sha256_of(first)[:16]}.safetensors.{number}-of-{len(parts)}" for number in range(1, len(parts) + 1)
    ]
    sizes = [path.stat().st_size for path in parts]
    assert len(parts) > 3
    assert max(sizes) <= 20_000
    assert 0 <= sum(sizes) - 2 * sum(value.numel() for value in taught.state_dict().values()) < 2000
    for key, value in first.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, taught.state_dict()[key].half().float())
    (tmp_path / "b").mkdir()
    for path in parts:
        (tmp_path / "b" / path.name).write_bytes(path.read_bytes())
    second = travelling_network(Cache(tmp_path / "b"), "victim", blank(3), must_not)
    assert sha256_of(second) == sha256_of(first) != sha256_of(taught)
    joined = load_weights(blank(4), tmp_path / "b" / parts[0].name.rpartition(".")[0])  # as a spec may name it
    assert sha256_of(joined) == sha256_of(first)


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in stored_in(folder)}


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("lost", [{1}, {2}, {1, 3}])
def test_a_network_with_a_missing_part_is_an_error_and_stays_as_it_is(tmp_path, lost):
    cache = Cache(tmp_path)
    travelling_network(cache, "victim", blank(2), lambda _: blank(1))
    parts = stored_in(tmp_path)
    for number in lost:
        parts[number - 1].unlink()
    rest = bytes_in(tmp_path)
    message = f"expected {len(parts)} parts of '.*', got {', '.join(rest)}: copy the rest, or remove them to train anew"
    with pytest.raises(OptionError, match=message):
        travelling_network(cache, "victim", blank(2), must_not)
    assert bytes_in(tmp_path) == rest


@pytest.mark.parametrize("part", [20_000, 10**9], ids=["in parts", "in one file"])
@pytest.mark.parametrize("harm", ["empty", "cut", "of another network"])
def test_a_network_with_a_damaged_part_is_an_error_and_stays_as_it_is(tmp_path, monkeypatch, part, harm):
    monkeypatch.setattr(weights_module, "PART", part)
    cache, other = Cache(tmp_path / "a"), Cache(tmp_path / "b")
    travelling_network(cache, "victim", blank(2), lambda _: blank(1))
    travelling_network(other, "victim", blank(2), lambda _: blank(5))
    harmed = stored_in(cache.folder)[-1]
    content = {
        "empty": b"",
        "cut": harmed.read_bytes()[:-9],
        "of another network": stored_in(other.folder)[-1].read_bytes(),
    }
    harmed.write_bytes(content[harm])
    rest = bytes_in(cache.folder)
    with pytest.raises(OptionError, match=r"got damaged ones in .*: copy them again, or remove them to train anew"):
        travelling_network(cache, "victim", blank(2), must_not)
    assert bytes_in(cache.folder) == rest


@pytest.mark.usefixtures("small_parts")
def test_parts_may_be_joined_to_one_file(tmp_path):
    first = travelling_network(Cache(tmp_path), "victim", blank(2), lambda _: blank(1))
    parts = stored_in(tmp_path)
    parts[0].with_suffix("").write_bytes(b"".join(path.read_bytes() for path in parts))
    for path in parts:
        path.unlink()
    assert sha256_of(travelling_network(Cache(tmp_path), "victim", blank(2), must_not)) == sha256_of(first)


def test_two_networks_under_one_name_are_refused(tmp_path):
    for number, folder in enumerate(("a", "b")):
        travelling_network(Cache(tmp_path / folder), "victim", blank(2), lambda _, number=number: blank(number))
    for path in stored_in(tmp_path / "a"):
        (tmp_path / "b" / path.name).write_bytes(path.read_bytes())
    with pytest.raises(OptionError, match=r"expected one network 'victim' in .*, got 2: victim-"):
        travelling_network(Cache(tmp_path / "b"), "victim", blank(2), must_not)


def test_numbers_too_large_for_float16_stay_what_they_are(tmp_path):
    taught = blank(1)
    taught.head.weight.data[0, 0] = 1e6
    stored = travelling_network(Cache(tmp_path), "victim", blank(2), lambda _: taught)
    assert torch.equal(stored.head.weight, taught.head.weight)


def test_the_sha_is_of_names_and_numbers_and_not_of_how_they_lie_in_memory():
    network = blank(1, "vgg11_bn")
    before = sha256_of(network)
    assert sha256_of(network.to(memory_format=torch.channels_last)) == before
    network.features[0].bias.data[0] += 1e-6
    assert sha256_of(network) != before
