"""The dashboard's files, and the Grafana board beside it: what can be told without a browser."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator

import httpx
import pytest

from queen.ledger.rows import HOMES
from queen.ledger.words import LOW
from queen.serve.telemetry.metrics import Metrics
from tests.support.admin_stub import AdminStub, listening
from tests.support.paths import ROOT
from tests.support.serving import small_guard

FILES = ROOT / "src" / "queen" / "serve" / "admin" / "dashboard"
OWN = sorted(path for path in FILES.glob("*.js") if path.name != "uplot.js")


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> Iterator[str]:
    with listening(AdminStub(small_guard(), tmp_path_factory.mktemp("home")).app()) as address:
        yield address


def test_every_file_comes_with_strict_headers_and_its_type(url):
    types = {
        "html": "text/html",
        "js": "text/javascript",
        "css": "text/css",
        "svg": "image/svg+xml",
        "txt": "text/plain",
    }
    for path in ("", *(f"/{file.name}" for file in FILES.iterdir())):
        reply = httpx.get(f"{url}/dashboard{path}")
        assert reply.status_code == 200, path
        assert reply.headers["content-type"].startswith(types[path.rpartition(".")[2] or "html"])
        policy = reply.headers["content-security-policy"].split("; ")
        assert {"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'"} <= set(policy)
        assert {"base-uri 'none'", "frame-ancestors 'none'", "form-action 'none'"} <= set(policy)
        assert not re.search("unsafe|http|[*]", reply.headers["content-security-policy"])
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert "set-cookie" not in reply.headers


@pytest.mark.parametrize(
    "name", ["..", "../admin.py", "..%2fadmin.py", "%2e%2e%2fadmin.py", "nothing.js", "a/b", "%00"]
)
def test_no_other_file_is_served(url, name):
    reply = httpx.get(f"{url}/dashboard/{name}", follow_redirects=False)
    assert reply.status_code in (307, 404)
    assert "def " not in reply.text


def test_a_slash_too_many_leads_to_the_page(url):
    reply = httpx.get(f"{url}/dashboard/", follow_redirects=True)
    assert (reply.status_code, reply.url.path) == (200, "/dashboard")


def test_a_browser_is_led_from_the_root_to_the_page_and_programs_are_not(url):
    browser = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
    reply = httpx.get(f"{url}/", headers=browser)
    assert (reply.status_code, reply.headers["location"]) == (307, "dashboard")  # also where a proxy adds a prefix
    assert reply.headers["vary"] == "Accept"
    assert httpx.get(f"{url}/", headers=browser, follow_redirects=True).url.path == "/dashboard"
    for accept in ("*/*", "application/json", ""):
        reply = httpx.get(f"{url}/", headers={"Accept": accept})
        assert (reply.status_code, reply.json()) == (404, {"error": "no such page"})


def test_every_word_that_a_view_explains_is_known_and_its_numbers_are_the_codes():
    glossary = (FILES / "words.js").read_text()
    entries = glossary.partition("export const WORDS")[2].partition("\n};")[0]
    known = set(re.findall(r'^  "?([\w-]+)"?: \[', entries, re.MULTILINE))
    views = "".join(file.read_text() for file in OWN if file.name != "words.js")
    lists = re.findall(r"wordLine\(([^)]*)\)", views) + re.findall(r'\bword\(("[\w-]+")', views)
    lists += re.findall(r'about: ("\w+")', views)
    used = set(re.findall(r'"([\w-]+)"', " ".join(lists)))
    assert len(known) > 15
    assert f"{HOMES} times the bar of a client" in glossary
    assert f"{LOW:.0%}".replace("%", " % the class is low") in glossary
    assert {"wealth", "bar", "coverage", "group", "accused", "extra"} <= used <= known


def test_the_page_has_nothing_inline_and_names_only_files_that_exist():
    page = (FILES / "index.html").read_text()
    assert not re.search(r"\sstyle=|\son\w+=|<style|<script(?![^>]*\ssrc=)", page)
    assert re.search(r"\sstyle=|\son\w+=", '<a onclick="x" style="y">')
    named = set(re.findall(r'(?:src|href)="dashboard/([^"]+)"', page))
    assert {"app.js", "style.css", "uplot.js"} <= named <= {file.name for file in FILES.iterdir()}
    for file in OWN:
        imported = re.findall(r'from "\./([^"]+)"', file.read_text())
        assert set(imported) <= {other.name for other in OWN}, file.name


@pytest.mark.parametrize("file", OWN, ids=lambda file: file.name)
def test_own_scripts_never_make_markup_of_text(file):
    text = file.read_text()
    if file.name == "time.js":  # keeps which zone is shown, and knows no key
        assert "key" not in text.lower()
        text = text.replace("localStorage", "")
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(|cookie|localStorage", text
    )
    assert not re.search(r"https?://", text)  # nothing from elsewhere
    assert len(text.splitlines()) < 250


def test_the_vendored_chart_is_the_published_one_with_its_licence():
    digests = {
        "uplot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        "uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    }
    assert {name: hashlib.sha256((FILES / name).read_bytes()).hexdigest() for name in digests} == digests
    assert "v1.6.32" in (FILES / "uplot.js").read_text()[:100]
    assert "MIT License" in (FILES / "uplot.LICENSE.txt").read_text()
    assert sum(file.stat().st_size for file in FILES.iterdir()) < 160_000


def test_grafana_asks_for_metrics_that_exist_and_for_all_of_them():
    board = json.loads((ROOT / "monitoring" / "grafana-dashboard.json").read_text())
    asked = " ".join(target["expr"] for panel in board["panels"] for target in panel.get("targets", []))
    rendered = Metrics().render()[0].decode()
    exposed = set(re.findall(r"^# TYPE (queen_\w+)", rendered, re.MULTILINE))
    histograms = set(re.findall(r"^# TYPE (queen_\w+) histogram", rendered, re.MULTILINE))
    names = set(re.findall(r"queen_\w+", asked))
    assert names <= exposed | {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
    promised = {
        "queen_requests_total", "queen_rows_total", "queen_verdicts_total", "queen_alarmed_rows_total",
        "queen_refused_rows_total", "queen_alarms_total", "queen_request_seconds_bucket", "queen_batch_rows_sum",
        "queen_model_seconds_bucket", "queen_ledger_seconds_bucket", "queen_queue_rows", "queen_ready",
        "queen_ledger_errors_total", "queen_budgets_total", "queen_unnamed_proxy_requests_total",
    }  # fmt: skip
    assert promised <= names
