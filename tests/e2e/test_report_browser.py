"""The report's page in a real browser, opened from a file: filters, keyboard, colours, and model text that attacks."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from playwright.sync_api import Browser, Error, Page, expect, sync_playwright

from rredcot_plugin.report.curves import Curve
from rredcot_plugin.report.read_corpus import read_corpus
from rredcot_plugin.report.report_page import render_report
from tests.unit.test_report import record

pytestmark = pytest.mark.e2e

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


def expect_first(page: Page, *prompts: str) -> None:
    """Waits: the page sorts and filters a moment after the control was touched."""
    for place, prompt in enumerate(prompts):
        expect(page.locator(".group:visible .prompt").nth(place)).to_have_text(prompt)


def test_filters_show_what_they_say(tab: Tab, small: Path) -> None:
    page = tab.open(small)
    expect(page.locator(COUNT)).to_have_text("4 of 4 traces")
    page.select_option("[name=outcome]", "wrong")
    expect(page.locator(COUNT)).to_have_text("2 of 4 traces")
    assert page.locator(SHOWN).evaluate_all("cards => cards.map((c) => c.dataset.outcome)") == ["wrong", "wrong"]
    page.select_option("[name=step]", "2")
    expect(page.locator(COUNT)).to_have_text("1 of 4 traces")
    assert rows(page) == ["subtract"]
    page.click("[name=reset]")
    page.check("[name=mixed]")
    expect(page.locator(COUNT)).to_have_text("2 of 4 traces")
    assert rows(page) == ["add apples"]
    page.uncheck("[name=mixed]")
    page.locator("[name=loss]").fill("0.18")
    expect(page.locator(COUNT)).to_have_text("2 of 4 traces")
    expect(page.locator("[name=least]")).to_have_text("0.18")
    page.locator("[name=loss]").fill("0.6")
    page.select_option("[name=outcome]", "right")
    expect(page.locator(COUNT)).to_have_text("0 of 4 traces")
    assert page.locator(".empty").is_visible()


def test_search_reads_prompts_and_responses_as_text(tab: Tab, small: Path) -> None:
    page = tab.open(small)
    for query, count in [
        ("PEARS won", 1),
        ("add apples", 2),
        ("<script>window.__hacked", 2),
        ("show all", 0),
        (" ", 4),
    ]:
        page.fill("[name=q]", query)
        expect(page.locator(COUNT)).to_have_text(f"{count} of 4 traces")


def test_order_of_prompts(tab: Tab, small: Path) -> None:
    page = tab.open(small)
    expect_first(page, "add apples", "subtract")  # worst loss first
    page.select_option("[name=sort]", "reward")
    expect_first(page, "subtract", "add apples")
    page.select_option("[name=sort]", "step")
    expect_first(page, "add apples")
    page.select_option("[name=sort]", "")
    expect_first(page, "add apples", "subtract")


def test_a_view_is_kept_in_the_address(tab: Tab, small: Path) -> None:
    page = tab.open(small)
    page.select_option("[name=outcome]", "right")
    page.fill("[name=q]", "pears & <b>")
    page.fill("[name=q]", "pears")
    expect(page.locator(COUNT)).to_have_text("1 of 4 traces")
    page.click("#theme")
    fragment = page.evaluate("location.hash")
    page.goto("about:blank")
    tab.requests.clear()
    page = tab.open(small, fragment)
    expect(page.locator(COUNT)).to_have_text("1 of 4 traces")
    assert page.input_value("[name=q]") == "pears"
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_hostile_addresses_change_nothing(tab: Tab, small: Path) -> None:
    page = tab.open(small, "#outcome=%3Cscript%3E&step=x&loss=abc&sort=__proto__&theme=%22onload&q=&mixed=7")
    expect(page.locator(COUNT)).to_have_text("4 of 4 traces")
    assert page.get_attribute("html", "data-theme") is None


def test_selecting_a_segment_marks_its_stretch_and_shows_its_numbers(tab: Tab, small: Path) -> None:
    page = tab.open(small)
    card = page.locator(SHOWN).first
    expect(card.locator("li.worst")).to_contain_text("lost most here")
    card.locator("li").nth(1).locator(".text").click()
    assert card.locator(".stretch.on").count() == 1
    assert card.locator(".stretch").nth(1).get_attribute("class") == "stretch neg on"
    assert card.locator(".detail").inner_text().startswith("segment 2 of 2, 3 tokens:")
    card.locator(".area").first.click()
    assert card.locator("li").first.get_attribute("class") == "pos on"
    assert card.locator(".detail").inner_text().startswith("segment 1 of 2, 3 tokens:")


def test_the_keyboard_reaches_every_segment(tab: Tab, small: Path) -> None:
    page = tab.open(small)
    card = page.locator(SHOWN).first
    card.locator("button.credit").first.focus()
    page.keyboard.press("ArrowDown")
    assert card.locator("button.credit").nth(1).evaluate("button => button === document.activeElement")
    assert card.locator(".detail").inner_text().startswith("segment 2 of 2")
    page.keyboard.press("Enter")
    assert card.locator("button.credit").nth(1).get_attribute("aria-pressed") == "true"
    assert card.locator(".area").nth(1).get_attribute("class") == "area on"


def pixels(page: Page) -> np.ndarray:
    """What is on the screen, (height, width, 3) in [0, 1]."""
    return imread(BytesIO(page.screenshot()), format="png")[..., :3]


def test_light_and_dark_are_both_pictures_and_differ(tab: Tab, small: Path) -> None:
    page = tab.open(small)
    light = pixels(page)
    page.click("#theme")
    dark = pixels(page)
    for shot in (light, dark):
        assert len(np.unique((shot * 255).astype(int).reshape(-1, 3), axis=0)) > 100
        assert shot.std() > 0.03
    assert np.median(light) > 0.8
    assert np.median(dark) < 0.2
    assert page.inner_text("#theme") == "light colours"


@pytest.mark.parametrize("tab", [{"color_scheme": "dark"}], indirect=True)
def test_dark_is_the_default_where_the_system_is_dark(tab: Tab, small: Path) -> None:
    assert np.median(pixels(tab.open(small))) < 0.2


@pytest.mark.parametrize("tab", [{"viewport": {"width": 420, "height": 900}}], indirect=True)
def test_a_narrow_screen_does_not_scroll_sideways(tab: Tab, small: Path) -> None:
    page = tab.open(small)
    assert page.evaluate("document.documentElement.scrollWidth") <= 420


@pytest.mark.parametrize("tab", [{"java_script_enabled": False}], indirect=True)
def test_without_scripts_everything_is_there_and_nothing_dead(tab: Tab, small: Path) -> None:
    page = tab.open(small)
    assert page.locator(SHOWN).count() == 4
    assert page.locator("svg.plot").count() >= 5
    assert not page.locator(".filters").is_visible()
    assert not page.locator("#theme").is_visible()
    page.locator("li.worst button.credit").first.focus()
    assert page.locator("li.worst .numbers").first.is_visible()


def long_lines(prompts: int, per_prompt: int) -> list[dict]:
    """Traces of 16 segments with 12 kB of text, every third of them right."""
    draw = random.Random(0)
    words = [f"{word}{i}" for i in range(50) for word in ("so", "then", "x", "check")]
    lines = []
    for prompt in range(prompts):
        for i in range(per_prompt):
            texts = [" ".join(draw.choices(words, k=150)) + "\n" for _ in range(16)]
            credits = [draw.uniform(-0.02, 0.02) for _ in texts]
            credits[9] += (1.0 if i == 2 else 0.0) - 0.5 - sum(credits)
            lines.append(
                {**record(credits, step=prompt % 5, uid=str(prompt), texts=texts), "prompt": f"problem {prompt}."}
            )
    return lines


def test_three_hundred_long_traces_open_and_filter(tab: Tab, tmp_path: Path) -> None:
    page = tab.open(write_page(tmp_path, long_lines(100, 3), max_traces=300, max_bytes=2**30))
    expect(page.locator(COUNT)).to_have_text("300 of 300 traces")
    page.fill("[name=q]", "problem 66.")
    expect(page.locator(COUNT)).to_have_text("3 of 300 traces", timeout=60_000)
    assert rows(page) == ["problem 66."]
    page.click("[name=reset]")
    page.select_option("[name=outcome]", "right")
    expect(page.locator(COUNT)).to_have_text("100 of 300 traces")
    card = page.locator(SHOWN).first
    summary = card.locator("summary").first
    before = card.locator(".text").first.inner_text()
    summary.click()
    assert len(card.locator(".text").first.inner_text()) > len(before) + 100


def test_going_to_the_worst_segment_of_a_long_trace(tab: Tab, tmp_path: Path) -> None:
    page = tab.open(write_page(tmp_path, long_lines(1, 3)))
    card = page.locator(SHOWN).first
    segments = card.locator("ol.segments")
    assert segments.evaluate("list => list.scrollTop") == 0
    card.locator(".go").click()
    assert segments.evaluate("list => list.scrollTop") > 100
    worst, frame = card.locator("li.worst").bounding_box(), segments.bounding_box()
    assert worst and frame and frame["y"] <= worst["y"] < frame["y"] + frame["height"]
    assert card.locator(".stretch").nth(9).get_attribute("class") == "stretch neg on"


def background(page: Page, place: int) -> str:
    return page.locator("ol.segments li").nth(place).evaluate("row => getComputedStyle(row).backgroundColor")


def test_colours_by_advantage_are_chosen_by_keyboard_and_kept_in_the_address(tab: Tab, small: Path) -> None:
    page = tab.open(small)
    lost = page.locator("ol.segments li").nth(1)
    expect(lost.locator(".by-credit")).to_have_text("−0.60")
    by_credit = background(page, 1)
    page.get_by_label("credit δ").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_label("advantage", exact=True)).to_be_checked()
    assert lost.locator(".by-advantage").is_visible()
    assert not lost.locator(".by-credit").is_visible()
    first = background(page, 0)
    assert page.evaluate("location.hash") == "#colour=advantage"
    page.goto("about:blank")
    tab.requests.clear()
    page = tab.open(small, "#colour=advantage")
    assert background(page, 0) == first
    page.get_by_label("credit δ").check()
    assert background(page, 1) == by_credit
    assert page.evaluate("location.hash") == ""


@pytest.mark.parametrize("tab", [{"java_script_enabled": False}], indirect=True)
def test_colours_change_without_scripts(tab: Tab, small: Path) -> None:
    page = tab.open(small)
    page.get_by_label("advantage", exact=True).check()
    assert page.locator("li .by-advantage").first.is_visible()


def test_probed_answers_before_and_after_a_segment(tab: Tab, tmp_path: Path) -> None:
    line = record([0.1, -0.6, 0.1], texts=["a", "b", "c"])
    line["proposals"] = [{"text": HOSTILE, "kind": "group", "utility": 1.0}]
    for segment, probability in zip(line["segments"], (None, 0.9, 0.125), strict=True):
        segment["probabilities"] = [probability]
    page = tab.open(write_page(tmp_path, [line]))
    card = page.locator(SHOWN).first
    assert not card.locator(".why table").is_visible()
    card.locator(".why summary").click()
    expect(card.locator(".why .side")).to_have_text(["before", "after", "0.900", "0.125"])  # the worst segment
    height = card.bounding_box()
    card.locator("button.credit").first.focus()
    expect(card.locator(".why .side")).to_have_text(["before", "after", "n/a", "0.900"])
    page.keyboard.press("End")
    expect(card.locator(".why .side")).to_have_text(["before", "after", "0.125", "–"])
    assert card.bounding_box() == height


@pytest.mark.parametrize("tab", [{}, {"viewport": {"width": 390, "height": 844}}], indirect=True)
def test_heights_are_known_before_traces_are_drawn(tab: Tab, tmp_path: Path) -> None:
    """Twenty-five groups, of which a screen shows one: the page must not grow while one scrolls through it."""
    page = tab.open(write_page(tmp_path, long_lines(25, 8), max_traces=200, max_bytes=2**30))
    before = page.evaluate("document.documentElement.scrollHeight")
    for share in (0.25, 0.5, 0.75, 1.0):
        page.evaluate(f"scrollTo(0, {share} * document.documentElement.scrollHeight)")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    after = page.evaluate("document.documentElement.scrollHeight")
    assert abs(after - before) < 0.05 * before


def test_the_filters_hide_no_heading(tab: Tab, tmp_path: Path) -> None:
    page = tab.open(write_page(tmp_path, long_lines(6, 3)))
    page.evaluate("document.querySelectorAll('.group')[3].scrollIntoView()")
    bar, heading = page.locator(".filters").bounding_box(), page.locator(".prompt").nth(3).bounding_box()
    assert bar and heading and bar["y"] + bar["height"] <= heading["y"]


def test_every_control_has_a_name(tab: Tab, small: Path) -> None:
    page = tab.open(small)
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    controls = {"button", "checkbox", "radio", "combobox", "searchbox", "slider", "DisclosureTriangle", "image"}
    named = [(n["role"]["value"], n.get("name", {}).get("value")) for n in nodes if not n.get("ignored")]
    assert [role for role, name in named if role in controls and not name] == []
    assert [name for role, name in named if role == "slider" and name.startswith("a segment lost at least")]


def test_a_page_that_follows_a_run_loads_itself_again_until_told_not_to(
    tab: Tab, small: Path, tmp_path: Path
) -> None:
    page_file = tmp_path / "live.html"
    corpus = read_corpus([small.with_name("dump.jsonl")])
    page_file.write_text(render_report(corpus, title="first", reload=0.3), encoding="utf-8")
    page = tab.open(page_file, "#outcome=wrong")
    page_file.write_text(render_report(corpus, title="second", reload=0.3), encoding="utf-8")
    expect(page.locator("h1")).to_have_text("second")
    assert page.input_value("[name=outcome]") == "wrong"
    page.get_by_label("reload every 0.3 s").uncheck()
    page_file.write_text(render_report(corpus, title="third", reload=0.3), encoding="utf-8")
    page.wait_for_timeout(900)
    assert page.inner_text("h1") == "second"
