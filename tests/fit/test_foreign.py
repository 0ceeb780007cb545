"""Foreign images: the operator's own, or noise and shuffled patches."""

from __future__ import annotations

import pytest
import torch

from queen import calibrate
from queen.errors import DtypeError, EmptyBatchError, RangeError, ShapeError
from queen.fit.foreign import MOST, Sample, noise, shuffle_patches
from queen.guard import Guard
from queen.sentinel.scores import all_scores
from tests.support.guards import fitted, held_out, images


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_sample_is_drawn_evenly_from_all_batches():
    counts = torch.zeros(40)
    for seed in range(400):
        sample = Sample(10, generator(seed))
        for batch in torch.arange(40.0)[:, None].split(7):
            assert torch.equal(sample(batch), batch)
        counts[sample.drawn().flatten().long()] += 1
    assert counts.sum() == 4000
    assert (counts - 100).abs().max() < 5 * (100 * 0.75) ** 0.5


def test_a_sample_of_few_holds_all_and_one_of_none_is_an_error():
    sample = Sample(10, generator())
    sample({"ids": torch.arange(3)[:, None], "mask": torch.ones(3, 1)})
    sample({"ids": torch.arange(8).view(4, 2), "mask": torch.ones(4, 2)})  # of another length: left out
    assert sorted(sample.drawn()["ids"].flatten().tolist()) == [0, 1, 2]
    with pytest.raises(EmptyBatchError):
        Sample(10, generator()).drawn()


@pytest.mark.parametrize("size", [(8, 8), (28, 28), (9, 11), (3, 2)])
def test_shuffled_patches_are_the_same_pixels_elsewhere(size):
    x = torch.rand(20, 3, *size, generator=generator(1))
    moved = shuffle_patches(x, generator())
    assert not torch.equal(moved, x)
    assert torch.equal(moved.flatten(2).sort(2).values, x.flatten(2).sort(2).values)
    channels = moved.permute(0, 2, 3, 1).reshape(20, -1, 3)
    for before, after in zip(x.permute(0, 2, 3, 1).reshape(20, -1, 3), channels, strict=True):
        assert {tuple(p) for p in after.tolist()} == {tuple(p) for p in before.tolist()}  # a pixel keeps its colour


def test_patches_move_as_a_whole():
    x = torch.arange(64.0).view(1, 1, 8, 8)
    moved = shuffle_patches(x, generator())
    cut = lambda t: {tuple(p.flatten().tolist()) for row in t[0, 0].split(2) for p in row.split(2, 1)}  # noqa: E731
    assert cut(moved) == cut(x)


def test_noise_keeps_to_the_range_and_leaves_masks_alone():
    x = torch.stack([torch.linspace(-1, 3, 50), torch.full((50,), 7.0)], 1)
    drawn = noise(x, generator())
    assert drawn[:, 0].min() >= -1
    assert drawn[:, 0].max() <= 3
    assert (drawn[:, 1] == 7).all()
    tokens = {"ids": torch.randint(0, 90, (50, 6)), "mask": torch.ones(50, 6, dtype=torch.int64)}
    made = noise(tokens, generator())
    assert torch.equal(made["mask"], tokens["mask"])
    assert 0 <= made["ids"].min() <= made["ids"].max() <= tokens["ids"].max()
    assert not torch.equal(made["ids"], tokens["ids"])
    pixels = torch.rand(10, 3, 4, 4)
    pixels[:, 0] *= 0.1
    assert noise(pixels, generator())[:, 0].max() > 0.5  # of an image one range for all


@pytest.mark.parametrize(("kind", "name"), [("head", "noise"), ("network", "noise and shuffled patches")])
def test_without_foreign_images_some_are_made_and_named(kind, name):
    x = held_out()[0] if kind == "head" else images(held_out()[0])
    found = calibrate(fitted(kind), x, progress=False).bundle.calibration.foreign
    assert found.name == name
    assert len(found.labels) == len(found.scores) == MOST


def test_ones_own_foreign_images_are_measured_as_the_guard_measures():
    bundle, x = fitted("network").bundle, images(1 - held_out()[0])
    found = calibrate(fitted("network"), images(held_out()[0]), foreign=(x, held_out()[1]), progress=False).bundle
    foreign = found.calibration.foreign
    with torch.inference_mode():
        u, logits = bundle.split(x)
        points = bundle.geometry.relative(bundle.mapping(u), logits.argmax(1))
        expected = all_scores(u, logits, points, bundle.reference)
    assert foreign.name == "your foreign images"
    assert torch.allclose(foreign.scores.sort(0).values, expected.sort(0).values, atol=1e-4)
    assert torch.equal(foreign.labels.bincount(minlength=10), logits.argmax(1).bincount(minlength=10))
    many = calibrate(fitted("network"), images(held_out()[0]), foreign=x.repeat(3, 1, 1, 1), progress=False)
    assert len(many.bundle.calibration.foreign.labels) == MOST


@pytest.mark.parametrize(
    ("broken", "error"),
    [(lambda x: x[:0], EmptyBatchError), (lambda x: 255 * x, RangeError), (lambda x: x.flatten(1), ShapeError),
     (lambda x: "images", DtypeError)],
    ids=["none", "another range", "another shape", "text"],
)  # fmt: skip
def test_foreign_images_must_fit_the_model(broken, error):
    x = images(held_out()[0])
    with pytest.raises(error):
        calibrate(fitted("network"), x, foreign=broken(x), progress=False)


def watching(data) -> Guard:
    """A guard with the sentinel, calibrated on held-out images."""
    accusing = calibrate(fitted("network"), data, progress=False).with_options(policy="sentinel")
    return calibrate(accusing, data, progress=False)


def takes_for_its_own(monkeypatch, *makers: str) -> None:
    """Make a guard blind to these kinds of foreign images: they are images of its own."""
    for maker in makers:
        monkeypatch.setattr(f"queen.fit.foreign.{maker}", lambda x, generator: x)


@pytest.mark.parametrize(
    ("maker", "kind"), [("noise", "noise"), ("shuffle_patches", "shuffled patches")], ids=["noise", "patches"]
)
def test_a_guard_that_is_blind_to_one_kind_of_foreign_images_says_to_which(monkeypatch, maker, kind):
    x = images(held_out()[0])
    plain = watching(x)
    assert plain.bundle.blind_spot() is None
    takes_for_its_own(monkeypatch, maker)
    blind = watching(x)
    assert f"those who send {kind} " in blind.bundle.blind_spot()
    assert f"calibration: {blind.bundle.blind_spot()}" in blind.report["warnings"]
    assert blind.bundle.weakness() is None  # the other kind is caught
    assert blind.with_options(policy="paper").bundle.blind_spot() is None


def test_a_guard_that_is_blind_to_all_kinds_has_no_blind_spot_but_is_weak(monkeypatch):
    takes_for_its_own(monkeypatch, "noise", "shuffle_patches")
    blind = watching(images(held_out()[0]))
    assert blind.bundle.blind_spot() is None
    assert "0% of such thieves" in blind.bundle.weakness()


def test_kinds_are_split_where_they_meet():
    found = calibrate(fitted("network"), images(held_out()[0]), progress=False).bundle.calibration.foreign
    first, second = found.split()
    assert (first.name, second.name) == ("noise", "shuffled patches")
    assert torch.equal(torch.cat([first.scores, second.scores]), found.scores)
    assert torch.equal(torch.cat([first.labels, second.labels]), found.labels)
    [whole] = first.split()
    assert torch.equal(whole.scores, first.scores)
