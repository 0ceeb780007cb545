"""The page of `queen bench view` in a real browser: over HTTP with the results beside it, and opened as a file."""

from __future__ import annotations

import json
import re
import shutil
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from typer.testing import CliRunner

from queen import cli
from queen.bench.render.table import tables
from queen.bench.run import read_result, read_results, write_result
from tests.support.benchmarks import result
from tests.support.browser import assert_accessible, is_complaint, real_browser
from tests.support.paths import ROOT

pytestmark = pytest.mark.real

EVIL = "<img src=x onerror=\"document.title='pwned'\">"
CURVE = {"epoch": [1, 2], "accuracy": [0.1, 0.5], "agreement": [0.2, 0.6]}
CELL = "digits28/queen-sentinel/knockoff-direct-s0.json"
SERVE = "python -m http.server --bind 127.0.0.1"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Pages with results beside them: committed ones, and some that nobody made with good intentions."""
    folder = tmp_path_factory.mktemp("view")
    for name in ("smoke", "accused"):
        shutil.copytree(ROOT / "results" / name, folder / name)
    evil = result("que%/..#?", EVIL, flags=(EVIL,), knows=(EVIL,), explained={EVIL: EVIL}, hash="1")
    evil |= {"config": {"options": {EVIL: EVIL}}, "versions": {"code": EVIL, "commit": EVIL}, "hardware": {EVIL: EVIL}}
    evil["thief"] |= {"epochs": CURVE}
    write_result(folder / "odd" / "a%2F b#?" / f"{EVIL.replace('/', '')}-s0.json", evil)
    write_result(folder / "odd" / "gone-s0.json", result("none", hash="2"))
    write_result(folder / "odd" / "changed-s1.json", result("none", attack="label_only", hash="3"))
    for name in ("smoke", "accused", "odd"):
        made = CliRunner().invoke(cli.app, ["bench", "view", str(folder / name)])
        assert made.exit_code == 0, made.output
    (folder / "odd" / "gone-s0.json").unlink()
    changed = result("none", attack="label_only", hash="another")
    changed["thief"] |= {"epochs": CURVE}
    write_result(folder / "odd" / "changed-s1.json", changed)
    return folder


@pytest.fixture(scope="module")
def url(folder) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with real_browser() as browser:
        yield browser


@pytest.fixture
def open_page(browser) -> Iterator[Callable[..., Page]]:
    """Opens pages; whatever a script or the content policy complains about fails the test, and so does a request to
    anywhere but the page's own server."""
    contexts, complaints, hosts = [], [], set()

    def make(url: str, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_default_timeout(60_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if is_complaint(message) else None)
        page.on("request", lambda request: hosts.add(request.url.partition("//")[2].partition("/")[0]))
        page.goto(url)
        return page

    yield make
    for context in contexts:
        context.close()
    assert complaints == []
    assert {host.partition(":")[0] for host in hosts} <= {"", "127.0.0.1"}


def entries(page: Page) -> list[list[str]]:
    """The table's rows as text, without the titles of query strategies."""
    rows = page.locator(".grid tbody tr:not(.group)")
    return rows.evaluate_all("rows => rows.map(row => [...row.children].map(cell => cell.textContent))")


# The overview


@pytest.mark.parametrize("metric", ["accuracy", "best_accuracy", "agreement"])
def test_the_overview_is_the_table_of_bench_table(url, folder, open_page, metric):
    page = open_page(f"{url}/smoke/index.html")
    page.get_by_label("Metric").select_option(metric)
    (table,) = tables(read_results(folder / "smoke"), metric)
    assert entries(page) == [[row.name, *row.texts()] for row in table.rows]
    assert page.locator(".grid thead th").all_text_contents() == ["attack", *table.columns]
    assert page.locator("#tables li").all_text_contents() == list(table.notes)
    assert ["", *page.locator(".grid .group").all_text_contents()] == list(dict.fromkeys(r.query for r in table.rows))


def test_a_better_copy_is_redder(url, open_page):
    page = open_page(f"{url}/smoke/index.html")
    shades = page.locator("td.heat").evaluate_all(
        "cells => cells.map(c => [parseFloat(c.textContent), c.style.getPropertyValue('--heat'),"
        " getComputedStyle(c).backgroundColor])"
    )
    assert [float(heat) for _, heat, _ in sorted(shades)] == sorted(float(heat) for _, heat, _ in shades)
    assert len({colour for *_, colour in shades}) > 50


def test_filters_leave_what_was_asked_for(url, folder, open_page):
    count = len(read_results(folder / "smoke"))
    page = open_page(f"{url}/smoke/index.html")
    said = page.locator("#shown")
    expect(said).to_have_text(f"{count} of {count} cells are shown.")
    page.get_by_label("Query strategy").select_option("jbda_tr")
    page.get_by_label("Defense", exact=True).select_option("queen-sentinel")
    expect(page.locator(".grid thead th")).to_have_text(["attack", "queen-sentinel"])
    expect(page.locator(".grid .group")).to_have_text(["jbda_tr"])
    expect(page.locator(".grid tr.best")).to_have_count(1)
    page.get_by_label("Query strategy").select_option("all")
    page.get_by_label("Defense", exact=True).select_option("all")
    page.get_by_label("Text").fill("Sentinel ddae_plus")
    expect(page.locator(".grid tr.attack th")).to_have_text(["ddae_plus°", "ddae_plus_answers", "ddae_plus°"])
    expect(page.locator(".grid thead th")).to_have_text(["attack", "queen-sentinel"])
    expect(page.locator(".grid tr.best, .grid tr.benign")).to_have_count(0)  # they speak of all attacks
    page.get_by_label("Text").fill("nobody has this name")
    expect(said).to_have_text(f"0 of {count} cells are shown.")
    expect(page.locator(".grid")).to_have_count(0)


def test_flagged_runs_can_be_seen_alone(url, folder, open_page):
    flagged = [r for r in read_results(folder / "smoke") if r["flags"]]
    page = open_page(f"{url}/smoke/index.html")
    page.get_by_label("Flagged runs only").check()
    expect(page.locator("#shown")).to_contain_text(f"{len(flagged)} of ")
    expect(page.locator(".grid td a")).to_have_count(len(flagged))
    titles = page.locator(".grid td a").evaluate_all("links => links.map(link => link.title)")
    assert sorted(titles) == sorted("; ".join(r["flags"]) for r in flagged)


def test_one_seed_or_the_mean(url, folder, open_page):
    results = read_results(folder / "accused")
    page = open_page(f"{url}/accused/index.html")
    for seed, some in (("mean over seeds", results), ("1", [r for r in results if r["seed"] == 1])):
        page.get_by_label("Seed").select_option(seed)
        (table,) = tables(some)
        assert entries(page) == [[row.name, *row.texts()] for row in table.rows]
    page.get_by_role("row", name="greybox_head").get_by_role("link").click()
    expect(page.locator("h1:visible")).to_have_text("greybox_head on queen-sentinel")
    expect(page.locator("#cell .lead")).to_contain_text("seed 1.")
    page.get_by_label("Seeds").get_by_role("link", name="2").click()
    expect(page.locator("#cell .lead")).to_contain_text("seed 2.")


# A cell


def test_a_cell_is_opened_from_the_table_with_all_its_figures(url, folder, open_page):
    page = open_page(f"{url}/smoke/index.html")
    page.get_by_label("Defense", exact=True).select_option("queen-sentinel")
    page.locator(".grid td a").first.click()
    expect(page).to_have_url(f"{url}/smoke/index.html#/{CELL}")
    expect(page.locator("h1:visible")).to_be_focused()
    full = read_result(folder / "smoke" / CELL)
    epochs = full["thief"]["epochs"]
    curve = page.get_by_role("img", name=re.compile(f"Accuracy of the copy over {epochs['epoch'][-1]} epochs"))
    expect(curve).to_be_visible()
    points = curve.locator("polyline").first.get_attribute("points").split()
    assert len(points) == len(epochs["accuracy"])
    assert {"0 %", "50 %", "100 %", "epoch"} <= set(curve.locator("text").all_text_contents())
    body = " ".join(page.locator("#cell").inner_text().split())
    percents = [full["thief"]["accuracy"], full["verdicts"]["refused"], full["utility"]["one_client"]["accuracy"]]
    for text in (
        *(f"{100 * share:.1f} %" for share in percents),
        *(full["hash"], full["versions"]["commit"], full["versions"]["code"], full["protectee"]["weights"]),
        *(full["hardware"]["device"], full["versions"]["torch"], *full["protectee"]["sources"]),
        ".specs/smoke.json --column queen-sentinel --query knockoff --attack direct --seed 0 --out build/again",
    ):
        assert text in body
    assert json.loads(page.locator("#cell details[open] pre").inner_text()) == full["config"]
    with page.expect_navigation():
        page.get_by_role("link", name=CELL).click()
    assert json.loads(page.locator("body").inner_text()) == full
    page.go_back()
    page.get_by_role("link", name="All cells").click()
    expect(page.locator("#overview")).to_be_visible()


def test_flags_and_what_explains_them_are_told(url, folder, open_page):
    results = read_results(folder / "accused")
    flagged = next(r for r in results if r["flags"] and not r.get("explained"))
    name = f"cifar10/queen-sentinel/knockoff-{flagged['attack']}-s{flagged['seed']}.json"
    page = open_page(f"{url}/accused/index.html#/{name}")
    expect(page.get_by_text("This run is flagged")).to_be_visible()
    expect(page.locator(".flags li")).to_have_text(f"{flagged['flags'][0]} Not explained: the run proves nothing.")
    expect(page.get_by_text("SHA-256 of the victim's weights").locator("xpath=..")).to_contain_text("not recorded")


def test_a_file_that_is_gone_or_has_changed_is_told(url, open_page):
    page = open_page(f"{url}/odd/index.html#/gone-s0.json")
    expect(page.get_by_role("status")).to_have_text(
        "The file gone-s0.json could not be read (the server says 404): serve the folder of this page with this page "
        "and all results in it."
    )
    expect(page.locator(".tile").first).to_contain_text("50.0")  # what the page itself knows
    page = open_page(f"{url}/odd/index.html#/changed-s1.json")
    expect(page.get_by_role("status")).to_contain_text("The file has changed since this page was made")
    page = open_page(f"{url}/odd/index.html#/%E0%A4%A")
    expect(page.locator("h1:visible")).to_have_text("No such cell")


def test_hostile_names_are_text_in_both_views(url, open_page):
    page = open_page(f"{url}/odd/index.html")
    page.get_by_label("Defense", exact=True).select_option("que%/..#?")
    page.locator(".grid td a").click()
    expect(page.locator("h1:visible")).to_have_text(f"{EVIL} on que%/..#?")
    expect(page.get_by_role("img", name=re.compile("Accuracy of the copy over 2 epochs"))).to_be_visible()
    expect(page.locator(".flags li")).to_have_text(f"{EVIL} Explained: {EVIL}.")
    assert page.locator("img[src], script:not([type])").count() == 0
    assert page.title() != "pwned"
    page.reload()  # its address can be cited
    expect(page.locator("h1:visible")).to_have_text(f"{EVIL} on que%/..#?")


# Opened as a file


def test_a_file_shows_the_overview_and_says_how_to_see_the_rest(folder, open_page):
    page = open_page((folder / "smoke" / "index.html").as_uri())
    (table,) = tables(read_results(folder / "smoke"))
    assert entries(page) == [[row.name, *row.texts()] for row in table.rows]
    page.locator(".grid td a").first.click()
    said = page.get_by_role("status").filter(visible=True)
    expect(said).to_have_count(1)
    expect(said).to_contain_text(f"Run {SERVE} in the folder of this page, and open the page at the address")
    assert said.inner_text().count(". ") == 1  # no full stop after the command
    expect(page.locator(".tile").first).to_contain_text(f"{table.rows[2].texts()[0]} %")
    expect(page.locator("#cell .curve")).to_have_count(0)


# For everybody


def test_all_of_it_by_keyboard_alone(url, open_page):
    page = open_page(f"{url}/accused/index.html")
    page.get_by_label("Text").focus()
    page.keyboard.type("greybox")
    for _ in range(6):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('.grid td') !== null"):
            break
    assert page.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)") >= 2
    page.keyboard.press("Enter")
    expect(page.locator("h1:visible")).to_be_focused()
    expect(page.locator("h1:visible")).to_have_text("greybox_head on queen-sentinel")


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("light", 1280),
        pytest.param("dark", 1280, marks=pytest.mark.long),
        pytest.param("light", 360, marks=pytest.mark.long),
        ("dark", 360),
    ],
)
def test_every_view_is_accessible_fits_and_has_its_colours(url, open_page, scheme, width):
    """With axe's rules; and it leaves pictures to look at in build/view."""
    pictures = ROOT / "build" / "view"
    pictures.mkdir(parents=True, exist_ok=True)
    views = {"smoke": "", "smoke-cell": f"#/{CELL}", "odd": "", "accused": "#submit"}
    for name, address in views.items():
        page = open_page(
            f"{url}/{name.partition('-')[0]}/index.html{address}",
            viewport={"width": width, "height": 800},
            color_scheme=scheme,
        )
        expect(page.locator("main:visible h1")).to_be_visible()
        if address.startswith("#/"):
            expect(page.locator(".curve svg")).to_be_visible()
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth"), name
        assert_accessible(page, name)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(20, 20, 24)" if scheme == "dark" else "rgb(245, 245, 248)"), name
        picture = page.screenshot(path=pictures / f"{name}-{scheme}-{width}.png", full_page=True)
        assert struct.unpack(">I", picture[16:20]) == (width,)
