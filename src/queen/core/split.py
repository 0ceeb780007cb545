"""f = f^C(f^E(x)): any classifier as a feature extractor and a head, split by watching one forward pass."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from queen.core.inputs import tensors
from queen.errors import HeadError, RandomError, ShapeError
from queen.types import Inputs

TOLERANCE = 1e-4  # of the largest logit: head(u) is the same matmul again, so only float32 rounding may differ
SLACK = 100 * TOLERANCE  # by which a GPU that adds in any order may miss what it said before, in halves
ROUNDING = 1e-3  # by which probabilities may miss their sum of 1: halves do


def run_model(model: nn.Module, x: Inputs) -> Tensor:
    """The model's logits (n, K); it may return a tensor, a tuple, a dict or an object with `logits` (Hugging Face)."""
    output: Any = model(**x) if isinstance(x, Mapping) else model(x)
    if isinstance(output, Mapping):
        output = output.get("logits", output)
    output = getattr(output, "logits", output)
    if isinstance(output, tuple | list) and output:
        output = output[0]
    if not isinstance(output, Tensor) or output.ndim != 2:
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise HeadError(
            f"expected logits of shape (n, classes) from the model, got {got}: return a tensor of them, or 'logits' in "
            "a dict; with one output z for two classes, return [-z / 2, z / 2]"
        )
    return output


def id_bounds(model: nn.Module) -> tuple[int | None, int | None] | None:
    """The size of a model's vocabulary and the length of its longest text, None where the model does not say; None
    instead of both if whole numbers are no token ids to it."""
    if getattr(model, "takes_rows", False):
        return None
    getter = getattr(model, "get_input_embeddings", None)
    table = getter() if callable(getter) else next((m for m in model.modules() if isinstance(m, nn.Embedding)), None)
    vocabulary = getattr(table, "num_embeddings", None)
    longest = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    return vocabulary, longest if isinstance(longest, int) and longest > 0 else None


