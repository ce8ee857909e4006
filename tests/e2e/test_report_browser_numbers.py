"""Numbers of any size on a page in a browser: nothing leaves its place, and all of it can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.browser_pages import (
    Tab,
    browser,  # noqa: F401  fixtures
    tab,  # noqa: F401
    write_page,
)
from tests.unit.test_report import record

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("browser_numbers")]

CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const colour = (text) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) layers.unshift(colour(getComputedStyle(at).backgroundColor));
    return layers.reduce((under, [r, g, b, a]) => [r, g, b].map((v, i) => (v * a + under[i] * (255 - a)) / 255), [255, 255, 255]);
  };
  const found = [];
  for (const node of document.querySelectorAll(".part, .by-credit, .by-advantage, .turn, .flag, .badge, .detail span")) {
    if (!node.getClientRects().length) continue;
    const [one, other] = [light(colour(getComputedStyle(node).color).slice(0, 3)), light(ground(node))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) found.push(`${node.className} ${node.textContent}: ${ratio.toFixed(2)}`);
  }
  return found;
}"""


@pytest.fixture
def turns(tmp_path: Path) -> Path:
    """Strong colours under the line of a turn, what a tool said, and a credit of 0 beside an advantage."""
    line = record([0.0, -0.9, 0.9], uid="a", texts=["first", "lost here", "won here"])
    line["segments"][1] |= {"observation": "a tool said this", "observed": [[0, 4]]}
    line["segments"][2] |= {"observation": "and this", "observed": [[0, 3]]}
    line["segments"][0]["advantage"] = -0.9
    return write_page(tmp_path, [line])


@pytest.mark.parametrize("tab", [{"color_scheme": "light"}, {"color_scheme": "dark"}], indirect=True)
def test_texts_on_colours_have_enough_contrast(tab: Tab, turns: Path) -> None:
    page = tab.open(turns)
    assert page.locator(".turn:visible").count() == 3
    assert page.evaluate(CONTRAST) == []
    page.locator(".colours [value=advantage]").check()
    assert page.evaluate(CONTRAST) == []


@pytest.mark.parametrize("tab", [{"viewport": {"width": 390, "height": 900}}], indirect=True)
@pytest.mark.parametrize("size", [1e-6, 1e6])
def test_numbers_of_any_size_fit_a_narrow_screen(tab: Tab, tmp_path: Path, size: float) -> None:
    lines = [
        record([sign * 1.25 * size, -2.345678 * size], step=step, uid=f"{step}", prior=0.0, texts=["a", f"{sign}"])
        for step in (1, 2)
        for sign in (1, -1)
    ]
    page = tab.open(write_page(tmp_path, lines))
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator(".group").count() == 2
    beyond = """(nodes) => nodes.filter((node) => {
      const [text, card] = [node, node.closest("figure, .trace")].map((each) => each.getBoundingClientRect());
      return text.width && (text.left < card.left || text.right > card.right);
    }).map((node) => node.textContent)"""
    assert page.eval_on_selector_all("svg.plot text, svg.value text", beyond) == []
