"""The page that every report is: whole, self-contained, and no name in it is taken for markup."""

from __future__ import annotations

import pytest

from queen.bench.render.html_page import html_page, html_picture, html_section, html_table
from tests.support.html_page import ReadPage, assert_nothing_is_loaded

EVIL = "<script>alert(\"x\")</script> & 'co'"


def test_every_text_is_escaped_wherever_it_stands():
    table = html_table([EVIL], [[EVIL]], ["best"])
    parts = [html_section(EVIL, table, [EVIL]), html_picture(b"png", EVIL, EVIL)]
    text = html_page(EVIL, "".join(parts), lead=EVIL)
    assert "<script" not in text
    page = ReadPage(text)
    assert page.entries == [EVIL, EVIL]
    assert page.texts.count(EVIL) == 8  # title, heading, lead, section, header, entry, note, caption
    assert page.pictures[0]["alt"] == EVIL
    assert_nothing_is_loaded(text)


def test_what_is_not_there_leaves_no_empty_element():
    text = html_page("t", html_section("", html_table(["a"], [["b"], ["c"]])) + html_picture(b"", "p"))
    tags = {tag for tag, _ in ReadPage(text).tags}
    assert not {"h2", "ul", "figcaption", "p"} & tags
    assert "<tr>" in text
    assert "class=" not in text.split("</style>")[1].replace('class="card"', "")


def test_a_row_may_be_of_a_kind_of_its_own():
    text = html_table(["a"], [["b"], ["c"]], ["", "best"])
    assert '<tr><td>b</td></tr><tr class="best"><td>c</td></tr>' in text


def test_the_checks_themselves_find_something():
    with pytest.raises(AssertionError):
        ReadPage("<div><p></div></p>")
    with pytest.raises(AssertionError):
        assert_nothing_is_loaded('<p>see <a href="x">y</a></p>')
    with pytest.raises(AssertionError):
        assert_nothing_is_loaded('<img src="data:image/png;base64,AA"><p>http://elsewhere</p>')
