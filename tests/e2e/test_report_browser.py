"""The report's page in a real browser, opened from a file: filters, keyboard, colours, and model text that attacks."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from playwright.sync_api import Page, expect

from tests.e2e.browser_pages import BROWSERS, COUNT, HOSTILE, SHOWN, Tab, browser, rows, small, tab, write_page  # noqa: F401  fixtures

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("browser")]


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
    page.locator("[name=loss]").fill("0.006")
    expect(page.locator("[name=least]")).to_have_text("0.006")
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
