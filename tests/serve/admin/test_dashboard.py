"""The dashboard in a real browser, around a real ledger and real keys."""

from __future__ import annotations

import re
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from queen.errors import LedgerError
from queen.ledger import Budget
from queen.serve.admin import accounts, background
from tests.support.admin_stub import (
    HOSTILE,
    IMAGE,
    SCRIPT,
    TURNED,
    AdminStub,
    busy_guard,
    fill,
    listening,
)
from tests.support.browser import assert_accessible, is_complaint, real_browser
from tests.support.paths import ROOT
from tests.support.server import served_in_thread
from tests.support.serving import noise, small_guard
from tests.support.waiting import wait_for

pytestmark = pytest.mark.real

VIEWS = {
    "live": "#/",
    "clients": "#/clients",
    "client": "#/client?name=alice&group=0",
    "accused": "#/client?name=thief-7&group=0",
    "group": "#/client?name=tenant%3A7&group=1",
    "stranger": "#/client?name=nobody&group=0",
    "events": "#/events",
    "policy": "#/policy",
}
SPELLED = "alice\u2039U+202E\u203agnp.exe"  # TURNED, or it would read "alice exe.png"
HURRY = "{ const wait = setTimeout; window.setTimeout = (f, ms, ...more) => wait(f, ms / 10, ...more); }"
# From here on the page asks only when it is told to: nothing on it comes or goes while a test aims at it.
STAND_STILL = """() => {
    for (let id = setTimeout(() => {}); id > 0; id -= 1) clearTimeout(id);
    window.setTimeout = () => 0;
}"""


@pytest.fixture(scope="module")
def quiet(tmp_path_factory) -> Iterator[SimpleNamespace]:
    """A stub that tests only look at, and its address."""
    stub = AdminStub(busy_guard(), tmp_path_factory.mktemp("home"))
    stub.keys.add("thief-7", groups=("tenant:7",))
    fill(stub.series)
    with listening(stub.app()) as url:
        yield SimpleNamespace(stub=stub, url=url)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with real_browser() as browser:
        yield browser


@pytest.fixture
def new_page(browser) -> Iterator[Callable[..., Page]]:
    """Makes pages; whatever a script or the content policy complains about fails the test.

    A page in a `hurry` asks the server ten times as often as it would.
    """
    contexts, complaints = [], []

    def make(url: str, *, hurry: bool = False, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_default_timeout(60_000)
        contexts.append(context)
        if hurry:
            context.add_init_script(HURRY)
        page = context.new_page()
        page.complaints = complaints
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if is_complaint(message) else None)
        page.goto(f"{url}/dashboard")
        return page

    yield make
    for context in contexts:
        assert context.cookies() == []
        context.close()
    assert complaints == []


def log_in(page: Page, key: str) -> Page:
    page.get_by_label("Admin key").fill(key)
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Live")
    return page


def go(page: Page, address: str) -> None:
    """Show a view and wait until the server has answered."""
    page.evaluate(
        """address => new Promise((done) => {
            addEventListener("hashchange", () => setTimeout(done), { once: true });
            location.hash = `${address}${address.includes("?") ? "&" : "?"}again=${Math.random()}`;
        })""",
        address,
    )
    expect(page.locator("main:not([aria-busy])")).to_be_visible()


@pytest.fixture
def url(listener, stub) -> str:
    listener.app = stub.app()
    return listener.url


def test_the_complaints_of_the_content_policy_are_heard(quiet, new_page):
    page = new_page(quiet.url)
    page.evaluate(
        "() => { const s = document.createElement('script'); try { s.textContent = 'document.title=1' } catch {}"
        " document.body.append(s); document.body.setAttribute('style', 'color: red') }"
    )
    page.wait_for_timeout(200)
    assert any("Content Security Policy" in text or "TrustedScript" in text for text in page.complaints)
    assert page.title() == "QUEEN dashboard"
    page.complaints.clear()


def test_a_wrong_key_is_told_and_opens_nothing(stub, url, new_page):
    page = new_page(url)
    unknown = "does not know this key"
    wrong = {stub.admin_key[:-4] + "AAAA": unknown, stub.plain_key: "no admin key", "x": unknown, "ключ": unknown}
    for text, message in wrong.items():
        page.get_by_label("Admin key").fill(text)
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text(message)
        expect(page.get_by_label("Admin key")).to_be_focused()
        expect(page.get_by_role("navigation")).to_be_hidden()
    log_in(page, stub.admin_key)


