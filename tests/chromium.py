"""Fixtures that open pages in headless Chromium and say whatever the page said, asked for or tried.

One browser per worker process, one context per test. `ASSAY_CHROMIUM` names the browser; without one the
tests are skipped, and the head of the run says so.
"""

import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


CHROMIUM = Path(os.environ.get("ASSAY_CHROMIUM", "/usr/bin/chromium"))
# Root may not use the sandbox; the rest keeps the browser from talking on its own account.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def _absent() -> str | None:
    """Why no browser can be driven here; None where one can."""
    if not os.access(CHROMIUM, os.X_OK):
        return f"no browser at {CHROMIUM} (Debian: apt install chromium; ASSAY_CHROMIUM names another)"
    try:
        import playwright  # noqa: F401 - only whether it is there
    except ImportError:
        return "Playwright is not installed (pip install playwright)"
    return None


def pytest_report_header() -> str:
    reason = _absent()
    return f"browser: {CHROMIUM}" if reason is None else f"browser: ABSENT, pages are not opened: {reason}"


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser, shared by the tests of a worker."""
    if (reason := _absent()) is not None:
        print(f"SKIPPED: {reason}", file=sys.__stderr__)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        yield browser
        browser.close()
        # The driver ends with its pipe, which a forked process that outlived its test would hold open.
        for process in multiprocessing.active_children():
            process.terminate()
            process.join()


class Visit:
    """One open page and everything that a page should not do.

    Attributes:
        page: Playwright's page.
        said: Errors and warnings of the console, and uncaught exceptions.
        asked: Addresses that were requested.
        dialogs: Texts of alerts and other dialogs.
    """

    def __init__(self, page: Any, folder: Path) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []
        self.dialogs: list[str] = []
        self._folder = folder
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.said.append(f"uncaught: {error}"))
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("requestfailed", lambda request: self.said.append(f"failed: {request.url}"))
        page.on("dialog", self._dialog)

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.said.append(f"{message.type}: {message.text}")

    def _dialog(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def open(self, text: str) -> Any:
        """Write a page to disk and open it as a person would: from a file."""
        place = self._folder / "page.html"
        place.write_text(text, encoding="utf-8")
        return self.open_file(place)

    def open_file(self, place: Path) -> Any:
        """Open a page that is on disk."""
        self.asked.clear()
        self.page.goto(place.as_uri())
        return self.page

    def check(self, *, own: str = "file://") -> None:
        """Nothing said, no dialog, no request but for addresses that begin with `own`; a file asks once."""
        assert self.said == []
        assert self.dialogs == []
        foreign = [each for each in self.asked if not each.startswith((own, "data:"))]
        assert foreign == []
        if own == "file://":
            assert len([each for each in self.asked if not each.startswith("data:")]) == 1, self.asked

    def sideways(self) -> float:
        """By how many CSS pixels the page is wider than the window, once charts have followed its size."""
        script = """() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() =>
            done(document.documentElement.scrollWidth - document.documentElement.clientWidth))))"""
        return float(self.page.evaluate(script))


@pytest.fixture
def visit(chromium: Any, tmp_path: Path) -> Iterator[Visit]:
    """A fresh page, 1280 x 900."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(60_000)
    folder = tmp_path / "visited"
    folder.mkdir()
    yield Visit(context.new_page(), folder)
    context.close()
    shutil.rmtree(folder)


@pytest.fixture
def new_visit(chromium: Any, tmp_path: Path) -> Iterator[Callable[..., Visit]]:
    """`new_visit(**options)`: further pages, each with options of Playwright's `new_context`."""
    contexts = []

    def make(**options: Any) -> Visit:
        context = chromium.new_context(**options)
        context.set_default_timeout(60_000)
        contexts.append(context)
        folder = tmp_path / f"visited{len(contexts)}"
        folder.mkdir()
        return Visit(context.new_page(), folder)

    yield make
    for context in contexts:
        context.close()
