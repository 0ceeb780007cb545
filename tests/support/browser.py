"""A real browser, what its pages complain about, and whether everybody can use them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright


@contextmanager
def real_browser() -> Iterator[Browser]:
    """Chromium, or the test is skipped."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("needs chromium on the PATH: apt install chromium")
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def is_complaint(message: Any) -> bool:
    """Failed requests are written to the console too, but are no fault of the page."""
    return message.type == "error" and not message.text.startswith("Failed to load resource")


def assert_accessible(page: Page, where: str) -> None:
    """None of axe's rules is broken."""
    result = Axe().run(page, options={"preload": False})  # to load style sheets again is forbidden below file://
    assert result.violations_count == 0, f"{where}: {result.generate_report()}"
