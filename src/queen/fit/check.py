"""`queen.check`: everything that is wrong with a model and its data, and what to do, before anything is fitted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from queen.core import inputs
from queen.core.split import Split, find_split, is_same, is_sigmoid, is_softmax_of, run_model
from queen.errors import HeadError, QueenError, RandomError
from queen.fit.check_data import NOT_FINITE, SIGMOID, check_answers, check_calibration, check_pixels
from queen.fit.data import Data, Images
from queen.fit.entrance import numbered, take_sample
from queen.fit.findings import Finding, Findings
from queen.models import OutsideModel, as_module
from queen.types import Inputs

CHANNELS = (1, 3)


def check(model: Any, data: Data, *, calibration: Images | None = None, head: str | None = None) -> Findings:
    """Everything that is wrong with a model and its training data, and what to do; print it. Nothing is fitted.

    Takes what `queen.protect` takes. An empty list means that nothing was found; `stops` of a finding, and of the list,
    says whether `queen.protect` would refuse.
    """
    try:
        module = as_module(model)
    except QueenError as error:
        return Findings([Finding.of("model", error)])
    with as_it_was(module), torch.inference_mode():
        found = list(_findings(model, module, data, calibration, head))
    return Findings(sorted(found, key=lambda finding: not finding.stops))


@contextmanager
def as_it_was(module: nn.Module) -> Iterator[None]:
    """Whatever is done inside, layers are in training or not as before."""
    modes = [(layer, layer.training) for layer in module.modules()]
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode


def _findings(
    model: Any, module: nn.Module, data: Data, calibration: Images | None, head: str | None
) -> Iterator[Finding]:
    of_module = list(_check_module(model, module))
    yield from of_module
    if any(finding.stops for finding in of_module):
        return
    try:
        data = numbered(data, module)
        sample = take_sample(data, module)
    except QueenError as error:
        yield Finding.of("data", error)
        return
    yield from check_pixels(data)
    try:
        split = find_split(module, sample, head)
    except HeadError as error:
        yield from _no_head(module, sample, head, error)
        return
    except RandomError as error:
        yield Finding.of("answers", error)
        return
    except QueenError as error:
        yield _cannot_run(sample, error)
        return
    yield from _check_split(split, sample)
    yield from _check_repeats(module, sample)
    yield from check_answers(split, data, sample)
    if calibration is not None:
        yield from check_calibration(split, data, numbered(calibration, module), sample)


def _check_module(model: Any, module: nn.Module) -> Iterator[Finding]:
    if isinstance(model, nn.Module) and module is not model and not isinstance(module, OutsideModel):
        yield Finding("torch.compile", "a plain module", "a compiled one", "nothing to do: the guard runs the original")
    devices = sorted({str(t.device) for t in chain(module.parameters(), module.buffers())})
    if len(devices) > 1 or devices == ["meta"]:
        fix = "move all of it to one device, model.to(device); on 'meta' it has no weights at all"
        yield Finding("device", "a model on one device", " and ".join(devices), fix, stops=True)
        return
    layers = list(module.modules())
    norms = [layer for layer in layers if isinstance(layer, _BatchNorm)]
    drops = [layer for layer in layers if isinstance(layer, _DropoutNd)]
    if module.training and (norms or drops):
        got = " and ".join([*(["BatchNorm"] if norms else []), *(["dropout"] if drops else [])])
        fix = "nothing to do: the guard calls model.eval(), and answers must not depend on chance or on other queries"
        yield Finding("mode", "a model in eval mode", f"one in training, with {got}", fix)
    if any(layer.num_batches_tracked == 0 for layer in norms if layer.num_batches_tracked is not None):
        fix = "train it, or load its weights, before you protect it"
        yield Finding("BatchNorm", "statistics of the training data", "layers that have seen none", fix)


def _no_head(module: nn.Module, sample: Inputs, head: str | None, error: HeadError) -> Iterator[Finding]:
    """Why there is no head, and which other layers might be one."""
    try:
        answers = run_model(module, sample)
    except QueenError as said:  # no logits (n, K) at all
        yield Finding.of("model", said)
        return
    except Exception:  # whatever a stranger's forward pass may raise
        yield Finding.of("model", error)
        return
    names = [name for name, made in _linear_outputs(module, sample).items() if _explains(made, answers)]
    if not answers.isfinite().all():
        yield Finding("answers", "finite logits", "NaN or infinity", NOT_FINITE, stops=True)
    elif names:
        fix = "name it: " + " or ".join(f"head='{name}'" for name in names)
        wanted = "the last Linear layer" if head is None else f"layer '{head}'"
        yield Finding("head", f"{wanted} to make the logits", "another one", fix, stops=True)
    elif is_sigmoid(answers):
        yield Finding("answers", "logits", "numbers from 0 to 1 that do not add up to 1", SIGMOID, stops=True)
    else:
        yield Finding.of("head", error)
    yield from _check_repeats(module, sample)


def _explains(made: Tensor, answers: Tensor) -> bool:
    return is_same(made, answers) or is_softmax_of(made, answers)


def _linear_outputs(module: nn.Module, sample: Inputs) -> dict[str, Tensor]:
    """What every Linear layer that runs makes of the sample."""
    made: dict[str, Tensor] = {}
    handles = [
        layer.register_forward_hook(lambda _, __, output, name=name: made.__setitem__(name, output))
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    try:
        run_model(module, sample)
    finally:
        for handle in handles:
            handle.remove()
    return made


def _cannot_run(sample: Inputs, error: QueenError) -> Finding:
    """Why the model cannot run on the data, with a guess at what they lack."""
    finding = Finding.of("data", error)
    if not isinstance(sample, Tensor):
        return finding
    fix = "give data as the model was trained on"
    if sample.ndim == 4 and sample.shape[1] not in CHANNELS and sample.shape[3] in CHANNELS:
        fix = "images must be (n, C, H, W): x.transpose(0, 3, 1, 2) for arrays, x.permute(0, 3, 1, 2) for tensors"
    elif sample.dtype == torch.uint8:
        fix = "bytes need a model that takes them: give it floats, x / 255 in float32, as it was trained"
    return Finding(finding.what, "data that the model can run on", finding.got, fix, stops=True)


def _check_split(split: Split, sample: Inputs) -> Iterator[Finding]:
    if isinstance(split.model, OutsideModel):
        if split.model.gives == "probabilities":
            fix = "return logits if you can: the guard sees less without (docs/models.md)"
            yield Finding("answers", "features and logits", "probabilities alone", fix)
        return
    if split.softmax:
        fix = f"nothing to do: the guard takes the logits of layer '{split.head_name}'"
        yield Finding("answers", "logits", "probabilities, or their logarithms", fix)
    answers = run_model(split.model, sample)
    others = [
        name
        for name, made in _linear_outputs(split.model, sample).items()
        if name != split.head_name and made.shape == answers.shape
    ]
    if others:
        fix = f"nothing to do if '{split.head_name}' is right: its logits are what the model returns"
        yield Finding("head", "one layer that ends in the classes", f"also {', '.join(others)}", fix)


def _check_repeats(module: nn.Module, sample: Inputs) -> Iterator[Finding]:
    """Whether a query gets the same answer alone as in the company of others."""
    first = run_model(module, sample)
    try:
        alone = run_model(module, inputs.take(sample, slice(0, 1)))
        is_alone = not first.isfinite().all() or is_same(first[:1], alone)
    except HeadError:
        fix = "most queries come alone: keep the dimension of the batch, which squeeze() without a number takes away"
        yield Finding("answers", "logits of shape (1, classes) for a single query", "another shape", fix)
        return
    except (RuntimeError, ValueError):  # BatchNorm refuses a batch of one
        is_alone = False
    if not is_alone:
        fix = (
            "give BatchNorm its running statistics (track_running_stats=True), a quantised model fixed ranges (static "
            "quantisation): answers depend on others' queries"
        )
        yield Finding("answers", "an answer that depends on its query alone", "one that depends on its batch", fix)
