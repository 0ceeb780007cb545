from __future__ import annotations

import numpy as np

import queen
from tests.support.commands import FACTORY, as_json, invoke, mistake, run
from tests.support.onnx_models import make_onnx


def args(*options: object, factory=FACTORY, data="train.npz") -> list[object]:
    return ["check", factory, "--weights", "mlp.safetensors", "--data", data, *options]


def test_a_good_model_passes(here):
    result = run(*args())
    assert "with dropout" in result.stdout  # it comes in training mode
    assert "STOPS" not in result.stdout
    assert [finding["what"] for finding in as_json(*args())["findings"]] == ["mode"]


def test_what_stops_is_the_exit_code(here, tmp_path):
    arrays = np.load("train.npz")
    np.savez(tmp_path / "shifted.npz", x=arrays["x"], y=arrays["y"] + 1)
    result = invoke(*args(data=tmp_path / "shifted.npz"))
    assert result.exit_code == 1
    assert result.stdout.startswith("STOPS  labels: expected numbers from 0 to 9, got 1 to 10. Subtract 1")


def test_an_onnx_file_is_checked_and_protected(here, tmp_path):
    (tmp_path / "m.onnx").write_bytes(make_onnx())
    assert "nothing is wrong" in run("check", tmp_path / "m.onnx", "--data", "train.npz").stdout
    run("protect", tmp_path / "m.onnx", "--data", "train.npz", "--out", tmp_path / "b", "--policy", "paper")
    assert queen.load(tmp_path / "b").bundle.split.model.gives == "features"
    assert "--weights" in mistake("check", tmp_path / "m.onnx", "--weights", "mlp.safetensors", "--data", "train.npz")
    assert "--weights" in mistake("check", FACTORY, "--data", "train.npz")
