"""The page of `queen bench view`: it holds every cell, what a table says of it, and nothing that runs or is loaded."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from pathlib import Path

import pytest

from queen.bench.render import view
from queen.bench.render.submit import STEPS, submit_html, submit_markdown
from queen.bench.render.table import METRICS, tables
from queen.bench.render.view import html_view
from queen.bench.run import read_results, read_specs, result_paths
from queen.errors import OptionError
from tests.support.benchmarks import result, tiny_spec
from tests.support.html_page import ReadPage
from tests.support.paths import ROOT

EVIL = "</script><script>alert(1)</script><!-- & \"' $title"
CELLS = [
    result("none", accuracy=0.95), result("none", seed=1, accuracy=0.13), result("none", seed=2, accuracy=0.54),
    result(accuracy=None, flags=("no thief",), explained={"no thief": "nothing was answered"}),
    result(attack="pbayes", knows=("prior",), flags=("it collapsed",)), result(accuracy=0.4, protectee="second"),
]  # fmt: skip


def path_of(one) -> str:
    return f"{one['protectee']['name']}/{one['column']}/{one['query']}-{one['attack']}-s{one['seed']}.json"


def make(cells=CELLS, **options) -> str:
    return html_view({path_of(one): one for one in cells}, **{"title": "t", "specs": {}, **options})


def data_of(page: str) -> dict:
    """What the page holds for its script, read as a browser does: up to the first end of the element."""
    return json.loads(page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0])


@pytest.fixture(scope="module")
def smoke() -> str:
    folder = ROOT / "results/smoke"
    names = [path.relative_to(folder).as_posix() for path in result_paths(folder)]
    specs = {path.relative_to(ROOT).as_posix(): spec for path, spec in read_specs(folder).items()}
    return html_view(dict(zip(names, read_results(folder), strict=True)), title="smoke", specs=specs)


# What is in it


def test_every_cell_is_there_with_what_the_overview_needs():
    cells = {cell["path"]: cell for cell in data_of(make())["cells"]}
    assert list(cells) == [path_of(one) for one in CELLS]
    for one in CELLS:
        cell = cells[path_of(one)]
        assert all(cell[name] == one[name] for name in ("column", "query", "attack", "seed", "flags", "knows"))
        assert all(cell[metric] == one["thief"].get(metric) for metric in METRICS)
        assert cell["explained"] == one.get("explained", {})
        assert cell["benign"] == {name: facts["accuracy"] for name, facts in one["utility"].items()}
        assert cell["budget"] == 300


@pytest.mark.parametrize("metric", METRICS)
def test_the_tables_are_those_of_bench_table_over_all_seeds_and_for_each(metric):
    shown = data_of(make())["tables"][metric]
    assert set(shown) == {"mean", "0", "1", "2"}
    for seed, found in shown.items():
        some = [one for one in CELLS if seed in ("mean", str(one["seed"]))]
        for table, expected in zip(found, tables(some, metric), strict=True):
            assert (table["protectee"], table["columns"]) == (expected.protectee, list(expected.columns))
            assert table["notes"] == list(expected.notes)
            names = [(row["query"], row["attack"] + row["marks"]) for row in table["rows"]]
            assert names == [(row.query, row.name) for row in expected.rows]
            texts = [[entry[0] if entry else "" for entry in row["entries"]] for row in table["rows"]]
            assert texts == [row.texts() for row in expected.rows]


def test_colours_go_from_chance_to_the_victim_or_a_perfect_copy():
    def heats(metric):
        (row,) = [r for r in data_of(make(CELLS[:3]))["tables"][metric]["0"][0]["rows"] if r["kind"] == "attack"]
        return [entry[1] for entry in row["entries"]]

    assert heats("accuracy") == [1.0]
    assert heats("best_accuracy") == [1.0]  # better than the victim is not redder
    assert heats("agreement") == [pytest.approx((0.475 - 0.13) / 0.87, abs=1e-3)]
    (mean,) = [r for r in data_of(make(CELLS[1:2]))["tables"]["accuracy"]["mean"][0]["rows"] if r["kind"] == "attack"]
    assert mean["entries"] == [["13.0", 0.0]]


def test_one_seed_needs_no_choice():
    assert set(data_of(make(CELLS[3:]))["tables"]["accuracy"]) == {"mean"}


def test_the_lead_says_what_is_flagged_missing_and_from_which_code():
    assert "6 cells, 2 of them flagged; the commit of 6 was not recorded." in make()
    made = [one | {"versions": {"commit": commit}} for one, commit in zip(CELLS[1:], "aabba", strict=True)]
    page = make([CELLS[0], *made], specs={"tiny.yaml": tiny_spec()})  # its other three cells are missing
    assert "3 more cells of the spec have no result yet; made by 2 commits; the commit of 1 was not recorded." in page


# The command that computes a cell again


def test_a_cell_of_a_spec_names_it_and_what_to_choose():
    spec = tiny_spec()
    cells = {str(cell.path): cell for cell in spec.cells()}
    results = {
        path: result(cell.column, cell.attack, accuracy=0.5) | {"hash": cell.hash} for path, cell in cells.items()
    }
    found = data_of(html_view(results, title="t", specs={"my specs/tiny.yaml": spec}))["cells"]
    assert len(found) == 4
    for shown in found:
        words = shlex.split(shown["command"])
        assert words[:4] == ["queen", "bench", "run", "my specs/tiny.yaml"]
        options = dict(zip(words[4::2], words[5::2], strict=True))
        named = ([options[f"--{kind}"]] for kind in ("column", "query", "attack", "seed"))
        (chosen,) = spec.select(*named)
        assert shown["path"] == str(chosen.path)
        assert shown["repeatable"]


def test_a_cell_of_another_spec_of_the_same_name_does_not_claim_to_be_repeatable():
    spec = tiny_spec()
    other = next(iter(tiny_spec(budget=299).cells()))
    changed = {str(other.path): result(other.column, other.attack) | {"hash": other.hash}}
    (shown,) = data_of(html_view(changed, title="t", specs={"tiny.yaml": spec}))["cells"]
    assert not shown["repeatable"]
    assert shlex.split(shown["command"])[3] == "SPEC"


def test_names_cannot_add_words_to_the_command():
    (shown,) = data_of(make([result("x; rm -rf ~", "$(id)")]))["cells"]
    words = shlex.split(shown["command"])
    assert words[4:10] == ["--column", "x; rm -rf ~", "--query", "knockoff", "--attack", "$(id)"]
    assert "'x; rm -rf ~'" in shown["command"]


# Safety


def test_no_name_is_taken_for_markup():
    hostile = result(EVIL, EVIL, query=EVIL, flags=(EVIL,), knows=(EVIL,), protectee=EVIL, explained={EVIL: EVIL})
    hostile["protectee"]["sources"] = [EVIL]
    page = make([hostile], title=EVIL)
    assert page.count("<script") == page.count("</script>") == 2
    assert "<!--" not in page
    (cell,) = data_of(page)["cells"]
    assert {cell["column"], cell["attack"], cell["query"], cell["protectee"], *cell["flags"]} == {EVIL}
    assert EVIL in data_of(page)["tables"]["accuracy"]["mean"][0]["columns"]
    assert page.partition("<title>")[2].startswith("&lt;/script&gt;")


def test_only_the_scripts_and_styles_of_the_page_itself_may_run_and_nothing_else_is_loaded():
    page = make()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1]
    for kind, tag in (("script-src", '<script type="module">'), ("style-src", "<style>")):
        inline = page.partition(tag)[2].partition(f"</{tag[1:].split()[0].rstrip('>')}>")[0]
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    sources = [value for _, pairs in ReadPage(page).tags for name, value in pairs.items() if name in ("src", "href")]
    assert all(source.startswith("#") for source in sources)
    assert re.findall(r"https?://[^\s\"']+", page) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|@import|url\(", page)


# Size


def test_the_smoke_matrix_fits_and_every_cell_can_be_computed_again(smoke):
    data = data_of(smoke)
    files = {path.relative_to(ROOT / "results/smoke").as_posix() for path in result_paths(ROOT / "results/smoke")}
    assert {cell["path"] for cell in data["cells"]} == files
    assert len(smoke.encode()) < 1_000_000
    assert all(cell["repeatable"] for cell in data["cells"])
    flagged = [cell for cell in data["cells"] if cell["flags"]]
    assert f"{len(files)} cells, {len(flagged)} of them flagged" in smoke
    assert flagged
    assert str(ROOT) not in smoke


def test_a_page_that_would_be_too_large_is_refused_with_what_to_do(monkeypatch):
    size = len(make().encode())
    monkeypatch.setattr(view, "LARGEST", size)
    make()
    monkeypatch.setattr(view, "LARGEST", size - 1)
    with pytest.raises(OptionError, match=rf"6 cells would have {size:,} bytes.*one page for each folder"):
        make()


# How to submit


def test_the_steps_name_what_exists_and_read_the_same_on_the_page_and_in_documents():
    page = "".join(ReadPage(f"<div>{submit_html()}</div>").texts)
    assert page == "".join(step.replace("`", "") for step in STEPS)
    assert submit_markdown().splitlines() == [f"{i}. {step}" for i, step in enumerate(STEPS, 1)]
    assert submit_html() in make()
    paths = re.findall(r"`((?:src|benchmarks|CONTRIBUTING)[^` ]*)`", " ".join(STEPS))
    assert len(paths) > 3
    assert [path for path in paths if not (ROOT / path.replace("NAME.py", "")).exists()] == []
    assert Path(ROOT / "benchmarks/smoke.yaml").exists()
