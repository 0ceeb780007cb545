from __future__ import annotations

import base64
import copy
import io
import re
from dataclasses import replace
from html import escape
from html.parser import HTMLParser

import pytest
from PIL import Image

from queen.demo.report import html_report
from queen.demo.table import HEADER, notes, rows

VOID = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Checks that tags are balanced and remembers tags, cells, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.cells: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data
        if self.open and self.open[-1] != "style":
            self.text += data


@pytest.fixture(scope="module")
def html(demo) -> str:
    return html_report(demo)


@pytest.fixture(scope="module")
def page(html) -> Page:
    return Page(html)


def test_the_tags_are_balanced(page):
    assert page.open == []
    assert {"html", "head", "body", "main", "table", "figure"} <= {tag for tag, _ in page.tags}
    with pytest.raises(AssertionError):
        Page("<div><p></div></p>")  # the check itself works


def test_nothing_is_loaded_from_elsewhere(html, page):
    tags = {tag for tag, _ in page.tags}
    assert tags.isdisjoint({"script", "link", "iframe", "object", "embed", "base", "form"})
    sources = [value for _, attrs in page.tags for name, value in attrs.items() if name in ("src", "href", "srcset")]
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    without_images = re.sub(r"base64,[^\"]*", "", html)
    for word in ("http://", "https://", "<script", "@import", "url("):
        assert word not in without_images


def test_both_maps_are_there_and_are_pictures(page):
    images = [attrs for tag, attrs in page.tags if tag == "img"]
    assert len(images) == 3  # the cost, and two maps
    opened = [Image.open(io.BytesIO(base64.b64decode(i["src"].partition(",")[2]))) for i in images]
    assert all(image.format == "PNG" and min(image.size) > 300 for image in opened)
    assert opened[1].tobytes() != opened[2].tobytes()
    assert all(attrs["alt"] for attrs in images)


def test_the_whole_table_and_its_notes_are_there(page, demo):
    assert page.cells[: len(HEADER)] == list(HEADER)
    cells = [cell for row in rows(demo.results) for cell in row]
    assert page.cells[len(HEADER) : len(HEADER) + len(cells)] == cells
    assert all(note in page.text for note in notes(demo.results))
    for policy in ("undefended", "paper", "strict", "sentinel"):
        assert policy in page.cells
        assert f"{policy}, own kind, label-only" in page.text
    assert all(f"{name} {limits['radius']:.3f}" in page.text for name, limits in demo.results["limits"].items())
    assert f"{demo.results['fit']['agreement']:.1%}" in page.text


def test_the_bars_are_as_long_as_the_figures(html, demo):
    for policy in demo.results["policies"].values():
        for pool in ("foreign", "own_kind"):
            assert f"width:{policy[pool]['thief_direct']:.1%}" in html
        assert f"width:{policy['benign_accuracy']:.1%}" in html


def test_names_and_flags_are_escaped(demo):
    results = copy.deepcopy(demo.results)
    name = '<script>alert("x")</script> & co'
    results["policies"] = {(name if key == "strict" else key): policy for key, policy in results["policies"].items()}
    results["policies"][name]["flags"] = ["<b>own kind</b>: collapsed"]
    html = html_report(replace(demo, results=results))
    page = Page(html)
    assert page.open == []
    assert not {"script", "b"} & {tag for tag, _ in page.tags}
    assert escape(name) in html
    assert name in page.cells
    assert "<b>own kind</b>: collapsed" in page.text


def test_a_fit_in_which_no_class_was_spent_is_told_too(demo):
    results = copy.deepcopy(demo.results)
    results["fit"]["calibration_first_spent"] = None
    assert "none within the held-out images" in html_report(replace(demo, results=results))
