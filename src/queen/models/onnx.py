"""ONNX models, run by ONNX Runtime (extra `onnx`): their head is read from the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from queen.errors import OptionError
from queen.models.graph import Ending, Graph, Head, add_outputs
from queen.models.outside import Gives, StoredModel, check_columns
from queen.models.sessions import (
    DTYPES,
    file_of,
    float_outputs,
    import_runtime,
    open_session,
    table_width,
    usual_providers,
)
from queen.recipe import Recipe
from queen.types import Inputs

BEST_OUTPUTS = ("logits", "probabilities")  # among several of the right shape


class OnnxModel(StoredModel):
    """An ONNX classifier: its features and logits where its last layer can be read, else logits or probabilities.

    Runs on the CPU, or on a GPU if the module is there and ONNX Runtime can use it. The session of a caller lends its
    `providers`.
    """

    library = "ONNX"

    def __init__(
        self,
        file: bytes | int,
        outputs: Sequence[str],
        classes: int,
        gives: Gives | None,
        *,
        features: int | None = None,
        columns: int = 0,
        providers: Sequence[Any] = (),
    ) -> None:
        """`outputs`: the names of the features, if they are told, and of the logits or probabilities."""
        super().__init__(file, classes, gives, features=features, columns=columns)
        self._outputs, self._providers = list(outputs), list(providers)

    @property
    def recipe(self) -> Recipe:
        """How a bundle builds this module again."""
        args = {
            "size": len(self.file),
            "outputs": self._outputs,
            "classes": self.head.out_features,
            "gives": self.gives,
            "features": self.head.in_features if self.gives == "features" else None,
            "columns": self.columns,
        }
        return Recipe("queen.models.onnx:empty", args)

    def open(self, file: bytes) -> Any:
        """A session of ONNX Runtime."""
        return open_session(file, self._providers or usual_providers(self.file.device))

    def run(self, x: Inputs) -> tuple[Tensor | None, Tensor]:
        """One pass, in parts where the file fixes the size of a batch."""
        inputs = self.engine.get_inputs()
        feeds = self._feeds(x, inputs)
        rows = len(next(iter(feeds.values())))
        fixed = inputs[0].shape[0] if inputs[0].shape else None
        size = fixed if isinstance(fixed, int) and fixed > 0 else rows
        parts = [self._run({name: t[i : i + size] for name, t in feeds.items()}, size) for i in range(0, rows, size)]
        *features, logits = (torch.cat(column)[:rows] for column in zip(*parts, strict=True))
        return (features[0] if features else None), logits

    def _run(self, feeds: dict[str, Tensor], size: int) -> list[Tensor]:
        """One call of the session; a batch that is too small for it is filled up with its last row."""
        rows = len(next(iter(feeds.values())))
        if rows < size:
            feeds = {name: torch.cat([t, t[-1:].expand(size - rows, *t.shape[1:])]) for name, t in feeds.items()}
        try:
            given = self.engine.run(self._outputs, {name: t.numpy() for name, t in feeds.items()})
        except Exception as error:  # ONNX Runtime has errors of its own, without a common base
            raise ValueError(f"ONNX Runtime: {' '.join(str(error).split())[:200]}") from error
        return [torch.from_numpy(array).to(self.head.weight) for array in given]

    def _feeds(self, x: Inputs, inputs: Sequence[Any]) -> dict[str, Tensor]:
        """The batch by the names and in the precision that the file wants."""
        names = [one.name for one in inputs]
        if isinstance(x, Tensor):
            if len(inputs) != 1:
                raise TypeError(f"the ONNX model takes named tensors {names}: give a dict of them")
            x = {names[0]: x}
        if set(x) != set(names):
            raise TypeError(f"the ONNX model takes named tensors {names}, got {sorted(x)}")
        return {one.name: _cast(x[one.name].cpu(), one) for one in inputs}


def _cast(t: Tensor, wanted: Any) -> Tensor:
    dtype = DTYPES.get(wanted.type)
    if dtype is None:
        raise TypeError(f"the ONNX model takes {wanted.type} as '{wanted.name}', which no tensor is")
    if t.is_floating_point() != dtype.is_floating_point:
        raise TypeError(f"the ONNX model takes '{wanted.name}' as {dtype}, got {t.dtype}")
    return t.to(dtype).contiguous()


def empty(
    size: int, outputs: Sequence[str], classes: int, gives: Gives, features: int | None, columns: int
) -> nn.Module:
    """The module of a bundle, before its weights, which are the ONNX file, are filled in."""
    import_runtime()
    return OnnxModel(size, outputs, classes, gives, features=features, columns=columns)


def read_onnx(
    model: Any,
    *,
    output: str | None = None,
    gives: Gives | None = None,
    classes: int | None = None,
    columns: int | None = None,
) -> OnnxModel:
    """The module of an ONNX model: a path, bytes, or a session that was opened with one of these.

    `output` names the one that holds logits or probabilities, where there are several. `gives` says what to make of it:
    "features" (an error if the last layer cannot be read), "logits", "probabilities"; None: the most that there is.
    """
    import_runtime()  # before anything is said of a file that nothing here can run
    file, providers = file_of(model)
    graph = Graph(file)
    if graph.zipped:  # rows of dictionaries are of no use, but what they are made of is
        known = float_outputs(file)
        file = add_outputs(file, [name for name in graph.zipped.values() if name not in known])
    shapes = float_outputs(file)
    name = _choose_output(shapes, graph.zipped.get(output, output) if output else None)
    width = (shapes[name] or [None])[-1]
    ending = graph.ending(name, single=width == 1)
    made = None
    if gives in (None, "features"):
        if ending.head is not None:
            made = _with_head(file, ending.logits, ending.head, providers)
        if made is None and gives == "features":
            raise OptionError(
                f"cannot read the layer that makes '{name}' of features: it must be a Gemm, or a MatMul and an Add, of "
                "(n, D), with constant weights in float32 or float64; without gives the guard takes the answers alone"
            )
    keys = graph.keys.get(name, ())
    if made is None:
        found = width if isinstance(width, int) else len(keys)
        count = 2 if width == 1 else classes or found
        if not count:
            raise OptionError(
                f"the ONNX file does not say how many classes '{name}' has: queen.models.as_module(path, classes=...)"
            )
        made = _of_answers(file, name, ending, gives, count, check_columns(columns, *table_width(file)), providers)
    if len(keys) == made.head.out_features and list(keys) != list(range(len(keys))):
        made.own_labels, made.class_names = np.array(keys), tuple(map(str, keys))
    return made


def _of_answers(
    file: bytes, name: str, ending: Ending, gives: Gives | None, classes: int, columns: int, providers: Sequence[Any]
) -> OnnxModel:
    """The module of a file of which only the answers are taken."""
    if ending.squashed and gives != "probabilities":
        file = add_outputs(file, [ending.logits] if ending.logits not in float_outputs(file) else [])
        name, gives = ending.logits, "logits"
    return OnnxModel(file, [name], classes, gives, columns=columns, providers=providers)


def _with_head(file: bytes, logits: str, head: Head, providers: Sequence[Any]) -> OnnxModel | None:
    """The module of a file whose last layer could be read; None if that layer does not take features (n, D)."""
    known = float_outputs(file)
    names = [head.features, logits]
    longer = add_outputs(file, [name for name in names if name not in known])
    if len(float_outputs(longer)[head.features]) != 2:
        return None
    weight, bias = torch.tensor(head.weight), torch.tensor(head.bias)
    if len(weight) == 1:  # of two classes
        weight, bias = torch.cat([-weight / 2, weight / 2]), torch.cat([-bias / 2, bias / 2])
    made = OnnxModel(longer, names, len(weight), "features", features=weight.shape[1], providers=providers)
    with torch.no_grad():
        made.head.weight.copy_(weight)
        made.head.bias.copy_(bias)
    return made


def _choose_output(shapes: Mapping[str, Sequence[Any]], output: str | None) -> str:
    """The output (n, K) of floats that holds the answers: the only one, or the one of a usual name."""
    if output is not None:
        if output not in shapes:
            raise OptionError(f"the ONNX model has no output '{output}' of floats; its outputs are {', '.join(shapes)}")
        return output
    names = [name for name, shape in shapes.items() if len(shape) in (0, 2)]  # 0: the file does not say
    best = [name for name in BEST_OUTPUTS if name in names] if len(names) > 1 else names
    if not best:
        found = ", ".join(f"'{name}' ({', '.join(map(str, shape))})" for name, shape in shapes.items())
        raise OptionError(
            f"expected an ONNX classifier with one output (n, classes) of floats, got {found or 'none of floats'}: "
            "where one of several is meant, name it, queen.models.as_module(path, output='...')"
        )
    return best[0]
