"""ONNX Runtime (extra `onnx`): the file behind a session, sessions of a file, and what they say of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from queen.errors import DtypeError, OptionError
from queen.extras import install
from queen.models.graph import embed_weights, has_weights_elsewhere

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
SILENT = 4  # whatever goes wrong is raised, and clients may provoke it


def import_runtime() -> Any:
    """ONNX Runtime; an error that says how to get it where it is not installed."""
    try:
        import onnxruntime  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise OptionError(f"ONNX models need ONNX Runtime: {install('onnx')}") from error
    return onnxruntime


def file_of(model: Any) -> tuple[bytes, Sequence[Any]]:
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


def open_session(file: bytes, providers: Sequence[Any]) -> Any:
    """A session that runs the file, with as many threads as torch has.

    All weights were taken inside when the file was read. One that names other files comes from a bundle that somebody
    changed, and would have any file of this machine read.
    """
    if has_weights_elsewhere(file):
        raise OptionError("expected an ONNX file with its weights inside, got one that takes them from other files")
    options = import_runtime().SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return _open(file, options, providers)


def usual_providers(device: torch.device) -> list[str]:
    """What runs a session on this device."""
    usual = ["CPUExecutionProvider"]
    with_gpu = device.type == "cuda" and "CUDAExecutionProvider" in import_runtime().get_available_providers()
    return ["CUDAExecutionProvider", *usual] if with_gpu else usual


def float_outputs(file: bytes) -> dict[str, Sequence[Any]]:
    """The outputs of floats and their shapes, as far as ONNX Runtime knows them."""
    outputs = _look(file).get_outputs()
    return {one.name: one.shape or [] for one in outputs if one.type in FLOATS}


def table_width(file: bytes) -> tuple[int | None, bool]:
    """How many numbers a row has, if the model takes rows, and whether these are surely those of a table: whole numbers
    may be token ids."""
    inputs = _look(file).get_inputs()
    shape = inputs[0].shape or []
    is_row = len(inputs) == 1 and len(shape) == 2 and isinstance(shape[1], int)
    return (shape[1] if is_row else None), inputs[0].type in FLOATS


def _look(file: bytes) -> Any:
    """A session to look at, which changes nothing."""
    runtime = import_runtime()
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return _open(file, options, usual_providers(torch.device("cpu")))


def _open(file: bytes, options: Any, providers: Sequence[Any]) -> Any:
    options.log_severity_level = SILENT
    try:
        return import_runtime().InferenceSession(file, options, providers=list(providers))
    except Exception as error:  # ONNX Runtime has errors of its own, without a common base
        why = " ".join(str(error).split())[:300]
        raise OptionError(f"expected an ONNX model, got a file that ONNX Runtime cannot open: {why}") from error
