"""The page that every report is: whole, self-contained, and no name in it is taken for markup."""

from __future__ import annotations

import base64
import re

import pytest

from queen.bench.render.html_page import html_page, html_picture, html_section, html_table
from tests.support.html_page import ReadPage, assert_nothing_is_loaded


def draw(*, dark: bool) -> bytes:
    return b"dark" if dark else b"light"


EVIL = "<script>alert(\"x\")</script> & 'co'"


def test_every_text_is_escaped_wherever_it_stands():
    table = html_table([EVIL], [[EVIL]], ["best"])
    parts = [html_section(EVIL, table, [EVIL]), html_picture(draw, EVIL, EVIL)]
    text = html_page(EVIL, "".join(parts), lead=EVIL)
    assert "<script" not in text
    page = ReadPage(text)
    assert page.entries == [EVIL, EVIL]
    assert page.texts.count(EVIL) == 8  # title, heading, lead, section, header, entry, note, caption
    assert page.pictures[0]["alt"] == EVIL
    assert_nothing_is_loaded(text)


def test_what_is_not_there_leaves_no_empty_element():
    text = html_page("t", html_section("", html_table(["a"], [["b"], ["c"]])) + html_picture(draw, "p"))
    tags = {tag for tag, _ in ReadPage(text).tags}
    assert not {"h2", "ul", "figcaption", "p"} & tags
    assert '<tr role="row"><td' in text
    assert set(re.findall('class="(.*?)"', text.split("</style>")[1])) == {"card", "stacked"}


def test_a_picture_is_drawn_for_both_schemes():
    page = ReadPage(html_picture(draw, "p"))
    sources = [attributes for tag, attributes in page.tags if tag == "source"]
    data = [text.partition(",")[2] for text in (sources[0]["srcset"], page.pictures[0]["src"])]
    assert [base64.b64decode(text) for text in data] == [b"dark", b"light"]
    assert sources[0]["media"] == "(prefers-color-scheme: dark)"


def test_a_page_begins_with_what_to_remember():
    assert ReadPage(html_page("t", "", lead="how", takeaway="<what>")).texts[-4:] == ["<what>", "\n", "how", "\n"]


def test_a_card_with_a_table_is_scrolled_by_keyboard_too_and_a_narrow_screen_has_lists():
    text = html_section("t", html_table(["a", "b"], [["1", "2"]]))
    assert '<div class="card" tabindex="0" role="region" aria-label="t"><table role="table" class="stacked">' in text
    assert 'data-label="b">2<' in text
    assert "tabindex" not in html_section("t", "text")
    assert "stacked" not in html_table(["a"] * 13, [])


def test_a_row_may_be_of_a_kind_of_its_own():
    text = html_table(["a"], [["b"], ["c"]], ["", "best"])
    assert re.findall(r'<tr role="row"( class="best")?><td[^>]*>(\w)', text) == [("", "b"), (' class="best"', "c")]


def test_the_checks_themselves_find_something():
    with pytest.raises(AssertionError):
        ReadPage("<div><p></div></p>")
    with pytest.raises(AssertionError):
        assert_nothing_is_loaded('<p>see <a href="x">y</a></p>')
    with pytest.raises(AssertionError):
        assert_nothing_is_loaded('<img src="data:image/png;base64,AA"><p>http://elsewhere</p>')