class Split:
    """A classifier and its head: one forward pass gives features u (n, D) and logits (n, K).

    `softmax`: the model returns the softmax of its head's logits, or its logarithm, so the logits are the head's.
    """

    def __init__(self, model: nn.Module, head_name: str, *, softmax: bool = False) -> None:
        modules = dict(model.named_modules())
        if head_name not in modules:
            near = ", ".join(name for name in list(modules)[-6:] if name)
            raise HeadError(f"the model has no layer '{head_name}'; its last layers are: {near}")
        self.model = model.eval()
        self.head_name = head_name
        self.head = modules[head_name]
        self.softmax = softmax

    @property
    def linear(self) -> nn.Linear | None:
        """The head if it is one linear layer, which allows the closed forms; else None."""
        plain = isinstance(self.head, nn.Linear) and type(self.head).forward is nn.Linear.forward
        return self.head if plain else None

    def head_of(self, features: Tensor) -> Tensor:
        """f^C alone, in float32 whatever the model computes in."""
        parameter = next(self.head.parameters(), features)
        logits: Tensor = self.head(features.to(parameter.dtype))
        return logits.float()

    def __call__(self, x: Inputs) -> tuple[Tensor, Tensor]:
        """(u, logits) of one batch, in one pass."""
        if self.model.training:  # its owner trained it further; answers must not depend on dropout
            self.model.eval()
        captured: list[Tensor] = []
        this_thread = threading.get_ident()

        # Other threads may run the same model meanwhile, and may call this hook before torch has noted that it wants
        # keyword arguments too.
        def capture(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
            if threading.get_ident() == this_thread:
                captured.append(args[0] if args else next(iter((kwargs or {}).values())))

        handle = self.head.register_forward_pre_hook(capture, with_kwargs=True)
        try:
            logits = run_model(self.model, x)
        finally:
            handle.remove()
        if len(captured) != 1 or captured[0].ndim != 2:
            shapes = ", ".join(str(tuple(one.shape)) for one in captured)
            raise HeadError(
                f"layer '{self.head_name}' must run once a batch on (n, features); it ran {len(captured)} times"
                + (f", on {shapes}" if shapes else "")
            )
        return captured[0], self.head(captured[0]) if self.softmax else logits


def find_split(model: nn.Module, sample: Inputs, head: str | None = None) -> Split:
    """Split `model` at the named layer, or at the last Linear it runs, and check that head(u) equals the logits."""
    try:
        model.eval()
    except NotImplementedError as error:  # of torch.export
        raise HeadError(
            f"expected a module with layers, got a {type(model).__name__} that was exported: give the module that it "
            "was made of, or a function of arrays that runs it, queen.models.as_module(function, classes=...)"
        ) from error
    with torch.inference_mode():
        try:
            first = run_model(model, sample)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            shapes = {name: tuple(t.shape) for name, t in tensors(sample).items()}
            why = " ".join(str(error).split())[:200]
            raise ShapeError(f"the model cannot run on data of shape {shapes}: {why}") from error
        if not first.isfinite().all():
            raise HeadError("expected finite logits from the model, got NaN or infinity for the first rows of the data")
        split = Split(model, head or _last_linear(model, sample))
        features, answers = split(sample)
        if not is_same(run_model(model, sample), first, SLACK):
            raise RandomError(
                "expected the same answer to the same query, got different ones: turn off what is random or remembers, "
                "for example dropout that ignores model.eval(); who asks twice learns more, and a bundle could not "
                "recognise the model"
            )
        again = split.head(features)
        if is_same(again, answers):
            return split
        if is_softmax_of(again, answers):
            return Split(model, split.head_name, softmax=True)
        if on_simplex(answers) or on_simplex(answers.exp()):
            raise HeadError(
                f"the model returns probabilities, which are not the softmax of what layer '{split.head_name}' gives: "
                "return logits, or guard it by its probabilities alone, queen.protect(queen.models.as_module(model, "
                "gives='probabilities', classes=...), ...)"
            )
        if is_sigmoid(answers):
            raise HeadError(
                "expected logits from the model, got numbers from 0 to 1 that do not add up to 1: return what comes "
                "before the sigmoid; a model of several labels an image is no classifier to the guard"
            )
        raise HeadError(
            f"layer '{split.head_name}' is not the model's head: what it gives, {tuple(again.shape)}, is not what "
            "the model returns. Name the layer whose output the model returns, for example head='classifier', or guard "
            "the model by its logits alone, queen.protect(queen.models.as_module(model, gives='logits', classes=...), "
            "...)"
        )


def is_same(these: Tensor, those: Tensor, tolerance: float = TOLERANCE) -> bool:
    """Whether these are the same logits, up to rounding."""
    if these.shape != those.shape:
        return False
    return bool((these - those).abs().max() <= tolerance * those.abs().max().clamp(min=1.0))


def is_softmax_of(logits: Tensor, answers: Tensor) -> bool:
    """Whether a model answers with the softmax of these logits, or with its logarithm."""
    if logits.shape != answers.shape:
        return False
    wanted = logits.float().softmax(1)
    return is_same(wanted, answers.float()) or (bool((answers <= 0).all()) and is_same(wanted, answers.float().exp()))


def on_simplex(rows: Tensor, slack: float = ROUNDING) -> bool:
    """Whether every row (n, K) is a probability distribution, but for the rounding of its sum."""
    numbers = rows.double()
    return bool((numbers >= 0).all() and ((numbers.sum(1) - 1).abs() <= slack).all())


def is_sigmoid(answers: Tensor) -> bool:
    """Whether these look like one probability for each class, instead of a distribution over classes."""
    return bool(answers.min() >= 0 and answers.max() <= 1) and not on_simplex(answers)


def _last_linear(model: nn.Module, sample: Inputs) -> str:
    """The name of the Linear layer that runs last in a forward pass."""
    order: list[str] = []
    handles = [
        module.register_forward_pre_hook(lambda _, args, name=name: order.append(name))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        run_model(model, sample)
    finally:
        for handle in handles:
            handle.remove()
    if not order:
        raise HeadError(
            "the model runs no Linear layer: name the layer that maps features to logits with head='...', or guard it "
            "by its logits alone, queen.protect(queen.models.as_module(model, gives='logits', classes=...), ...)"
        )
    return order[-1]
