from __future__ import annotations

import numpy as np

import queen
from tests.support.commands import FACTORY, as_json, invoke, mistake, run
from tests.support.onnx_models import make_onnx, zip_rows


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


def test_labels_may_be_the_names_that_a_file_has_for_its_classes(here, tmp_path):
    names, arrays = [f"digit {k}" for k in range(10)], np.load("train.npz")
    (tmp_path / "m.onnx").write_bytes(zip_rows(make_onnx("hidden softmax"), names))
    np.savez(tmp_path / "named.npz", x=arrays["x"], y=np.array(names)[arrays["y"]])
    command = ("protect", tmp_path / "m.onnx", "--data", tmp_path / "named.npz", "--out", tmp_path / "b")
    assert "on at least 100% of" in mistake(*command, "--policy", "paper", "--min-agreement", "1")
    run(*command, "--policy", "paper")
    assert queen.load(tmp_path / "b").bundle.class_names == tuple(names)
    (tmp_path / "plain.onnx").write_bytes(make_onnx())
    assert "unique" in mistake("protect", tmp_path / "plain.onnx", *command[2:])
