"""The HTML report: one page that needs nothing else and takes no name for markup."""

from __future__ import annotations

import base64
import re
from html import unescape

import pytest

from queen.bench.render.report import html_report
from queen.bench.render.table import tables
from tests.support.benchmarks import result
from tests.support.html_page import ReadPage, assert_nothing_is_loaded

EVIL = "<script>&\"'"


@pytest.fixture(scope="module")
def results():
    return [
        result("none", accuracy=0.8), result("none", seed=1, accuracy=0.9), result(),
        result(attack="cover_1", knows=("benign",), flags=("collapsed <b>",)), result(query="jbda_tr", accuracy=0.2),
        result(accuracy=0.4, protectee="second"),
    ]  # fmt: skip


def test_the_page_is_whole_and_shows_every_entry(results):
    text = html_report(results, title="A title", sizes={"table": (12000, 1_000_000)})
    page = ReadPage(text)
    assert text.startswith("<!doctype html>")
    shown = [word.strip() for word in page.texts]
    for table in tables(results):
        assert {*table.columns, *table.notes, table.protectee} <= set(shown)
        for row in table.rows:
            assert {entry for entry in (row.query, row.name, *row.texts()) if entry} <= set(shown)
    assert shown.count("A title") == 2
    assert "table: 12000 instead of 1000000" in shown


def test_rows_have_as_many_cells_as_the_header(results):
    text = html_report(results, title="t", sizes={})
    for table in re.findall(r"<table>.*?</table>", text, re.DOTALL):
        widths = {len(re.findall(r"<t[dh][ >]", row)) for row in re.findall(r"<tr.*?</tr>", table, re.DOTALL)}
        assert len(widths) == 1
    assert text.count('class="best"') >= 3
    assert "Sizes that differ" not in text


def test_nothing_is_loaded_and_two_pictures_are_drawn_per_protectee(results):
    text = html_report(results, title="t", sizes={})
    assert_nothing_is_loaded(text)
    pictures = ReadPage(text).pictures
    assert len(pictures) == 4
    for picture in pictures:
        data = picture["src"].partition(",")[2]
        assert base64.b64decode(data, validate=True).startswith(b"\x89PNG\r\n\x1a\n")


def test_names_are_text_wherever_they_come_from():
    hostile = result(EVIL, EVIL, query=EVIL, flags=(EVIL,), protectee=EVIL)
    hostile["protectee"]["sources"] = [EVIL]
    text = html_report([hostile], title=EVIL, sizes={EVIL: (EVIL, EVIL)})
    assert "<script" not in text
    assert not {"script"} & {tag for tag, _ in ReadPage(text).tags}
    assert unescape(text).count(EVIL) > 8
