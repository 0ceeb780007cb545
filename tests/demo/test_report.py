from __future__ import annotations

import base64
import copy
import io
from dataclasses import replace
from html import escape

import pytest
from PIL import Image

from queen.demo.report import html_report
from queen.demo.table import HEADER, adaptive_tables, notes, rows
from queen.demo.takeaway import takeaway
from tests.support.html_page import ReadPage, assert_nothing_is_loaded


@pytest.fixture(scope="module")
def html(demo) -> str:
    return html_report(demo)


@pytest.fixture(scope="module")
def page(html) -> ReadPage:
    return ReadPage(html)


def test_the_takeaway_comes_first(page, demo):
    assert page.texts[page.texts.index(takeaway(demo.results)) - 2] == "What a thief gets, and what it costs a client"


def test_every_picture_has_a_dark_twin(page):
    sources = [attributes["srcset"] for tag, attributes in page.tags if tag == "source"]
    light = [attributes["src"] for attributes in page.pictures]
    assert len(sources) == len(light) == len({*sources, *light}) // 2


def test_a_copy_that_was_not_made_is_not_shown_as_a_bad_one(demo):
    results = copy.deepcopy(demo.results)
    results["policies"]["sentinel"]["foreign"]["thief_direct"] = None
    html = html_report(replace(demo, results=results))
    assert '<div class="value">nothing to learn from</div>' in html


def test_nothing_is_loaded_from_elsewhere(html):
    assert_nothing_is_loaded(html)


def test_both_maps_are_there_and_are_pictures(page):
    images = page.pictures
    assert len(images) == 3  # the cost, and two maps
    opened = [Image.open(io.BytesIO(base64.b64decode(i["src"].partition(",")[2]))) for i in images]
    assert all(image.format == "PNG" and min(image.size) > 300 for image in opened)
    assert opened[1].tobytes() != opened[2].tobytes()
    assert all(attrs["alt"] for attrs in images)


def test_the_whole_table_and_its_notes_are_there(page, demo):
    assert page.entries[: len(HEADER)] == list(HEADER)
    entries = [entry for row in rows(demo.results) for entry in row]
    assert page.entries[len(HEADER) : len(HEADER) + len(entries)] == entries
    assert set(notes(demo.results)) <= set(page.texts)
    for policy in ("undefended", "paper", "strict", "sentinel"):
        assert policy in page.entries
        assert policy in page.texts  # above its bars
    told = "".join(page.entries)
    assert all(f"{limits['radius']:.3f} under {name}" in told for name, limits in demo.results["limits"].items())
    assert f"{demo.results['fit']['agreement']:.1%}" in told


def test_the_bars_are_as_long_as_the_figures(html, demo):
    for policy in demo.results["policies"].values():
        for pool in ("foreign", "own_kind"):
            assert f"width:{policy[pool]['thief_direct']:.1%}" in html
        assert f"width:{policy['benign_accuracy']:.1%}" in html


def test_adaptive_attackers_are_shown_where_they_were_run(page, demo):
    tables = adaptive_tables(demo.results)
    assert {table.title for table in tables} <= set(page.texts)
    assert {row[0] for table in tables for row in table.rows} <= set(page.entries)
    without = {key: value for key, value in demo.results.items() if key != "adaptive"}
    assert tables[0].title not in html_report(replace(demo, results=without))


def test_names_and_flags_are_escaped(demo):
    results = copy.deepcopy(demo.results)
    name = '<script>alert("x")</script> & co'
    results["policies"] = {(name if key == "strict" else key): policy for key, policy in results["policies"].items()}
    results["policies"][name]["flags"] = ["<b>own kind</b>: collapsed"]
    html = html_report(replace(demo, results=results))
    page = ReadPage(html)
    assert not {"script", "b"} & {tag for tag, _ in page.tags}
    assert escape(name) in html
    assert name in page.entries
    assert any("<b>own kind</b>: collapsed" in text for text in page.texts)


def test_a_fit_in_which_no_class_was_spent_is_told_too(demo):
    results = copy.deepcopy(demo.results)
    results["fit"]["calibration_first_spent"] = None
    assert "none within the held-out images" in html_report(replace(demo, results=results))
