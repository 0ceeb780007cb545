from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import queen.demo
from queen import load
from queen.cli import app
from queen.demo.table import notes
from tests.support.paths import ROOT


@pytest.fixture
def command(demo, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(queen.demo, "run_demo", lambda seed, adaptive: demo)
    return lambda *args: CliRunner().invoke(app, [str(a) for a in args])


def test_the_demo_prints_its_table_and_leaves_everything_for_the_next_step(command, demo, tmp_path):
    shown = command("demo")
    assert shown.exit_code == 0
    text = " ".join(shown.stdout.split())
    assert all(name in text for name in ("undefended", "paper", "strict", "sentinel", "foreign", "own kind"))
    assert all(note in text for note in notes(demo.results))
    folder = tmp_path / "build" / "demo"
    assert json.loads((folder / "demo.json").read_text()) == demo.results
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert load(folder / "bundle").bundle.identity == demo.guard.bundle.identity
    with Image.open(folder / "digit.png") as digit:
        expected = demo.images.test[0][0, 0].numpy() * 255
        assert np.array_equal(np.asarray(digit), expected.round())
    following = shown.stdout.split("next", 1)[1].split()
    assert following[0] == "queen"
    asked = command(*following[1:], "--json")
    assert asked.exit_code == 0
    assert len(json.loads(asked.stdout)["probabilities"][0]) == 10


def test_no_cell_of_the_table_is_cut_at_80_columns(command):
    assert "…" not in command("demo").stdout


def test_the_adaptive_table_is_printed_and_fits_too(command, demo):
    adaptive = json.loads((ROOT / "results" / "demo" / "demo.json").read_text())["adaptive"]
    demo.results["adaptive"] = adaptive
    try:
        shown = command("demo", "--adaptive").stdout
    finally:
        del demo.results["adaptive"]
    assert "…" not in shown
    assert all(name in shown for name in adaptive)


def test_the_demo_as_json_prints_nothing_else(command, demo, tmp_path):
    shown = command("demo", "--json", "--out", tmp_path / "elsewhere")
    assert json.loads(shown.stdout) == demo.results
    assert (tmp_path / "elsewhere" / "report.html").exists()
    assert not (tmp_path / "build").exists()
