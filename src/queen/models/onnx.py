"""ONNX models, run by ONNX Runtime (extra `onnx`): their head is read from the file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from queen.errors import DtypeError, OptionError
from queen.models.graph import Graph, Head, add_outputs, embed_weights
from queen.models.outside import Gives, StoredModel, check_columns
from queen.recipe import Recipe
from queen.types import Inputs

DTYPES: Mapping[str, torch.dtype] = {
    "tensor(float)": torch.float32,
    "tensor(double)": torch.float64,
    "tensor(float16)": torch.float16,
    "tensor(int64)": torch.int64,
    "tensor(int32)": torch.int32,
    "tensor(uint8)": torch.uint8,
    "tensor(int8)": torch.int8,
    "tensor(bool)": torch.bool,
}
FLOATS = ("tensor(float)", "tensor(double)", "tensor(float16)")
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
        """A session of ONNX Runtime, with as many threads as torch has."""
        runtime = import_runtime()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        return _session(runtime, file, options, self._providers or _providers(runtime, self.file.device))

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
    runtime = import_runtime()
    file, providers = _file_of(model)
    shapes = _shapes(runtime, file)
    name = _choose_output(shapes, output)
    ending = Graph(file).ending(name)
    if gives in (None, "features"):
        if ending.head is not None and (made := _with_head(runtime, file, ending.logits, ending.head, providers)):
            return made
        if gives == "features":
            raise OptionError(
                f"cannot read the layer that makes '{name}' of features: it must be a Gemm, or a MatMul and an Add, of "
                "(n, D), with constant weights in float32 or float64; without gives the guard takes the answers alone"
            )
    count = classes or (shapes[name][-1] if shapes[name] else None)
    if not isinstance(count, int):
        raise OptionError(
            f"the ONNX file does not say how many classes '{name}' has: queen.models.as_module(path, classes=...)"
        )
    columns = check_columns(columns, _width(runtime, file))
    if ending.softmax and gives != "probabilities":
        more = [] if ending.logits in shapes else [ending.logits]
        return OnnxModel(
            add_outputs(file, more), [ending.logits], count, "logits", columns=columns, providers=providers
        )
    return OnnxModel(
        file, [name], count, gives, columns=columns, providers=providers
    )  # `gives` None: the first batch tells


def _with_head(runtime: Any, file: bytes, logits: str, head: Head, providers: Sequence[Any]) -> OnnxModel | None:
    """The module of a file whose last layer could be read; None if that layer does not take features (n, D)."""
    known = _shapes(runtime, file)
    names = [head.features, logits]
    longer = add_outputs(file, [name for name in names if name not in known])
    if len(_shapes(runtime, longer)[head.features]) != 2:
        return None
    made = OnnxModel(longer, names, len(head.weight), "features", features=head.weight.shape[1], providers=providers)
    with torch.no_grad():
        made.head.weight.copy_(torch.tensor(head.weight))
        made.head.bias.copy_(torch.tensor(head.bias))
    return made


def _choose_output(shapes: Mapping[str, Sequence[Any]], output: str | None) -> str:
    """The output (n, K) of floats that holds the answers: the only one, or the one of a usual name."""
    if output is not None:
        if output not in shapes:
            raise OptionError(f"the ONNX model has no output '{output}'; its outputs are {', '.join(shapes)}")
        return output
    names = [name for name, shape in shapes.items() if len(shape) in (0, 2)]  # 0: the file does not say
    best = [name for name in BEST_OUTPUTS if name in names] if len(names) > 1 else names
    if not best:
        raise OptionError(
            f"expected an ONNX classifier with one output (n, classes) of floats, got outputs {dict(shapes)}: name it, "
            "queen.models.as_module(path, output='...')"
        )
    return best[0]


def _shapes(runtime: Any, file: bytes) -> dict[str, Sequence[Any]]:
    """The outputs of floats and their shapes, as far as ONNX Runtime knows them."""
    outputs = _plain_session(runtime, file)
    return {one.name: one.shape or [] for one in outputs.get_outputs() if one.type in FLOATS}


def _width(runtime: Any, file: bytes) -> int | None:
    """How many columns the model takes, if it takes tables of floats."""
    inputs = _plain_session(runtime, file).get_inputs()
    shape = inputs[0].shape or []
    is_table = len(inputs) == 1 and inputs[0].type in FLOATS and len(shape) == 2
    return shape[1] if is_table and isinstance(shape[1], int) else None


def _plain_session(runtime: Any, file: bytes) -> Any:
    """A session to look at, which changes nothing."""
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return _session(runtime, file, options, ["CPUExecutionProvider"])


def _file_of(model: Any) -> tuple[bytes, Sequence[Any]]:
    """The bytes of a file with all its weights, and the providers of a session."""
    providers: Sequence[Any] = ()
    source = model
    if not isinstance(model, bytes | str | os.PathLike):
        source = getattr(model, "_model_bytes", None) or getattr(model, "_model_path", None)
        if not source:
            raise DtypeError("this session does not say which ONNX file it runs: give the path of the file instead")
        options = model.get_provider_options()
        providers = [(name, options.get(name, {})) for name in model.get_providers()]
    if isinstance(source, bytes):
        return embed_weights(source, Path()), providers
    path = Path(source)
    try:
        return embed_weights(path.read_bytes(), path.parent), providers
    except OSError as error:
        raise OptionError(f"cannot read the ONNX model '{path}': {error.strerror}") from error


def _session(runtime: Any, file: bytes, options: Any, providers: Sequence[Any]) -> Any:
    try:
        return runtime.InferenceSession(file, options, providers=list(providers))
    except Exception as error:  # ONNX Runtime has errors of its own, without a common base
        raise OptionError(f"ONNX Runtime cannot open the model: {' '.join(str(error).split())[:300]}") from error


def _providers(runtime: Any, device: torch.device) -> list[str]:
    usual = ["CPUExecutionProvider"]
    with_gpu = device.type == "cuda" and "CUDAExecutionProvider" in runtime.get_available_providers()
    return ["CUDAExecutionProvider", *usual] if with_gpu else usual


def import_runtime() -> Any:
    """ONNX Runtime; an error that says how to get it where it is not installed."""
    try:
        import onnxruntime  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise OptionError("ONNX models need ONNX Runtime: pip install 'queen-guard[onnx]'") from error
    return onnxruntime
