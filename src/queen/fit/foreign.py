"""Foreign images that tell how soon a thief would be accused: the operator's own, or made from calibration images."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from queen.bundle.bundle import Bundle
from queen.bundle.calibration import MADE, Foreign
from queen.core import inputs
from queen.errors import EmptyBatchError, ModelError
from queen.fit.data import Images, image_batches
from queen.fit.features import extract_features
from queen.progress import Progress
from queen.sentinel.scores import all_scores
from queen.sentinel.sketch import first_seen
from queen.types import Inputs

MOST = 1000  # images that are measured and stored
GRID = 4  # patches along each side of an image
OWN, NOISE = "your foreign images", "noise"
CODED, MIXED = "noise beside codes that there are", "mixed rows"


class Sample:
    """A view that shows every batch as it is, and remembers up to `size` rows of all batches, chosen at random.

    Token ids of another length than the first batch's are not remembered.
    """

    def __init__(self, size: int, generator: torch.Generator) -> None:
        self._x: Inputs | None = None
        self._size, self._generator = size, generator
        self._keys = torch.empty(0)

    def __call__(self, x: Inputs) -> Inputs:
        """Look at a batch."""
        if self._x is not None and _row_shapes(x) != _row_shapes(self._x):
            return x
        joined = x if self._x is None else inputs.join([self._x, x])
        keys = torch.cat([self._keys, torch.rand(inputs.count(x), generator=self._generator)])
        rows = keys.argsort()[: self._size]
        self._keys = keys[rows]
        self._x = _rows(joined, rows)
        return x

    def drawn(self) -> Inputs:
        """The rows that are remembered."""
        if self._x is None:
            raise EmptyBatchError("the data holds no images")
        return self._x


def _row_shapes(x: Inputs) -> dict[str, torch.Size]:
    return {name: t.shape[1:] for name, t in inputs.tensors(x).items()}


def own_foreign(bundle: Bundle, data: Images, tolerance: float, show: Progress, generator: torch.Generator) -> Foreign:
    """The operator's own foreign images, up to a thousand; nearer than the tolerance they are the same picture."""
    sample = Sample(MOST, generator)
    for x, _ in image_batches(data):
        sample(inputs.check(x, bundle.probe.x, bundle.input_range))
    return _measure(bundle, sample.drawn(), OWN, tolerance, show)


def made_foreign(bundle: Bundle, like: Inputs, tolerance: float, show: Progress, generator: torch.Generator) -> Foreign:
    """A thousand foreign inputs like these: for images noise and shuffled patches, for all else noise.

    A model may take no noise, as where a number must be the code of a category. Then columns of whole numbers hold such
    as there are, or if that does not do either, all columns.
    """
    rows = torch.arange(MOST) % inputs.count(like)
    if isinstance(like, Tensor) and inputs.is_image(like):
        half = _rows(like, rows[: MOST // 2])
        made = inputs.join([noise(half, generator), shuffle_patches(half, generator)])
        return _measure(bundle, made, MADE, tolerance, show)
    plain = noise(_rows(like, rows), generator)
    try:
        return _measure(bundle, plain, NOISE, tolerance, show)
    except ModelError:
        mixed = mix_rows(like, MOST, generator)
    try:
        return _measure(bundle, _with_codes(plain, mixed), CODED, tolerance, show)
    except ModelError:
        return _measure(bundle, mixed, MIXED, tolerance, show)


def _with_codes(plain: Inputs, mixed: Inputs) -> Inputs:
    """The first, with those columns of the second that hold whole numbers alone."""
    theirs = inputs.tensors(mixed)
    joined = {name: torch.where((theirs[name] == theirs[name].round()).all(0), theirs[name], t)
              for name, t in inputs.tensors(plain).items()}  # fmt: skip
    return joined if isinstance(plain, Mapping) else joined["x"]


def _rows(x: Inputs, rows: Tensor) -> Inputs:
    return inputs.take(x, rows.to(next(iter(inputs.tensors(x).values())).device))


def noise(x: Inputs, generator: torch.Generator) -> Inputs:
    """Random numbers in the range of the images, or of every column of other inputs; random token ids; masks stay."""

    def draw(t: Tensor) -> Tensor:
        if not t.is_floating_point():
            high = int(t.max())
            return t if high <= 1 else torch.randint(0, high + 1, t.shape, generator=generator).to(t)
        low, high_ = (t.amin(), t.amax()) if inputs.is_image(t) else (t.amin(0), t.amax(0))
        return low + (high_ - low) * torch.rand(t.shape, generator=generator).to(t)

    return {name: draw(t) for name, t in x.items()} if isinstance(x, Mapping) else draw(x)


def mix_rows(x: Inputs, rows: int, generator: torch.Generator) -> Inputs:
    """Rows whose numbers come from other rows each, so that every number is one that there is in its place."""

    def draw(t: Tensor) -> Tensor:
        flat = t.cpu().flatten(1)
        chosen = torch.randint(len(flat), (rows, flat.shape[1]), generator=generator)
        return flat.gather(0, chosen).view(rows, *t.shape[1:]).to(t.device)

    return {name: draw(t) for name, t in x.items()} if isinstance(x, Mapping) else draw(x)


def shuffle_patches(x: Inputs, generator: torch.Generator) -> Inputs:
    """Images (n, C, H, W) cut into 4 x 4 patches, which change places; what is left over at the border stays."""
    if not isinstance(x, Tensor):
        return x
    n, channels, height, width = x.shape
    down, across = min(GRID, height), min(GRID, width)
    high, wide = height // down, width // across
    cut = x[:, :, : down * high, : across * wide].reshape(n, channels, down, high, across, wide)
    patches = cut.permute(0, 2, 4, 1, 3, 5).reshape(n, down * across, channels, high, wide)
    order = torch.rand(n, down * across, generator=generator).argsort(1).to(x.device)
    moved = patches[torch.arange(n, device=x.device)[:, None], order].reshape(n, down, across, channels, high, wide)
    shuffled = x.clone()
    shuffled[:, :, : down * high, : across * wide] = moved.permute(0, 3, 1, 4, 2, 5).reshape(
        n, channels, down * high, across * wide
    )
    return shuffled


def _measure(bundle: Bundle, x: Inputs, name: str, tolerance: float, show: Progress) -> Foreign:
    """Predicted classes and scores of foreign inputs, and which of them are the same picture to the guard."""
    whole = x if isinstance(x, Tensor | dict) else dict(x)
    [outputs] = extract_features(bundle.split, whole, bundle.probe.x, show, "foreign images", labelled=False)
    with torch.inference_mode():
        labels = outputs.logits.argmax(1)
        points = bundle.geometry.relative(bundle.mapping(outputs.features), labels)
        scores = all_scores(outputs.features, outputs.logits, points, bundle.reference)
        pictures = first_seen(outputs.features, labels, tolerance)
    has_repeats = bool((pictures != torch.arange(len(pictures), device=pictures.device)).any())
    return Foreign(
        name=name, labels=labels.clone(), scores=scores.clone(), pictures=pictures.clone() if has_repeats else None
    )
