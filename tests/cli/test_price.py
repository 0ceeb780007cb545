"""`queen price`, and what `certify`, `inspect` and `protect` say of it."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

import queen
from queen.bundle.store import load_bundle, save_bundle
from queen.fit import price as fit_price
from queen.fit.price import UNFINISHED
from queen.price.stored import stored_curve
from tests.support.commands import as_json, mistake, protect_args, run
from tests.support.prices import curve_of

CURVE = curve_of([(30, "held-out", False, 0.1, 0.15, 0.2), (300, "held-out", False, 0.6, 0.7, 0.8)])
NAMES = {"answers", "images", "agreement", "accuracy", "label_only", "low", "high"}


@pytest.fixture
def priced(here, tmp_path):
    """A bundle with the price above."""
    bundle = load_bundle(here / "watched")
    save_bundle(replace(bundle, report=bundle.report | {"price": CURVE.as_json()}), tmp_path / "priced")
    return tmp_path / "priced"


@pytest.fixture
def students(monkeypatch):
    """The curve above in place of trained students; how it was asked for is returned."""
    asked: list[dict] = []

    def measure(pools, jury, **options):
        asked.append(options | {"pools": [pool.name for pool in pools]})
        return CURVE

    monkeypatch.setattr(fit_price, "measure_curve", measure)
    return asked


def test_the_stored_price_is_printed(priced):
    shown = run("price", priced)
    text = " ".join(shown.stdout.split())
    assert text.startswith("At your budget (")
    assert "one client can buy a copy of" in text
    assert "10 accounts buy" in text
    assert "reference students, not proved" in text
    assert "…" not in shown.stdout  # the table fits into 80 columns


def test_the_json_has_the_names_that_scripts_rely_on(priced):
    printed = as_json("price", priced)
    assert all(set(row) >= NAMES for row in printed["curve"])
    assert printed["curve"] == CURVE.as_json()["curve"]
    assert [copy["accounts"] for copy in printed["buys"]] == [1, 10, 100]
    assert printed["honest_answers"] == printed["buys"][0]["answers"]


def test_images_measure_it_anew_and_it_is_stored(here, tmp_path, students):
    shutil.copytree(here / "watched", tmp_path / "bundle")
    before = load_bundle(tmp_path / "bundle")
    data = ("--data", here / "train.npz", "--calibration", here / "held_out.npz")
    short = ("--jobs", "1", "--steps", "41", "--epochs", "2")
    assert as_json("price", tmp_path / "bundle", *data, "--no-save", *short)["curve"]
    assert stored_curve(load_bundle(tmp_path / "bundle")) is None
    assert as_json("price", tmp_path / "bundle", *data, "--foreign", here / "only_x.npz")["curve"]
    after = load_bundle(tmp_path / "bundle")
    assert stored_curve(after) == CURVE
    assert after.identity == before.identity
    assert not (tmp_path / "bundle" / UNFINISHED).exists()
    assert students[0]["pools"] == ["held-out", "training"]
    assert (students[0]["pricing"].jobs, students[0]["pricing"].steps, students[0]["pricing"].epochs) == (1, 41, 2)
    assert students[0]["pricing"].folder is None
    assert students[1]["pools"] == ["held-out", "training", "foreign"]
    assert students[1]["pricing"].folder == tmp_path / "bundle" / UNFINISHED


def test_without_a_price_or_images_the_error_names_both(here):
    for arguments in (
        (),
        ("--data", here / "train.npz"),
        ("--calibration", here / "held_out.npz"),
        ("--foreign", here / "only_x.npz"),
    ):
        text = mistake("price", here / "watched", *arguments)
        assert "--data FILE" in text
        assert "--calibration FILE" in text
        assert ("got neither" in text) == (not arguments)


def test_certify_and_inspect_say_what_the_budget_buys(priced, here):
    sentence = as_json("price", priced)["statements"][0]
    assert sentence in as_json("certify", priced)["price"]
    assert sentence in " ".join(run("certify", priced).stdout.split())
    assert sentence in " ".join(run("inspect", priced).stdout.split())
    assert as_json("certify", here / "watched")["price"] == []


def test_protect_prices_and_limits_copies(here, tmp_path, students):
    base = [*protect_args("--out", tmp_path / "out"), "--calibration", "held_out.npz", "--weak"]
    report = as_json(*base, "--max-copy", ".5")["report"]
    assert report["max_copy"] == 0.5
    assert report["honest_answers"] == CURVE.answers_for(0.5)
    assert queen.load(tmp_path / "out").report == report
    assert as_json(*base, "--price")["report"]["price"] == CURVE.as_json()
    assert "not both" in mistake(*base, "--max-copy", ".5", "--extra-answers", "3")
    assert "too easy" in mistake(*base, "--max-copy", ".2")
