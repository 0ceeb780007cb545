"""The documentation site: built strictly, whole, readable by everybody, and without a byte from anywhere else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from playwright.sync_api import Page, Request

from tests.support.browser import assert_accessible, is_complaint, real_browser
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow
LOADS = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}
WIDE = ("policies.html", "reference/cli.html", "reference/api.html")  # tables and signatures
LOOKED_AT = ("start.html", "privacy.html", "notebooks/protect-and-steal.html")  # code, tables, a picture
PHONE = {"width": 390, "height": 844}


class Links(HTMLParser):
    """Where a page leads to, what it loads, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.leads: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.leads.append(given["href"])
        if LOADS.get(tag, "") in given and given.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(given[LOADS[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built strictly: a warning of mkdocs is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Links]:
    """Every page of it, but for the one that only a server would show."""
    return {path: Links(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}


def test_it_has_a_page_for_every_document_and_notebook(site, pages):
    sources = [path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")]
    sources += [path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.ipynb")]
    assert {site / path for path in sources} <= set(pages)
    assert {site / f"{name}.html" for name in ("index", "contributing", "security", "changelog")} <= set(pages)


def is_elsewhere(address: str) -> bool:
    return re.match(r"([a-z]+:)?//|[a-z]+:", address) is not None


def test_nothing_is_loaded_from_elsewhere(site, pages):
    assert sum(len(page.loads) for page in pages.values()) > 5 * len(pages)
    assert {address for page in pages.values() for address in page.loads if is_elsewhere(address)} == set()
    for sheet in site.rglob("*.css"):
        found = re.findall(r"(?:url\(|@import\s*)[\"']?([^\"')]+)", sheet.read_text())
        assert [address for address in found if is_elsewhere(address) and not address.startswith("data:")] == []


def test_every_link_leads_to_a_page_and_every_anchor_to_a_heading(pages):
    broken = []
    for path, page in pages.items():
        for address in [*page.leads, *page.loads]:
            file, _, anchor = unquote(address).partition("#")
            if is_elsewhere(address):
                continue
            target = (path.parent / file).resolve() if file else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                broken.append(f"{path.name}: {address}")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                broken.append(f"{path.name}: no such heading {address}")
    assert broken == []


def test_every_list_is_a_list(pages):
    """Code hosts read a list right after a paragraph, or one indented by three, as a list; the site does not."""
    lost = re.compile(r"<p>(?:(?!</p>).)*?\n(?:[-*]|\d+\.) |<li>\s*(?:<p>)?\s*<ul>", re.DOTALL)
    assert [path.name for path in pages if lost.search(path.read_text())] == []


def test_no_page_speaks_of_the_machine_it_was_built_on(site):
    texts = [path for pattern in ("*.html", "*.json", "*.js") for path in site.rglob(pattern)]
    assert [path.name for path in texts if str(ROOT) in path.read_text()] == []


@pytest.mark.real
def test_it_works_from_a_disk_on_a_phone_in_the_dark_and_without_a_network(site):
    asked: list[str] = []
    complaints: list[str] = []
    with real_browser() as browser:
        for colours, size in (("light", {"width": 1280, "height": 900}), ("dark", PHONE)):
            context = browser.new_context(color_scheme=colours, viewport=size, offline=True)
            page = context.new_page()
            page.on("request", lambda request: note(request, asked))
            page.on("console", lambda message: complaints.append(message.text) if is_complaint(message) else None)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            for name in WIDE:
                page.goto((site / name).as_uri())
                assert_no_sideways_scrolling(page, name)
            for name in LOOKED_AT:
                page.goto((site / name).as_uri())
                assert_no_sideways_scrolling(page, name)
                page.wait_for_function(
                    "document.querySelectorAll('.md-typeset__scrollwrap:not([tabindex])').length === 0"
                )
                assert_accessible(page, f"{name}, {colours}")
        search(page)
    assert asked == []
    assert complaints == []


def note(request: Request, asked: list[str]) -> None:
    """Remember a request that would leave this machine."""
    if not request.url.startswith(("file:", "data:", "blob:", "about:")):
        asked.append(request.url)


def assert_no_sideways_scrolling(page: Page, name: str) -> None:
    widths = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert widths[0] <= widths[1], f"{name} is {widths[0]} pixels wide on a screen of {widths[1]}"


def search(page: Page) -> None:
    """The search finds a word of the threat model, although no server helps."""
    page.locator("label[for=__search]:visible").first.click()
    page.locator("input[name=query]").press_sequentially("watermark")
    page.wait_for_selector(".md-search-result__link[href*='threat-model']", timeout=60_000)
