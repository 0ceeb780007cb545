"""`queen bench ...`: what it prints, what it leaves behind, and one line for every mistake."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner, Result

from queen import cli
from queen.bench.render.table import tables, to_json, to_latex, to_markdown
from queen.bench.run import result_paths, write_result
from queen.bench.spec import make_spec
from tests.support.benchmarks import content, result

COMMANDS = ["run", "table", "plot", "view", "check"]
RESULTS = [
    result("none", accuracy=0.8), result(), result(attack="label_only", accuracy=0.3, flags=("it is flagged",)),
    result("modelguard_w", "cover_1", knows=("benign",)), result(protectee="second"),
]  # fmt: skip


def invoke(*words: object) -> Result:
    return CliRunner().invoke(cli.app, ["bench", *map(str, words)])


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> Path:
    """Specs and results, right and wrong."""
    folder = tmp_path_factory.mktemp("bench")
    for one in RESULTS:
        path = Path("results", one["protectee"]["name"], one["column"], f"knockoff-{one['attack']}-s0.json")
        write_result(folder / path, one)
    write_result(folder / "old" / "a-s0.json", result() | {"version": 0})
    write_result(folder / "undefended" / "a-s0.json", result("none"))
    (folder / "broken").mkdir()
    (folder / "broken" / "a-s0.json").write_text('{"version": 1, ')
    (folder / "empty").mkdir()
    (folder / "file").write_text("no folder")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(content()))
    (folder / "typo.yaml").write_text(yaml.safe_dump(content(budgett=1)))
    (folder / "next.yaml").write_text(yaml.safe_dump(content(version=2)))
    (folder / "greedy.yaml").write_text(yaml.safe_dump(content(budget=601)))
    (folder / "absent.yaml").write_text(yaml.safe_dump(content(protectee__data={"set": "cifar10"})))
    (folder / "text.yaml").write_text("a: [")
    return folder


@pytest.fixture
def inside(here, monkeypatch) -> Path:
    monkeypatch.chdir(here)
    return here


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_shows_an_example_that_parses(command):
    shown = " ".join(invoke(command, "--help").stdout.split())
    assert f"Example: `queen bench {command}" in shown
    found = get_command(cli.app).commands["bench"].commands[command]
    words = shlex.split(found.epilog.partition("`")[2].partition("`")[0])
    assert words[:3] == ["queen", "bench", command]
    found.make_context(command, words[3:])
    assert [p.name for p in found.params if p.param_type_name == "option" and not p.help] == []


def test_the_commands_that_scripts_rely_on_are_there():
    assert set(COMMANDS) <= set(get_command(cli.app).commands["bench"].commands)
    assert all(command in invoke().output for command in COMMANDS)


# table


def test_the_table_shows_every_row_and_note_at_any_width(inside):
    shown = invoke("table", "results").stdout
    assert "…" not in shown
    words = " ".join(shown.split())
    for table in tables(RESULTS):
        assert table.protectee in shown
        for row in table.rows:
            assert all(text in shown for text in (row.query, row.name, *row.texts()))
        assert all(" ".join(note.split()) in words for note in table.notes)
    assert "30.0*" in shown


def test_the_other_formats_are_those_of_the_library(inside):
    found = tables([*RESULTS[1:3], RESULTS[3], RESULTS[0], RESULTS[4]])
    by_path = sorted(found, key=lambda table: table.protectee)
    assert invoke("table", "results", "--format", "markdown").stdout == "\n".join(map(to_markdown, by_path))
    assert invoke("table", "results", "--format", "latex").stdout == "\n".join(map(to_latex, by_path))
    expected = json.loads(json.dumps([to_json(table) for table in by_path]))
    for words in (["--json"], ["--format", "json"], ["--json", "--format", "latex"]):
        assert json.loads(invoke("table", "results", *words).stdout) == expected


def test_the_metric_can_be_chosen(inside):
    (first, _) = json.loads(invoke("table", "results", "--metric", "best_accuracy", "--json").stdout)
    assert first["metric"] == "best_accuracy"
    (direct,) = [row for row in first["rows"] if row["name"] == "direct"]
    assert direct["values"]["none"]["mean"] == pytest.approx(0.9)


# plot


def test_the_pictures_are_named_after_their_protectee(inside, tmp_path):
    done = invoke("plot", "results", "--out", tmp_path / "new" / "plots")
    assert done.exit_code == 0
    names = {f"{name}-{kind}.png" for name in ("digits8", "second") for kind in ("matrix", "tradeoff")}
    assert {path.name for path in (tmp_path / "new" / "plots").iterdir()} == names
    assert all(name in done.stdout.replace("\n", "") for name in names)
    for path in (tmp_path / "new" / "plots").iterdir():
        assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


# view


def test_the_page_lies_in_the_folder_and_the_way_to_see_it_is_told(here, tmp_path, monkeypatch):
    shutil.copytree(here / "results", tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    done = invoke("view", "mine")
    assert done.exit_code == 0
    page = (tmp_path / "mine" / "index.html").read_text()
    assert "<title>QUEEN benchmark: mine</title>" in page
    assert '"folder":""' in page
    assert all(path.relative_to(tmp_path / "mine").as_posix() in page for path in result_paths(tmp_path / "mine"))
    assert "cells  5\npage   mine/index.html\n" in done.stdout
    assert "serve  python -m http.server --bind 127.0.0.1 --directory mine\n" in done.stdout
    assert "open   http://127.0.0.1:8000/index.html\n" in done.stdout


def test_a_page_elsewhere_knows_its_way_to_the_results(inside, tmp_path):
    page = tmp_path / "new" / "page.html"
    found = json.loads(invoke("view", "results", "--out", page, "--spec", "tiny.yaml", "--json").stdout)
    assert found == {"page": str(page), "cells": 5, "bytes": page.stat().st_size}
    way = json.loads(re.search(r'"folder":("[^"]*")', page.read_text())[1])
    assert (page.parent / way / "digits8/queen/knockoff-direct-s0.json").is_file()
    assert str(inside) not in page.read_text()


def test_the_spec_of_a_cell_is_what_the_run_left_or_what_is_named(here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = make_spec(content())
    cell = next(iter(spec.cells()))
    write_result(tmp_path / "out" / cell.path, result("none") | {"hash": cell.hash})
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(content()))
    (tmp_path / "out" / ".specs").mkdir()
    (tmp_path / "out" / ".specs" / "tiny.json").write_text(json.dumps(content()))
    for words, name in (([], "out/.specs/tiny.json"), (["--spec", "tiny.yaml"], "tiny.yaml")):
        assert invoke("view", "out", *words).exit_code == 0
        assert f"queen bench run {name} --column none" in (tmp_path / "out" / "index.html").read_text()


# run


@pytest.mark.slow
def test_a_run_ends_with_a_report_and_says_what_comes_next(inside, tmp_path):
    out = tmp_path / "out"
    done = invoke("run", "tiny.yaml", "--out", out, "--jobs", 1)
    assert done.exit_code == 0
    assert "cells   4 run, 0 were there, 0 failed" in done.stdout
    assert f"queen bench table {out}" in done.stdout.replace("\n", "")
    assert "note: ask_batch is 64; published: 256" in done.stderr
    assert "<h1>QUEEN benchmark: tiny</h1>" in (out / "report.html").read_text()
    again = invoke("run", "tiny.yaml", "--out", out, "--jobs", 1, "--json")
    assert json.loads(again.stdout) == {"done": 0, "skipped": 4, "failed": {}, "left": 0}
    assert invoke("check", out, "--max-thief", 0.99).exit_code == 0
    assert invoke("check", out, "--max-thief", 0.2).exit_code == 1
    assert invoke("table", out).exit_code == 0


@pytest.mark.slow
def test_a_run_whose_time_is_up_says_what_is_left(inside, tmp_path):
    done = invoke("run", "tiny.yaml", "--out", tmp_path / "out", "--jobs", 1, "--minutes", 1e-9)
    assert done.exit_code == 0
    assert "left    4, since time was up: the same command goes on with them" in done.stdout
    assert "report" not in done.stdout  # of nothing


def test_a_failing_cell_is_told_and_ends_with_1(inside, tmp_path):
    bad = {"none": {}, "rounding": {"decimals": -1}}
    matrix = [{"queries": "knockoff", "attacks": "label_only"}]
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(content(defenses=bad, matrix=matrix, budget=50)))
    done = invoke("run", tmp_path / "spec.yaml", "--out", tmp_path / "out", "--jobs", 1, "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    path = "digits8/rounding/knockoff-label_only-s0.json"
    assert (found["done"], found["skipped"], list(found["failed"])) == (1, 0, [path])
    assert f"failed: {path}: decimals must be a whole number from 0 to 15, got -1" in done.stderr
    assert (tmp_path / "out" / "report.html").exists()


# Mistakes

MISTAKES = {
    "run, missing spec": (["run", "nowhere.yaml", "--out", "out"], "cannot read spec 'nowhere.yaml'"),
    "run, no YAML": (["run", "text.yaml", "--out", "out"], "is not YAML"),
    "run, typo": (["run", "typo.yaml", "--out", "out"], "no key 'budgett'"),
    "run, another version": (["run", "next.yaml", "--out", "out"], "is of version 2; this program reads version 1"),
    "run, absent data": (["run", "absent.yaml", "--out", "out", "--data", "empty"], "the data set 'cifar10' is not in"),
    "run, budget larger than the pool": (["run", "greedy.yaml", "--out", "out"], "a budget of 601 queries is larger"),
    "run, out is a file": (["run", "tiny.yaml", "--out", "file"], "'file'"),
    "run, out in a file": (["run", "tiny.yaml", "--out", "file/out"], "'file/out'"),
    "run, cache is a file": (["run", "tiny.yaml", "--out", "out", "--cache", "file"], "'file'"),
    "run, unknown device": (["run", "tiny.yaml", "--out", "out", "--device", "abacus"], "abacus"),
    "run, no jobs": (["run", "tiny.yaml", "--out", "out", "--jobs", "0"], "jobs must be a whole number of at least 1"),
    "run, fewer jobs": (["run", "tiny.yaml", "--out", "out", "--jobs", "-2"], "jobs must be a whole number"),
    "table, nothing there": (["table", "empty"], "no results below 'empty': queen bench run SPEC --out empty"),
    "table, missing folder": (["table", "nowhere"], "no results below 'nowhere'"),
    "table, a file": (["table", "file"], "no results below 'file'"),
    "table, another version": (["table", "old"], "is a result of version 0, this program reads 1"),
    "table, broken": (["table", "broken"], "cannot read the result 'broken/a-s0.json'"),
    "table, unknown metric": (["table", "results", "--metric", "f1"], "no metric 'f1'; known: accuracy"),
    "table, unknown format": (["table", "results", "--format", "pdf"], "no format 'pdf'; known: rich, markdown"),
    "plot, nothing there": (["plot", "empty"], "no results below 'empty'"),
    "plot, out is a file": (["plot", "results", "--out", "file"], "'file'"),
    "plot, unknown metric": (["plot", "results", "--metric", "f1"], "no metric 'f1'"),
    "view, nothing there": (["view", "empty"], "no results below 'empty': queen bench run SPEC --out empty"),
    "view, broken": (["view", "broken"], "cannot read the result 'broken/a-s0.json'"),
    "view, another version": (["view", "old"], "is a result of version 0, this program reads 1"),
    "view, out is a folder": (["view", "results", "--out", "empty"], "--out must be a file, got the folder 'empty'"),
    "view, out in a file": (["view", "results", "--out", "file/page.html"], "'file'"),
    "view, missing spec": (["view", "results", "--spec", "nowhere.yaml"], "cannot read spec 'nowhere.yaml'"),
    "check, nothing there": (["check", "empty", "--max-thief", "0.5"], "no results below 'empty'"),
    "check, only undefended": (["check", "undefended", "--max-thief", "0.5"], "there are no results to check"),
    "check, unknown column": (["check", "results", "--max-thief", "1", "--defense", "quen"], "no results of 'quen'"),
    "check, percent": (["check", "results", "--max-thief", "50"], "max_thief must be a number from 0 to 1, got 50.0"),
}


@pytest.mark.parametrize(("words", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(inside, words, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["queen", "bench", *words])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    shown = capsys.readouterr()
    assert stopped.value.code == 2
    assert shown.out == ""
    lines = [line for line in shown.err.splitlines() if not line.startswith("note: ")]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert not list(Path().glob("out/digits8/**/*.json"))


def test_a_missing_option_ends_with_2_too(inside):
    assert invoke("check", "results").exit_code == 2
    assert invoke("run", "tiny.yaml").exit_code == 2
    assert invoke("nothing").exit_code == 2