def test_the_key_is_kept_only_if_wanted_and_forgotten_when_locked(stub, url, new_page):
    page = log_in(new_page(url), stub.admin_key)
    assert page.evaluate("[sessionStorage.length, localStorage.length]") == [0, 0]
    page.reload()
    expect(page.get_by_label("Admin key")).to_be_visible()
    page.get_by_label("Keep the key until this tab is closed").check()
    log_in(page, stub.admin_key)
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("Live")
    page.get_by_role("button", name="Lock").click()
    expect(page.get_by_label("Admin key")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


def test_tables_rank_and_search(quiet, new_page):
    page = log_in(new_page(quiet.url), quiet.stub.admin_key)
    page.get_by_role("link", name="Clients", exact=True).click()
    headers = page.locator("tbody th")
    expect(headers).to_have_count(13)
    expect(headers.first).to_have_text("thief-7")
    every = quiet.stub.guard.ledger.standings()
    page.get_by_role("button", name="Queries").click()
    expect(headers.first).to_contain_text(max(every, key=lambda s: s.queries).name)
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Queries")
    page.locator(".choice").get_by_role("button", name="Coverage").click()
    expect(headers.first).to_contain_text(max(every, key=lambda s: max(s.coverage.values(), default=0)).name)
    page.get_by_label("Search").fill("exampl")
    expect(headers).to_have_count(1)
    expect(headers).to_have_text("bob@example.org")
    page.get_by_label("Search").fill("nobody of this name")
    expect(page.get_by_text("No name contains this.")).to_be_visible()


def test_hostile_names_are_text(quiet, new_page):
    page = log_in(new_page(quiet.url), quiet.stub.admin_key)
    go(page, VIEWS["clients"])
    shown = page.locator("tbody th .name").all_text_contents()
    plain = [name for name in HOSTILE if name != TURNED]
    assert set(plain) <= set(shown)
    assert SPELLED in shown
    for name in HOSTILE:
        page.locator("tbody th a").nth(shown.index(SPELLED if name == TURNED else name)).click()
        expect(page.locator("h1")).to_have_text(SPELLED if name == TURNED else re.compile(re.escape(name.strip())))
        expect(page.get_by_text("judged")).to_be_visible()  # the server knows it by that name
        page.get_by_role("link", name="Clients", exact=True).click()
        expect(page.locator("tbody th")).to_have_count(13)
    assert page.title() != "pwned"
    assert page.locator("script").count() == 2
    assert page.locator("img[src=x], main script").count() == 0
    assert {SCRIPT, IMAGE} <= set(shown)


def test_one_client_is_shown_with_its_classes_and_map(quiet, new_page):
    page = log_in(new_page(quiet.url), quiet.stub.admin_key)
    go(page, VIEWS["client"])
    coverage = quiet.stub.guard.ledger.coverage("alice")
    bars = page.locator(".bars button")
    expect(bars).to_have_count(len(coverage))
    records = quiet.stub.guard.ledger.records("alice")
    for index in (0, 3):
        bars.nth(index).click()
        expect(bars.nth(index)).to_have_attribute("aria-pressed", "true")
        label = sorted(coverage, key=lambda k: (-coverage[k], k))[index]
        name = quiet.stub.guard.bundle.name_of(label)
        map_of_it = page.get_by_role("img", name=re.compile(f"Class {re.escape(name)}: {len(records[label])} recorded"))
        expect(map_of_it).to_be_visible()
        assert colours(page, "canvas.map") > 4
    go(page, VIEWS["group"])
    expect(page.get_by_text("A map shows one client")).to_be_visible()
    expect(page.locator("canvas.map")).to_be_hidden()  # an empty disc would say that nothing was seen
    expect(page.get_by_role("button", name="Allow-list")).to_have_count(0)
    go(page, VIEWS["stranger"])
    expect(page.get_by_text("Never seen")).to_be_visible()
    expect(page.get_by_role("button", name="Pardon")).to_be_disabled()


def colours(page: Page, selector: str) -> int:
    return page.eval_on_selector(
        selector,
        "c => new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size",
    )


def test_pardon_asks_first_and_changes_the_ledger(stub, url, new_page):
    page = log_in(new_page(url), stub.admin_key)
    go(page, VIEWS["accused"])
    expect(page.locator(".title").get_by_text("Accused")).to_be_visible()
    page.get_by_role("button", name="Pardon").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Pardon thief-7?")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert stub.guard.ledger.standing("thief-7").alarmed  # not confirmed, not done
    page.get_by_role("button", name="Pardon").click()
    dialog.get_by_role("button", name="Pardon").click()
    expect(page.locator(".result.good")).to_contain_text("Pardoned")
    expect(page.locator(".title").get_by_text("Clear")).to_be_visible()
    assert not stub.guard.ledger.standing("thief-7").alarmed
    assert stub.guard.ledger.events()[-1].actor == "olga <admin>"
    expect(page.get_by_text("by olga <admin>").first).to_be_visible()


def test_allow_list_revoke_and_acknowledge(stub, url, new_page):
    stub.keys.add("thief-7")
    page = log_in(new_page(url), stub.admin_key)
    go(page, VIEWS["accused"])
    dialog = page.get_by_role("dialog")
    page.get_by_role("button", name="Allow-list").click()
    dialog.get_by_role("button", name="Allow-list").click()
    expect(page.locator(".title").get_by_text("Allow-listed")).to_be_visible()
    assert stub.guard.ledger.standing("thief-7").allowed
    page.get_by_role("button", name="Take off the allow-list").click()
    dialog.get_by_role("button", name="Take off").click()
    expect(page.locator(".result.good")).to_contain_text("Taken off")
    assert not stub.guard.ledger.standing("thief-7").allowed
    page.get_by_role("button", name="Revoke key", exact=True).click()
    dialog.get_by_role("button", name="Revoke").click()
    expect(page.locator(".result.good")).to_contain_text("Revoked 1 key")
    expect(page.get_by_role("button", name="Revoke key", exact=True)).to_be_disabled()
    assert [key.active for key in stub.keys.keys().values() if key.name == "thief-7"] == [False]
    go(page, VIEWS["events"])
    buttons = page.get_by_role("button", name="Mark as seen")
    for left in range(4, -1, -1):  # an alarm, and what was noted of budgets
        buttons.last.click()
        expect(buttons).to_have_count(left)
    expect(page.get_by_text("No open notices.")).to_be_visible()
    assert stub.guard.ledger.events()[0].acknowledged == "olga <admin>"
    page.get_by_role("button", name="Everything").click()
    expect(page.locator("tbody tr")).to_have_count(7)


def test_a_client_that_runs_out_of_budget_is_seen(stub, url, new_page):
    stub.guard.ledger.set_budget("alice", Budget(extra_answers=stub.guard.ledger.standing("alice").extra_answers), "op")
    page = log_in(new_page(url), stub.admin_key)
    out = page.locator(".tile", has_text="Out of budget")
    expect(out).to_contain_text("2")
    go(page, VIEWS["clients"])
    expect(page.locator("tr", has_text="alice").first).to_contain_text("Budget spent")
    go(page, VIEWS["client"])
    expect(page.locator(".title .pill", has_text="Budget spent")).to_be_visible()
    expect(page.get_by_text("Budget low").first).to_be_visible()  # in what happened
    go(page, VIEWS["events"])
    expect(page.locator("tbody tr", has_text="Class spent")).to_contain_text("of its disc seen")


def test_a_budget_that_renews_is_given_shown_and_taken_back(stub, url, new_page):
    page = log_in(new_page(url), stub.admin_key)
    go(page, VIEWS["client"])
    card = page.locator("section.card", has=page.get_by_role("heading", name="Budget", exact=True))
    expect(card).to_contain_text("for life")
    card.get_by_label("Extra answers").fill("2000/day")
    card.get_by_label("Threshold of a class").fill("0.5/week")
    card.get_by_role("button", name="Set budget").click()
    expect(page.get_by_role("dialog")).to_contain_text("2,000 per day extra answers and a threshold of 0.5 per week")
    page.get_by_role("dialog").get_by_role("button", name="Set budget").click()
    expect(page.locator(".result.good")).to_contain_text("The budget is set")
    assert stub.guard.ledger.standing("alice").budget == Budget(extra_answers="2000/day", threshold="0.5/week")
    expect(card).to_contain_text("0 of 2,000 per day used, 2,000 left; renews 20")
    expect(card).to_contain_text("0.5 per week of its disc may be seen; renews 20")
    expect(card.get_by_label("Extra answers")).to_have_value("2000/day")
    expect(page.locator(".tile", has_text="Extra answers")).to_contain_text("of 2,000 per day, own budget")
    card.get_by_role("button", name="Usual budget").click()
    page.get_by_role("dialog").get_by_role("button", name="Set budget").click()
    wait_for(lambda: stub.guard.ledger.standing("alice").budget is None)
    expect(card).to_contain_text("for life")


def test_a_threshold_that_nobody_reaches_is_no_budget_and_answers_are_counted_to_the_last(stub, url, new_page):
    stub.guard.ledger.set_budget("alice", Budget(extra_answers="12345/day", threshold=9.0), actor="test")
    page = log_in(new_page(url), stub.admin_key)
    go(page, VIEWS["client"])
    card = page.locator("section.card", has=page.get_by_role("heading", name="Budget", exact=True))
    expect(card).to_contain_text("0 of 12,345 per day used, 12,345 left; renews 20")
    expect(card).to_contain_text("is never spent: answers are counted")
    expect(page.get_by_text("No class is ever spent here")).to_be_visible()
    expect(page.locator(".tile", has_text="Most covered")).to_contain_text("no class is ever spent")


def test_a_budget_that_makes_no_sense_is_refused_with_a_right_one(stub, url, new_page):
    page = log_in(new_page(url), stub.admin_key)
    go(page, VIEWS["client"])
    page.get_by_label("Extra answers").fill("2000/fortnight")
    page.get_by_role("button", name="Set budget").click()
    page.get_by_role("dialog").get_by_role("button", name="Set budget").click()
    expect(page.locator(".result.bad")).to_contain_text('such as "2000/day"')
    assert stub.guard.ledger.standing("alice").budget is None


def test_an_order_that_fails_says_so(stub, url, new_page):
    page = log_in(new_page(url), stub.admin_key)
    go(page, VIEWS["accused"])
    page.get_by_role("button", name="Pardon").click()
    stub.fails = LedgerError("the disk is full")
    page.get_by_role("dialog").get_by_role("button", name="Pardon").click()
    expect(page.locator(".result.bad")).to_contain_text("Not done: the disk is full")
    assert stub.guard.ledger.standing("thief-7").alarmed


def tab_to(page: Page, wanted: str) -> None:
    """Press Tab until the focus is on what has this text, and see that it is visible where it is."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == wanted:
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
            assert float(outline.removesuffix("px")) >= 2, f"the focus on {wanted} cannot be seen"
            return
    raise AssertionError(f"no way to '{wanted}' by keyboard")


def test_all_of_it_by_keyboard_alone(stub, url, new_page):
    page = new_page(url)
    expect(page.get_by_label("Admin key")).to_be_focused()
    page.keyboard.type(stub.admin_key)
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Live")
    page.keyboard.press("Shift+Tab")  # the focus went to the heading; what precedes it is the navigation
    tab_to_back(page, "Clients")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Clients")
    expect(page.locator("tbody th")).to_have_count(13)
    tab_to(page, "thief-7")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("thief-7")
    expect(page.get_by_role("button", name="Pardon")).to_be_visible()
    tab_to(page, "Pardon")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    tab_to(page, "Pardon")
    page.keyboard.press("Space")
    expect(page.locator(".result.good")).to_contain_text("Pardoned")
    expect(page.get_by_role("button", name="Pardon")).to_be_focused()
    assert not stub.guard.ledger.standing("thief-7").alarmed


def tab_to_back(page: Page, wanted: str) -> None:
    for _ in range(10):
        if page.evaluate("document.activeElement.textContent.trim()") == wanted:
            return
        page.keyboard.press("Shift+Tab")
    raise AssertionError(f"no way back to '{wanted}'")


def test_the_focus_survives_what_the_server_says_meanwhile(stub, url, new_page):
    page = log_in(new_page(url, hurry=True), stub.admin_key)
    go(page, VIEWS["clients"])
    link = page.get_by_role("link", name="bob@example.org")
    link.focus()
    stub.guard.ledger.allow("bob@example.org", "test")
    expect(page.locator("tr", has=link).get_by_text("Allow-listed")).to_be_visible()
    expect(link).to_be_focused()


CUT_OFF = """[...document.querySelectorAll("main .card, main td, main th, main .tile")]
    .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent)"""


@pytest.mark.parametrize("width", [360, 768, 961])
def test_nothing_is_wider_than_a_small_screen(quiet, new_page, width):
    page = new_page(quiet.url, viewport={"width": width, "height": 740}, has_touch=True)
    too_wide = "document.documentElement.scrollWidth > innerWidth"
    assert not page.evaluate(too_wide)
    log_in(page, quiet.stub.admin_key)
    for name, address in {**VIEWS, "long": f"#/client?name={'x' * 256}&group=0"}.items():
        go(page, address)
        assert not page.evaluate(too_wide), name
        assert page.evaluate(CUT_OFF) == [], name
    page.evaluate("document.querySelector('main').append(document.createElement('pre'))")
    page.evaluate("p = document.querySelector('pre'), p.textContent = 'x'.repeat(999), p.style.overflowWrap = 'normal'")
    assert page.evaluate(too_wide)  # it can be told


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("light", 1280),
        ("dark", 360),
        pytest.param("dark", 1280, marks=pytest.mark.long),
        pytest.param("light", 360, marks=pytest.mark.long),
    ],
)
def test_every_view_is_accessible_and_in_its_colours(quiet, new_page, scheme, width):
    """With axe's rules; and it leaves pictures to look at in build/dashboard."""
    folder = ROOT / "build" / "dashboard"
    folder.mkdir(parents=True, exist_ok=True)
    page = new_page(quiet.url, viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert_accessible(page, "login")
    page.get_by_label("Admin key").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("does not know")
    assert_accessible(page, "wrong key")
    log_in(page, quiet.stub.admin_key)
    for name, address in VIEWS.items():
        go(page, address)
        assert_accessible(page, name)
        picture = page.screenshot(path=folder / f"{name}-{scheme}-{width}.png", full_page=True)
        assert struct.unpack(">I", picture[16:20]) == (width,)
        assert len(picture) > 8_000
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(13, 16, 23)" if scheme == "dark" else "rgb(244, 245, 247)"), name
    go(page, VIEWS["accused"])
    page.get_by_role("button", name="Pardon").click()
    assert_accessible(page, "dialog")


def test_axe_would_have_something_to_say(quiet, new_page):
    page = new_page(quiet.url)
    page.evaluate("document.querySelector('label[for=key]').remove()")
    assert Axe().run(page).violations_count > 0


def test_live_figures_follow_the_server(stub, url, new_page):
    stub.series._since -= 900  # it runs for long
    page = log_in(new_page(url, hurry=True), stub.admin_key)
    tile = page.locator(".tile", has_text="Queries").locator("b")
    expect(tile).to_have_text("0")
    with trickle(stub):
        expect(tile).not_to_have_text("0")
        expect(page.get_by_role("img", name=re.compile(r"Verdicts: [\d,]+ queries in 5 min; C 100 %"))).to_be_visible()
    page.get_by_role("button", name="1 min", exact=True).click()
    expect(page.get_by_role("img", name=re.compile("Verdicts: .* in 60 s"))).to_be_visible()
    assert colours(page, ".plot canvas") > 4
    stub.ready = False
    expect(page.get_by_text("Not ready")).to_be_visible()


def test_a_chart_has_a_gap_where_nothing_is_known_and_is_zero_where_nothing_happened(stub, url, new_page):
    stub.series._since -= 60
    page = log_in(new_page(url, hurry=True), stub.admin_key)
    expect(page.get_by_role("img", name=re.compile("Traffic: 0 requests, .* in (?!5 min)"))).to_be_visible()
    assert [is_drawn(page, third) for third in range(3)] == [False, False, True]
    stub.series._since -= 900
    expect(page.get_by_role("img", name=re.compile("Traffic: 0 requests, .* in 5 min"))).to_be_visible()
    assert [is_drawn(page, third) for third in range(3)] == [True, True, True]


def is_drawn(page: Page, third: int) -> bool:
    """Whether there is a line in this third of the traffic chart: something darker than its grid, above the axis."""
    return page.evaluate(
        """third => {
            const c = document.querySelectorAll(".plot canvas")[1], width = c.width - 70;
            const [left, above] = [46 + (third * width) / 3, c.height - 22];
            const part = c.getContext("2d").getImageData(left, 0, width / 3 - 1, above).data;
            for (let i = 0; i < part.length; i += 4)
                if (part[i + 3] > 200 && part[i] + part[i + 1] + part[i + 2] < 400) return true;
            return false;
        }""",
        third,
    )


def test_words_explain_themselves_by_keyboard(quiet, new_page):
    page = log_in(new_page(quiet.url, hurry=True), quiet.stub.admin_key)
    tab_to(page, "Accused")
    page.keyboard.press("Enter")
    box = page.get_by_role("dialog", name="Accused")
    expect(box).to_contain_text("This is evidence, but no proof")
    expect(box).to_be_focused()
    with page.expect_response(re.compile("/admin/events")):  # what the server says closes nothing
        pass
    page.keyboard.press("Tab")
    expect(box.get_by_role("button", name="Close")).to_be_focused()
    assert_accessible(page, "explanation")
    page.keyboard.press("Tab")
    expect(box).to_be_hidden()
    word = page.get_by_role("button", name="Accused")
    expect(word).to_be_focused()
    expect(word).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("Space")
    expect(box).to_be_visible()
    page.keyboard.press("Escape")
    expect(box).to_be_hidden()
    expect(word).to_be_focused()


def test_words_explain_themselves_by_touch_and_fit_the_screen(quiet, new_page):
    page = new_page(quiet.url, viewport={"width": 360, "height": 740}, has_touch=True)
    log_in(page, quiet.stub.admin_key)
    go(page, VIEWS["clients"])
    words = page.locator(".words button")
    box = page.get_by_role("dialog")
    for at in range(words.count()):
        words.nth(at).tap()
        expect(box.get_by_role("heading")).to_have_text(words.nth(at).text_content())
        left, right = box.evaluate("e => [e.getBoundingClientRect().left, e.getBoundingClientRect().right]")
        assert 0 <= left < right <= 360
        words.nth(at).tap()
        expect(box).to_be_hidden()
    words.first.tap()
    expect(box).to_be_visible()
    page.get_by_role("heading", level=1).tap()
    expect(box).to_be_hidden()
    words.first.tap()
    go(page, VIEWS["policy"])
    expect(box).to_be_hidden()
    expect(page.get_by_text("If the bar is 10,000, the strip is half full at 100")).to_be_visible()  # all are here


def test_times_name_their_zone_and_the_choice_of_utc_is_remembered(quiet, new_page):
    page = log_in(new_page(quiet.url, timezone_id="Asia/Kolkata"), quiet.stub.admin_key)
    [event] = [event for event in quiet.stub.guard.ledger.events() if event.name == "thief-7"]
    at = datetime.fromtimestamp(event.at, UTC)
    here = (at + timedelta(hours=5, minutes=30)).strftime("%Y-%m-%d %H:%M:%S UTC+05:30")
    there = at.strftime("%Y-%m-%d %H:%M:%S UTC")
    for name in ("live", "accused", "events"):
        go(page, VIEWS[name])
        expect(page.locator("main time", has_text=here).first).to_be_visible()
    page.get_by_role("button", name="UTC", exact=True).click()
    expect(page.locator("main time", has_text=there).first).to_be_visible()
    expect(page.locator("main time", has_text="+05:30")).to_have_count(0)
    page.goto(f"{quiet.url}/dashboard")
    page.reload()
    log_in(page, quiet.stub.admin_key)
    expect(page.locator(".chart .at").first).to_have_text("times in UTC")
    expect(page.locator("main time", has_text=there).first).to_be_visible()
    assert page.evaluate("Object.entries(localStorage)") == [["queen-times", "utc"]]
    page.get_by_role("button", name="Local", exact=True).click()
    expect(page.locator(".chart .at").first).to_have_text("times in UTC+05:30")


def test_all_notices_are_marked_as_seen_at_once_if_that_is_confirmed(stub, url, new_page):
    page = log_in(new_page(url), stub.admin_key)
    go(page, VIEWS["events"])
    page.get_by_role("button", name="Mark all as seen").click()
    expect(page.get_by_role("dialog")).to_contain_text("Mark 5 open notices as seen?")
    page.get_by_role("dialog").get_by_role("button", name="Mark all").click()
    expect(page.locator(".result.good")).to_contain_text("5 notices are marked as seen.")
    expect(page.get_by_text("No open notices.")).to_be_visible()
    assert {event.acknowledged for event in stub.guard.ledger.events()} == {"olga <admin>"}


def test_a_key_that_is_revoked_closes_what_it_had_opened(stub, url, new_page):
    page = log_in(new_page(url, hurry=True), stub.admin_key)
    go(page, VIEWS["accused"])
    page.get_by_role("button", name="Pardon").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    stub.keys.revoke("olga <admin>")
    expect(page.get_by_role("alert")).to_contain_text("or it was revoked. Make another with")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.get_by_label("Admin key")).to_be_focused()


