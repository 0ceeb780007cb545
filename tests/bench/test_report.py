"""The HTML report: one page that needs nothing else and takes no name for markup."""

from __future__ import annotations

import base64
import re
from html import unescape
from html.parser import HTMLParser

import pytest

from queen.bench.report import html_report
from queen.bench.table import tables
from tests.support.benchmarks import result

EVIL = "<script>&\"'"
VOID = {"meta", "img", "br", "link", "hr"}


class Page(HTMLParser):
    """What the page holds, if every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def results():
    return [
        result("none", accuracy=0.8), result("none", seed=1, accuracy=0.9), result(),
        result(attack="cover_1", knows=("benign",), flags=("collapsed <b>",)), result(query="jbda_tr", accuracy=0.2),
        result(accuracy=0.4, protectee="second"),
    ]  # fmt: skip


def test_the_page_is_whole_and_shows_every_entry(results):
    text = html_report(results, title="A title", sizes={"table": (12000, 1_000_000)})
    page = Page(text)
    assert text.startswith("<!doctype html>")
    shown = [word.strip() for word in page.words]
    for table in tables(results):
        assert {*table.columns, *table.notes, table.protectee} <= set(shown)
        for row in table.rows:
            assert {entry for entry in (row.query, row.name, *row.texts()) if entry} <= set(shown)
    assert shown.count("A title") == 2
    assert "table: 12000 instead of 1000000" in shown


def test_rows_have_as_many_cells_as_the_header(results):
    text = html_report(results, title="t", sizes={})
    for table in re.findall(r"<table>.*?</table>", text, re.DOTALL):
        widths = {len(re.findall(r"<t[dh]>", row)) for row in re.findall(r"<tr.*?</tr>", table, re.DOTALL)}
        assert len(widths) == 1
    assert text.count("class='best'") >= 3
    assert "Sizes that differ" not in text


def test_nothing_is_loaded_and_no_script_runs(results):
    page = Page(html_report(results, title="t", sizes={}))
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.tags}
    sources = [value for _, attributes in page.tags for key, value in attributes.items() if key in ("src", "href")]
    assert len(sources) == 4  # two pictures a protectee
    for source in sources:
        kind, data = source.split(",", 1)
        assert kind == "data:image/png;base64"
        assert base64.b64decode(data, validate=True).startswith(b"\x89PNG\r\n\x1a\n")
    assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)


def test_names_are_text_wherever_they_come_from():
    hostile = result(EVIL, EVIL, query=EVIL, flags=(EVIL,), protectee=EVIL)
    hostile["protectee"]["sources"] = [EVIL]
    text = html_report([hostile], title=EVIL, sizes={EVIL: (EVIL, EVIL)})
    assert "<script" not in text
    assert not {"script"} & {tag for tag, _ in Page(text).tags}
    assert unescape(text).count(EVIL) > 8
