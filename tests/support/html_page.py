"""Reading the HTML pages that reports are."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "img", "br", "hr", "link", "input", "source"}


class ReadPage(HTMLParser):
    """The tags, texts and table entries of a page; fails unless every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.entries: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("td", "th"):
            self.entries.append("")

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.entries[-1] += data
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    @property
    def pictures(self) -> list[dict[str, str | None]]:
        """The attributes of all pictures."""
        return [attributes for tag, attributes in self.tags if tag == "img"]


def assert_nothing_is_loaded(text: str) -> None:
    """No script runs, and nothing but the page itself is needed."""
    page = ReadPage(text)
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "iframe", "object", "embed", "base", "form"})
    attributes = [pair for _, pairs in page.tags for pair in pairs.items()]
    sources = [value for name, value in attributes if name in ("src", "href", "srcset")]
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not any(name.startswith("on") for name, _ in attributes)
    without_pictures = "".join(
        part if i == 0 else part.partition('"')[2] for i, part in enumerate(text.split("base64,"))
    )
    for word in ("http://", "https://", "<script", "@import", "url("):
        assert word not in without_pictures