@contextmanager
def trickle(stub: AdminStub) -> Iterator[None]:
    """Counts as if requests came for the next seconds."""
    now, real = stub.series._clock(), stub.series._clock
    for ahead in range(30):
        stub.series._clock = lambda ahead=ahead: now + ahead
        stub.series.request(0.004)
        stub.series.batch(10, {"C": 10})
    stub.series._clock = real
    yield


def test_a_server_that_goes_and_comes_back(stub, new_page):
    with listening(stub.app()) as url:
        page = log_in(new_page(url, hurry=True), stub.admin_key)
        expect(page.locator(".tile").first).to_be_visible()
    banner = page.locator("#banner")
    expect(banner).to_contain_text("The server does not answer. Check that it runs")
    expect(page.locator("#ready")).to_have_text("▲ No answer")
    expect(banner).to_contain_text("What you see is from")
    page.evaluate(STAND_STILL)
    try_now = page.get_by_role("button", name="Try now")
    with page.expect_event("requestfailed"):
        try_now.click()
    with listening(stub.app(), int(url.rpartition(":")[2])):
        try_now.click()
        expect(banner).to_be_hidden()
        page.reload()
        log_in(page, stub.admin_key)
        stub.fails = LedgerError("the ledger is locked")
        expect(banner).to_contain_text("the ledger is locked")
        stub.fails = None
        expect(banner).to_be_hidden()
        stub.keys.revoke("olga <admin>")
        expect(page.get_by_role("alert")).to_contain_text("revoked")
        expect(page.get_by_role("navigation")).to_be_hidden()


