"""Headless Chromium of this machine; no test waits for a network."""

from __future__ import annotations

import shutil

import pytest
from playwright.sync_api import sync_playwright

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def chromium():
    """The browser; set-up fails where there is none."""
    place = shutil.which("chromium") or shutil.which("chromium-browser")
    assert place, "chromium is not installed; make test-browser installs it when run as root"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=place, args=FLAGS)
        yield browser
        browser.close()


def frames(page) -> None:
    """Wait until the page has drawn what events before this have changed."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


class Visit:
    """A page that was opened, and what it said and asked for since."""

    def __init__(self, browser, path, **context) -> None:
        self.context = browser.new_context(
            **{"viewport": {"width": 1400, "height": 900}, **context}
        )
        self.page = self.context.new_page()
        self.said, self.asked = [], []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.set_default_timeout(30_000)
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-drawn]", state="attached")

    def check(self) -> None:
        """Nothing was said, and nothing but the file was asked for."""
        assert self.said == []
        assert len(self.asked) == 1
        assert self.asked[0].startswith("file:")


@pytest.fixture
def visit(chromium):
    """Open a file, with settings of a browser's context."""
    opened = []

    def _visit(path, **context) -> Visit:
        opened.append(Visit(chromium, path, **context))
        return opened[-1]

    yield _visit
    for each in opened:
        each.context.close()
