"""A browser, its tabs, and pages to look at."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, Page, sync_playwright

from rredcot_plugin.report.curves import Curve
from rredcot_plugin.report.read_corpus import read_corpus
from rredcot_plugin.report.report_page import render_report
from tests.unit.test_report import record

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


HOSTILE = (
    "</script></style></textarea><script>window.__hacked = 1</script><img src=x onerror='window.__hacked = 2'>"
    "<svg onload='window.__hacked = 3'><a href='javascript:window.__hacked=4'>a</a> \" autofocus onfocus=alert(5) x=\""
    "<iframe srcdoc='<script>parent.__hacked = 6</script>'></iframe><meta http-equiv=refresh content='0;url=x'> "
    "<base href='file:///nowhere/'> \u202e\u2066 $title {{7*7}}"
)


COUNT, SHOWN = ".count", "article.trace:visible"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium of the system, or playwright's own; none fails with a sentence how to get one."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's sandbox does not start for root
        try:
            running = playwright.chromium.launch(executable_path=found, args=arguments)
        except Error as error:
            pytest.fail(
                f"these tests need a browser: `apt-get install chromium`, or `python -m playwright install chromium` "
                f"({error.message.splitlines()[0]})"
            )
        yield running
        running.close()


class Tab:
    """A page and everything that went wrong in it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.trouble: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda said: self.trouble.append(f"console: {said.text}"))
        page.on("pageerror", lambda error: self.trouble.append(f"error: {error}"))
        page.on("requestfailed", lambda request: self.trouble.append(f"failed: {request.url}"))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("dialog", self._dialog)
        page.on("popup", lambda opened: self.trouble.append(f"popup: {opened.url}"))

    def _dialog(self, dialog) -> None:
        self.trouble.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, path: Path, fragment: str = "") -> Page:
        self.page.goto(path.as_uri() + fragment)
        return self.page


@pytest.fixture
def tab(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Tab]:
    """A tab in light colours (or as the parameter says); at the end nothing may have gone wrong in it."""
    options = {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"} | getattr(request, "param", {})
    context = browser.new_context(**options)
    context.set_default_timeout(60_000)
    opened = Tab(context.new_page())
    yield opened
    trouble, requests, address = opened.trouble, opened.requests, opened.page.url.partition("#")[0]
    hacked = opened.page.evaluate("typeof window.__hacked")
    context.close()
    assert trouble == []
    assert {url for url in requests if not url.startswith("data:")} == {address}
    assert hacked == "undefined"


def write_page(folder: Path, lines: Sequence[dict], **options: int) -> Path:
    """A dump through the reader into a page."""
    dump, page = folder / "dump.jsonl", folder / "report.html"
    dump.write_text("".join(json.dumps(line) + "\n" for line in lines))
    curves = [Curve("grpo", (1, 2, 3), (0.1, 0.3, 0.2)), Curve("rredcot", (1, 2, 3), (0.1, 0.2, 0.4))]
    page.write_text(render_report(read_corpus([dump], **options), curves), encoding="utf-8")
    return page


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three prompts at two steps: one mixed and lossy, one all wrong, one all right with hostile text."""
    lines = [
        {**record([0.1, -0.6], step=1, uid="mixed", texts=["first", "apples lost"]), "prompt": "add apples"},
        {**record([0.2, 0.3], step=1, uid="mixed", texts=["first", "pears won"]), "prompt": "add apples"},
        {**record([-0.1, -0.2], step=2, uid="wrong", prior=0.3, texts=["a", "b" + HOSTILE]), "prompt": "subtract"},
        {**record([0.05, 0.05], step=2, uid="right", prior=0.9, texts=[HOSTILE, "d"]), "prompt": HOSTILE},
    ]
    return write_page(tmp_path_factory.mktemp("small"), lines)


def rows(page: Page) -> list[str]:
    return page.locator(".group:visible .prompt").all_text_contents()  # inner_text is empty off the screen
