"""The picture of credit in the README, out of what the demo trained.

    rredcot demo && python tools/credit_picture.py demo_output/rredcot/credit

Two prompts of each of which two responses are wrong and one is right, as the report shows them: those whose segments
lost most, one to be sorted and one to be calculated. Needs a browser, as `make browser` installs it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from rredcot_plugin.report.html import render_groups
from rredcot_plugin.report.page import Section, interactive, render_page
from rredcot_plugin.report.select import Group, group_traces
from rredcot_plugin.report.traces import Trace, read_dumps

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "credit.png"
TASK = "Sort"
"""How prompts of the one task begin; all others are of the other."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH, MARGIN, SCALE = 1216, 16, 1.5
PLAIN = "header h1, header p, main > section > h2, main > section > p, #theme, .siblings, .legend .note { display: none !important; }"


def choose(traces: Sequence[Trace]) -> list[Group]:
    """The groups to show, one per task.

    Raises:
        ValueError: a task has no prompt of which two responses are wrong and one is right.
    """
    groups = [
        group
        for group in group_traces(traces, most_groups=len(traces))
        if [trace.reward for trace in group.traces] == [0.0, 0.0, 1.0]
        and group.traces[1].lowest_credit < -0.5
        and len({trace.worst for trace in group.traces[:2]}) == 2
    ]
    chosen = []
    for is_sorting in (True, False):
        found = [group for group in groups if (TASK in group.prompt) == is_sorting]
        if not found:
            raise ValueError(
                "these dumps have no prompt with two wrong responses, which go wrong apart, and a right one"
            )
        chosen.append(found[0])
    return chosen


def photograph(page: Page, path: Path, picture: Path) -> None:
    """The traces with the segment selected that lost most, in a right response the one that won most."""
    page.goto(path.as_uri())
    page.add_style_tag(content=PLAIN)
    for card in page.locator("article.trace").all():
        rows = card.locator("ol.segments li")
        worst = card.locator("li.worst")
        (worst if worst.count() else rows).first.locator("button.credit").click()
    page.mouse.move(0, 0)
    page.evaluate("document.activeElement.blur()")
    box = page.locator("main > section").first.bounding_box()
    assert box is not None
    page.screenshot(
        path=picture,
        full_page=True,
        clip={"x": 0, "y": box["y"] - MARGIN, "width": WIDTH, "height": box["height"] + 2 * MARGIN},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dumps", type=Path, help="folder of the dumps, demo_output/rredcot/credit")
    parser.add_argument("--output", type=Path, default=PICTURE)
    options = parser.parse_args()
    try:
        groups = choose(read_dumps(options.dumps))
    except ValueError as error:
        parser.error(str(error))
    section = Section("Credit", "", render_groups(groups))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "credit.html"
        path.write_text(render_page("credit", "", [section], interactive()), encoding="utf-8")
        browser = playwright.chromium.launch(
            executable_path=next(filter(None, map(shutil.which, BROWSERS)), None),
            args=["--no-sandbox"] if os.geteuid() == 0 else [],  # Chromium's sandbox does not start for root
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, device_scale_factor=SCALE)
        photograph(page, path, options.output)
        browser.close()
    print(f"written: {options.output}")


if __name__ == "__main__":
    main()
