"""A browser, a server and pages for the tests of /ui.

Environment: BATON_BIN and BATON_E2E_MODEL as tests/e2e has them; BATON_UI_URL, a server that runs
already; BATON_CHROMIUM, the browser's path; BATON_UI_SHOTS=DIR, where screenshots are kept.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

from baton_server import Server  # noqa: E402

CHROMIUM = os.environ.get("BATON_CHROMIUM") or shutil.which("chromium")


@pytest.fixture(scope="session")
def server():
    """A disaggregated server with two decode workers; None where BATON_UI_URL names another."""
    if "BATON_UI_URL" in os.environ:
        yield None
        return
    with Server("--decode", "2", "--max-context", "4096") as running:
        yield running


@pytest.fixture(scope="session")
def url(server):
    return os.environ.get("BATON_UI_URL") or server.http


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        # Chromium's sandbox does not start for root.
        arguments = ["--no-sandbox"] if os.getuid() == 0 else []
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield chromium
        chromium.close()


@pytest.fixture
def new_page(browser):
    """Opens pages of fresh browsers; an error in a page's script fails the test."""
    contexts, errors = [], []

    def make(width=1280, height=800, **options):
        context = browser.new_context(
            viewport={"width": width, "height": height},
            locale="en-GB",
            timezone_id="UTC",
            **options,
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        return page

    yield make
    for context in contexts:
        context.close()
    assert not errors, errors


@pytest.fixture
def page(new_page, url):
    """The page at /ui on a desktop, once it is connected."""
    opened = new_page()
    opened.goto(url + "/ui")
    opened.wait_for_selector("#status:text-is('ready')")
    return opened
