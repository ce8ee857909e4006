"""Long traces, colours and probed answers in a real browser."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from rredcot_plugin.report.read_corpus import read_corpus
from rredcot_plugin.report.report_page import render_report
from tests.e2e.browser_pages import BROWSERS, COUNT, HOSTILE, SHOWN, Tab, browser, rows, small, tab, write_page  # noqa: F401  fixtures
from tests.unit.test_report import record

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("browser_traces")]


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