def test_the_policy_says_what_the_budget_buys(quiet, new_page):
    page = log_in(new_page(quiet.url), quiet.stub.admin_key)
    go(page, VIEWS["policy"])
    card = page.locator("section", has=page.get_by_role("heading", name="What a copy costs"))
    expect(card).to_contain_text("one client can buy a copy of")
    expect(card).to_contain_text("10 accounts buy")
    expect(card).to_contain_text("reference students, not proved")


def test_a_server_that_nobody_has_asked_yet(listener, tmp_path, new_page):
    stub = AdminStub(small_guard(policy="paper"), tmp_path)
    listener.app = stub.app()
    page = log_in(new_page(listener.url), stub.admin_key)
    expect(page.get_by_text("Nobody has asked yet.")).to_be_visible()
    expect(page.get_by_text("No open notices.")).to_be_visible()
    go(page, VIEWS["clients"])
    expect(page.get_by_text("Clients appear here with their first query.")).to_be_visible()
    go(page, VIEWS["events"])
    expect(page.get_by_text("No open notices.")).to_be_visible()
    go(page, VIEWS["policy"])
    expect(page.get_by_text("No groups are set up")).to_be_visible()
    expect(page.get_by_text("What a copy costs")).to_be_hidden()  # it was not measured
    assert_accessible(page, "empty")


