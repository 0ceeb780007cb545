"""The documents hold what the settings and the committed results say, and nothing older."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from queen.bench.studies import STUDIES
from queen.serve.settings import Settings
from tools import pages


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


def test_the_documents_are_up_to_date(capsys):
    assert pages.main(["--check"]) == 0, capsys.readouterr().out


@pytest.fixture
def copy(tmp_path):
    """A folder with copies of the documents and nothing else."""
    for path in pages.DOCUMENTS:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        shutil.copy(pages.ROOT / path, tmp_path / path)
    return tmp_path


def make_stale(path):
    """Put other text into every block of a document; returns what it was."""
    fresh = path.read_text()
    path.write_text(re.sub(r"(<!-- (\w[\w ]*) -->).*?(<!-- /\2 -->)", r"\1\nstale\n\3", fresh, flags=re.DOTALL))
    return fresh


def test_stale_documents_are_named_and_filled_again(copy, capsys):
    fresh = {path: make_stale(copy / path) for path in pages.DOCUMENTS}
    stale = {path: (copy / path).read_text() for path in pages.DOCUMENTS}
    for path, blocks in pages.DOCUMENTS.items():
        assert stale[path].count("\nstale\n") == len(blocks)
    assert pages.main(["--check"], copy) == 1
    assert capsys.readouterr().out.splitlines() == [f"{path} is stale: run make pages" for path in pages.DOCUMENTS]
    assert {path: (copy / path).read_text() for path in pages.DOCUMENTS} == stale
    assert pages.main([], copy) == 0
    assert {path: (copy / path).read_text() for path in pages.DOCUMENTS} == fresh
    for picture in ("cost", "price", "threshold", "leaderboard"):
        assert (copy / "docs" / f"{picture}.png").read_bytes().startswith(b"\x89PNG")


def test_only_the_stale_one_is_named(copy, capsys):
    make_stale(copy / "README.md")
    assert pages.main(["--check"], copy) == 1
    assert capsys.readouterr().out == "README.md is stale: run make pages\n"


def test_only_the_text_between_the_markers_changes():
    before = "one\n<!-- x -->\nold\n<!-- /x -->\ntwo\n"
    after = pages.fill(before, "x", "new\n")
    assert after == "one\n<!-- x -->\nnew\n<!-- /x -->\ntwo\n"
    assert pages.fill(after, "x", "new\n") == after


@pytest.mark.parametrize("broken", ["nothing", "<!-- /x -->", "<!-- x -->", "<!-- x -->\n<!-- /x --><!-- /x -->"])
def test_a_document_without_its_markers_is_an_error(broken):
    with pytest.raises(ValueError, match="expected one '<!-- x -->' and one '<!-- /x -->'"):
        pages.fill(broken, "x", "text")


def test_no_figure_of_a_study_stands_outside_its_markers():
    page = (pages.ROOT / "docs" / "studies.md").read_text()
    outside = re.sub(r"<!-- study (\w+) -->.*?<!-- /study \1 -->", "", page, flags=re.DOTALL)
    assert not re.search(r"\d+(\.\d+)? ?%", outside)  # it would go stale
    for name in STUDIES:
        assert f"results/studies/{name}.png" in page


def test_every_setting_is_documented_with_its_flag_and_meaning():
    table = pages.settings_table()
    for name, field in Settings.model_fields.items():
        flag = "`BUNDLE`" if name == "bundle" else f"`--{name.replace('_', '-')}`"
        [line] = [line for line in table.splitlines() if line.startswith(f"| {flag} |")]
        assert field.description
        assert field.description.endswith(".")
        assert line.endswith(f"| {field.description} |")
    assert len(table.splitlines()) == 2 + len(Settings.model_fields)


def test_defaults_are_those_of_the_settings():
    table = pages.settings_table()
    assert "| `--port` | `8000` |" in table
    assert "| `--uniform` | on |" in table
    assert "| `--anonymous` | off |" in table
    assert "| `--webhook` |  |" in table


def test_results_become_a_table_with_targets(tmp_path):
    (tmp_path / "here.json").write_text(json.dumps(result()))
    text = pages.server_speed(tmp_path)
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
    text = pages.server_speed(tmp_path)
    assert text.count("rough") == text.count("| fast |") == 2


def test_times_become_a_table(tmp_path):
    kinds = {"again": {"tell": 0.612, "more_us": -26.6}, "accused": {"tell": 0.5, "more_us": 3.4}}
    kinds["near"] = {"tell": 0.7, "more_us": 9.6}
    cell = {"ledger": "sqlite", "flags": "--uniform", "median_us": 1234.5, "answers_a_kind": 9, **kinds}
    (tmp_path / "timing.json").write_text(json.dumps({"cells": [cell]}))
    table = pages.answer_times(tmp_path / "timing.json")
    assert table.splitlines()[-1] == "| sqlite | `--uniform` | 1.23 | 0.70 (+10) | 0.61 (-27) | 0.50 (+3) |"


def test_the_capacity_plan_follows_from_what_was_measured(tmp_path):
    (tmp_path / "results").mkdir()
    speeds = result()
    speeds["cells"][0]["server"] = "sentinel redis"
    speeds["cells"][0]["median"]["requests_per_second"] = 2500.0
    (tmp_path / "results" / "here.json").write_text(json.dumps(speeds))
    stores = {"sqlite": {"1": 400, "100": 8000}, "redis": {"1": 500, "100": 9000}}
    times = {store: {"1": 50, "32": micros} for store, micros in (("memory", 10), ("sqlite", 30), ("redis", 60))}
    measured = {"bytes_a_client": stores, "microseconds_a_query": times, "rows_a_call": 32}
    (tmp_path / "ledgers.json").write_text(json.dumps(measured))
    text = pages.capacity_plan(tmp_path / "ledgers.json", tmp_path / "results")
    assert "| redis, bytes a client | 500 | 9,000 |" in text
    assert "take 8.0 GB of SQLite file, or 9.0 GB of Redis" in text
    assert "keep one Redis busy for at most 60 % of the time" in text  # 10,000 x 60 us
    assert "take a Redis cluster of 2 masters" in text
    assert "answered 2,500 one-row requests/s" in text
    assert "take 4.0 of such machines" in text
