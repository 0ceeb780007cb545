"""docs/serving.md holds every setting and what the committed results say, and nothing older."""

from __future__ import annotations

import json

import pytest

from queen.errors import OptionError
from queen.serve import page
from queen.serve.settings import Settings
from tests.support.paths import ROOT

NAMES = ("settings", "speed", "capacity", "timing")
EMPTY = "one\n" + "".join(f"<!-- {name} -->\nstale\n<!-- /{name} -->\ntwo\n" for name in NAMES)


def result(**changes):
    """A run of two rounds with one server."""
    figures = {
        "errors": 0,
        "requests_per_second": 5432.1,
        "latency_ms": {"p50": 4.0, "p95": 7.5, "p99": 9.04},
        "server_cpu_ms": 0.178,
        "server": {"commit_ms": {"p50": 0.25, "p95": 1.25}, "batch_rows": 16.04},
    }
    rounds = [{**figures, "requests_per_second": speed} for speed in (5000, 6000)]
    cell = {"model": "digits", "server": "sentinel memory", "connections": 32, "median": figures, "rounds": rounds}
    machine = {"cores": 2, "processor": "Some CPU", "python": "3.11.7", "versions": {"torch": "2.13.0"}}
    targets = [
        {"what": "fast", "target": ">= 5000", "got": 5432.1, "holds": True},
        {"what": "even", "target": "<= 3", "got": 3.5, "holds": False},
        {"what": "sync", "target": ">= 0.5", "got": None, "holds": None},
    ]
    return {"quick": False, "machine": machine, "cells": [cell], "targets": targets, **changes}


def test_the_page_is_up_to_date(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = page.PAGE.read_text()
    assert page.filled(text, page.RESULTS) == text, "run: python -m queen.serve.page"


def test_every_setting_is_documented_with_its_flag_and_meaning():
    table = page.settings_table()
    for name, field in Settings.model_fields.items():
        flag = "`BUNDLE`" if name == "bundle" else f"`--{name.replace('_', '-')}`"
        [line] = [line for line in table.splitlines() if line.startswith(f"| {flag} |")]
        assert field.description
        assert field.description.endswith(".")
        assert line.endswith(f"| {field.description} |")
    assert len(table.splitlines()) == 2 + len(Settings.model_fields)


def test_defaults_are_those_of_the_settings():
    table = page.settings_table()
    assert "| `--port` | `8000` |" in table
    assert "| `--uniform` | on |" in table
    assert "| `--anonymous` | off |" in table
    assert "| `--webhook` |  |" in table


def test_only_what_is_between_the_markers_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "TIMING", tmp_path / "none.json")
    text = page.filled(EMPTY, tmp_path)
    assert "stale" not in text
    assert [line for line in text.splitlines() if line in ("one", "two")] == ["one"] + 4 * ["two"]
    assert text.count("Not measured yet.") == 3
    assert page.filled(text, tmp_path) == text


@pytest.mark.parametrize("broken", [EMPTY.replace("<!-- speed -->", ""), EMPTY + "<!-- /settings -->"])
def test_a_page_without_its_markers_is_an_error(broken, tmp_path):
    with pytest.raises(OptionError, match="expected one"):
        page.filled(broken, tmp_path)


def test_results_become_a_table_with_targets(tmp_path):
    (tmp_path / "here.json").write_text(json.dumps(result()))
    text = page.speed(tmp_path)
    row = "| digits | sentinel, `memory://` | 32 | 5,432 (5,000 to 6,000) | 4.0 | 7.5 | 9.0 | 0.2 / 1.2 | 16.0 | 0.18 |"
    assert row in text
    assert "| fast | >= 5000 | 5,432 | holds |" in text
    assert "| even | <= 3 | 3.50 | missed |" in text
    assert "| sync | >= 0.5 |  | not measured |" in text
    assert "2 cores (Some CPU)" in text
    assert "rough" not in text


def test_a_quick_run_is_called_rough_and_every_machine_has_its_tables(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps(result(quick=True)))
    text = page.speed(tmp_path)
    assert text.count("rough") == text.count("| fast |") == 2


def test_times_become_a_table(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "TIMING", tmp_path / "timing.json")
    kinds = {"again": {"tell": 0.612, "more_us": -26.6}, "accused": {"tell": 0.5, "more_us": 3.4}}
    cell = {"ledger": "sqlite", "flags": "--uniform", "median_us": 1234.5, "answers_a_kind": 9, **kinds}
    page.TIMING.write_text(json.dumps({"cells": [cell]}))
    assert page.timing().splitlines()[-1] == "| sqlite | `--uniform` | 1.23 | 0.61 (-27) | 0.50 (+3) |"


def test_the_capacity_plan_follows_from_what_was_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "CAPACITY", tmp_path / "ledgers.json")
    (tmp_path / "results").mkdir()
    found = result()
    found["cells"][0]["server"] = "sentinel redis"
    found["cells"][0]["median"]["requests_per_second"] = 2500.0
    (tmp_path / "results" / "here.json").write_text(json.dumps(found))
    assert page.capacity(tmp_path / "results") == "Not measured yet.\n"
    stores = {"sqlite": {"1": 400, "100": 8000}, "redis": {"1": 500, "100": 9000}}
    times = {store: {"1": 50, "32": micros} for store, micros in (("memory", 10), ("sqlite", 30), ("redis", 60))}
    measured = {"bytes_a_client": stores, "microseconds_a_query": times, "rows_a_call": 32}
    (tmp_path / "ledgers.json").write_text(json.dumps(measured))
    text = page.capacity(tmp_path / "results")
    assert "| redis, bytes a client | 500 | 9,000 |" in text
    assert "take 8.0 GB of SQLite file, or 9.0 GB of Redis" in text
    assert "keep one Redis busy for at most 60 % of the time" in text  # 10,000 x 60 us
    assert "take a Redis cluster of 2 masters" in text
    assert "answered 2,500 one-row requests/s" in text
    assert "take 4.0 of such machines" in text