def test_without_a_sentinel_clients_are_ranked_by_coverage_and_have_no_extra_answers(listener, tmp_path, new_page):
    stub = AdminStub(busy_guard(policy="paper", groups={}), tmp_path)
    listener.app = stub.app()
    page = log_in(new_page(listener.url), stub.admin_key)
    expect(page.get_by_role("heading", name="Most covered")).to_be_visible()
    most = max(stub.guard.ledger.standings(), key=lambda s: max(s.coverage.values(), default=0)).name
    expect(page.locator(".list .name").first).to_have_text(most)
    go(page, VIEWS["clients"])
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Coverage")
    expect(page.locator("tbody th").first).to_have_text(most)
    go(page, VIEWS["client"])
    expect(page.get_by_label("Threshold of a class")).to_be_visible()
    expect(page.get_by_label("Extra answers")).to_be_hidden()


def test_a_guard_that_observes_says_when_its_answers_begin(listener, tmp_path, new_page):
    stub = AdminStub(busy_guard(observe=True), tmp_path)
    listener.app = stub.app()
    page = log_in(new_page(listener.url), stub.admin_key)
    go(page, VIEWS["policy"])
    expect(page.get_by_text("The answers named below begin when it no longer observes")).to_be_visible()


def test_with_very_many_clients_the_page_says_what_it_does_not_know(listener, stub, new_page, monkeypatch):
    gate, real = threading.Event(), stub.guard.ledger.each_standing
    monkeypatch.setattr(stub.guard.ledger, "each_standing", lambda: gate.wait(60) and real())
    monkeypatch.setattr(accounts, "MAX_ACCOUNTS", 4)
    monkeypatch.setattr(accounts, "MAX_RANKED", 2)
    monkeypatch.setattr(background, "PATIENCE", 0.05)
    listener.app = stub.app()
    page = log_in(new_page(listener.url, hurry=True), stub.admin_key)
    expect(page.get_by_text("being counted")).to_be_visible()
    expect(page.get_by_text("The ledger is being read.")).to_be_visible()
    go(page, VIEWS["clients"])
    expect(page.get_by_text("The ledger is being read; with very many clients")).to_be_visible()
    gate.set()
    expect(page.locator("tbody th").first).to_have_text("thief-7")
    expect(page.get_by_text("of 13 shown, by wealth. There are too many to search by parts")).to_be_visible()
    page.get_by_label("Search").fill(IMAGE)
    expect(page.locator("tbody th")).to_have_count(1)
    expect(page.locator("tbody th")).to_have_text(IMAGE)


