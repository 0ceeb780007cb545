from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import queen.demo.price
from queen import load
from queen.cli import app
from queen.demo import Demo
from queen.demo.run import CACHE, CELLS
from queen.demo.table import adaptive_tables, notes
from tests.support.prices import curve_of

PRICE = curve_of([(30, "held-out", False, 0.1, 0.15, 0.2)]).as_json() | {
    "seeds": [0],
    "statements": ["one client can buy it"],
}


def plain(demo: Demo) -> dict:
    """The results of a run without adaptive attackers, with a price."""
    return {key: value for key, value in demo.results.items() if key != "adaptive"} | {"price": PRICE}


@pytest.fixture
def command(demo, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def fake_run(folder: Path, *, seed: int, adaptive: bool) -> Demo:
        for part in (CELLS, CACHE):
            (folder / part).mkdir(parents=True)
        results = {key: value for key, value in plain(demo).items() if key != "price"}
        return demo if adaptive else replace(demo, results=results)

    def fake_price(run: Demo, folder: Path, *, seeds: int) -> Demo:
        return replace(run, results=run.results | {"price": PRICE | {"seeds": list(range(seeds))}})

    monkeypatch.setattr(queen.demo, "run_demo", fake_run)
    monkeypatch.setattr(queen.demo.price, "price_demo", fake_price)
    return lambda *args: CliRunner().invoke(app, [str(a) for a in args])


def test_the_demo_prints_its_table_and_leaves_everything_for_the_next_step(command, demo, tmp_path):
    shown = command("demo")
    assert shown.exit_code == 0
    assert "…" not in shown.stdout  # the table fits into 80 columns
    text = " ".join(shown.stdout.split())
    assert all(name in text for name in ("undefended", "paper", "strict", "sentinel", "foreign", "own kind"))
    assert all(note in text for note in notes(demo.results))
    assert adaptive_tables(demo.results)[0].title not in text
    folder = tmp_path / "build" / "demo"
    assert json.loads((folder / "demo.json").read_text()) == plain(demo)
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert load(folder / "bundle").bundle.identity == demo.guard.bundle.identity
    assert not any((folder / part).exists() for part in (CELLS, CACHE))  # a finished demo begins anew next time
    with Image.open(folder / "digit.png") as digit:
        expected = demo.protectee.test[0][0, 0].numpy() * 255
        assert np.array_equal(np.asarray(digit), expected.round())
    [following] = re.findall(r"^next +queen (.*)$", shown.stdout, re.MULTILINE)
    asked = command(*following.split(), "--json")
    assert asked.exit_code == 0
    assert len(json.loads(asked.stdout)["probabilities"][0]) == 10


def test_the_adaptive_tables_are_printed_and_fit_too(command, demo):
    shown = command("demo", "--adaptive").stdout
    assert "…" not in shown
    for table in adaptive_tables(demo.results):
        assert table.title in shown
        assert all(row[0] in shown for row in table.rows)


def test_the_demo_as_json_prints_nothing_else(command, demo, tmp_path):
    shown = command("demo", "--json", "--out", tmp_path / "elsewhere")
    assert json.loads(shown.stdout) == plain(demo)
    assert (tmp_path / "elsewhere" / "report.html").exists()
    assert not (tmp_path / "build").exists()


def test_the_price_is_shown_last_and_in_the_report(command, tmp_path):
    shown = command("demo").stdout
    assert shown.index("What a copy costs") > shown.index("sentinel")
    assert "one client can buy it" in shown
    assert "one client can buy it" in (tmp_path / "build" / "demo" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "seeds"), [((), [0]), pytest.param(("--price-seeds", 3), [0, 1, 2], marks=pytest.mark.long)]
)
def test_one_student_a_point_is_enough_for_a_first_look(command, arguments, seeds, tmp_path):
    assert command("demo", *arguments).exit_code == 0
    assert json.loads((tmp_path / "build" / "demo" / "demo.json").read_text())["price"]["seeds"] == seeds


@pytest.mark.parametrize("arguments", [("--no-price",), ()])
def test_the_price_can_be_left_out_and_skipped(command, arguments, monkeypatch, tmp_path):
    def interrupt(run: Demo, folder: Path, *, seeds: int) -> Demo:
        raise KeyboardInterrupt

    monkeypatch.setattr(queen.demo.price, "price_demo", interrupt)
    shown = command("demo", *arguments)
    assert shown.exit_code == 0
    assert "What a copy costs" not in shown.stdout
    assert ("skipped" in shown.stderr) == (not arguments)
    assert "price" not in json.loads((tmp_path / "build" / "demo" / "demo.json").read_text())
    assert load(tmp_path / "build" / "demo" / "bundle").report["price"] is None
