from __future__ import annotations

import json

import numpy as np
from typer.testing import CliRunner

import queen
from queen import cli
from queen.options import Limits
from tests.support.commands import FACTORY, protect_args, run
from tests.support.guards import held_out, images, train_set, trained


def test_protect_writes_the_bundle_the_library_would_fit(here, tmp_path):
    shown = run(*protect_args("--out", tmp_path / "b", "--radius", ".1", "--threshold", ".05", "--policy", "strict"))
    x, y = train_set()
    limits = Limits(radius=0.1, threshold=0.05)
    expected = queen.protect(trained("mlp"), (x[:300], y[:300]), limits=limits, policy="strict")
    guard = queen.load(tmp_path / "b")
    assert guard.bundle.identity == expected.bundle.identity
    assert guard.bundle.limits == limits
    assert (guard.bundle.policy, guard.bundle.observe) == ("strict", False)
    assert guard.bundle.recipe == queen.zoo.Recipe(FACTORY)
    assert "identity " + guard.bundle.identity[:16] in " ".join(shown.stdout.split())
    assert "training images are nearest" in shown.stderr


def test_protect_a_network_of_the_zoo_with_calibration_and_json(here, tmp_path):
    np.savez(tmp_path / "cal.npz", x=images(held_out()[0])[:200].numpy(), y=held_out()[1][:200].numpy())
    args = protect_args(
        "--arg", "classes=10", "--arg", "width=4", "--calibration", tmp_path / "cal.npz", "--out", tmp_path / "b",
        "--observe", "--seed", 1, "--head", "head",
        factory="small_cnn", weights="cnn.safetensors", data="train_images.npz",
    )  # fmt: skip
    result = CliRunner().invoke(cli.app, [str(a) for a in args] + ["--json"])
    found = json.loads(result.stdout)
    guard = queen.load(tmp_path / "b")
    assert result.stderr == ""
    assert found["bundle"] == str(tmp_path / "b")
    assert found["identity"] == guard.bundle.identity
    assert found["report"] == guard.report
    assert found["report"]["calibration_images"] == 200
    assert guard.bundle.recipe == queen.zoo.Recipe("queen.zoo:build", {"name": "small_cnn", "classes": 10, "width": 4})
    assert guard.bundle.observe