def test_nothing_moves_for_those_who_do_not_want_it(quiet, new_page):
    page = log_in(new_page(quiet.url), quiet.stub.admin_key)
    go(page, VIEWS["clients"])
    for choice, duration in (("reduce", "0s"), ("no-preference", "0.4s")):
        page.emulate_media(reduced_motion=choice)
        assert page.eval_on_selector(".meter i", "e => getComputedStyle(e).transitionDuration") == duration


def test_the_real_server_shows_who_asked_it(tmp_path, new_page):
    with served_in_thread(tmp_path, on_alarm="decoy", ledger=f"sqlite:///{tmp_path / 'ledger.sqlite'}") as server:
        tensor = {"name": "input", "datatype": "FP32", "shape": [150, 1, 8, 8], "data": noise().flatten().tolist()}
        ask_url = f"{server.url}/v2/models/digits/infer"
        assert httpx.post(ask_url, json={"inputs": [tensor]}, headers=server.bearer, timeout=60).status_code == 200
        page = log_in(new_page(server.url), server.admin)
        expect(page.locator(".tile", has_text="Accused").locator("b")).to_have_text("1")
        expect(page.get_by_role("img", name=re.compile("Verdicts: 150 queries"))).to_be_visible()
        go(page, VIEWS["client"])
        expect(page.locator(".title").get_by_text("Accused")).to_be_visible()
        page.get_by_role("button", name="Pardon").click()
        page.get_by_role("dialog").get_by_role("button", name="Pardon").click()
        expect(page.locator(".result.good")).to_contain_text("Pardoned")
        page.get_by_role("button", name="Revoke key", exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        expect(page.locator(".result.good")).to_contain_text("Revoked 1 key")
        wait_for(lambda: httpx.post(ask_url, json={}, headers=server.bearer, timeout=60).status_code == 401)


def test_advice_is_shown_as_text(stub, url, new_page):
    stub.advice.append(f"requests from 10.0.0.5 say that they were forwarded {IMAGE}")
    page = log_in(new_page(url, hurry=True), stub.admin_key)
    expect(page.get_by_role("heading", name="Advice")).to_be_visible()
    expect(page.get_by_text("requests from 10.0.0.5 say that they were forwarded <img")).to_be_visible()
    stub.advice.clear()
    expect(page.get_by_role("heading", name="Advice")).not_to_be_visible()
