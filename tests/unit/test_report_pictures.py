"""The pictures of a report's page."""

from __future__ import annotations

import math
import re

import pytest

from rredcot_plugin.report.corpus import (
    HISTOGRAMS,
    Histogram,
    StepSummary,
)
from rredcot_plugin.report.curves import Curve
from rredcot_plugin.report.html import render_trace
from rredcot_plugin.report.plots import HISTOGRAM_TITLES, all_pictures, histogram, reward_by_step
from rredcot_plugin.report.svg import axis
from rredcot_plugin.report.traces import ScoredSegment, Trace
from tests.unit.page_steps import BINS, HISTOGRAM, STEPS


def test_every_picture_is_named_and_readable() -> None:
    pictures = all_pictures(STEPS, BINS, dict.fromkeys(HISTOGRAMS, HISTOGRAM), [Curve("a", (1, 2), (0.1, 0.4))])
    assert len(pictures) == 6 + len(HISTOGRAMS)
    assert HISTOGRAM_TITLES.keys() == HISTOGRAMS.keys()
    for picture in pictures:
        assert picture.title
        assert picture.how.endswith(".")
        labels = re.findall(r'<text class="label"[^>]*>([^<]+)</text>', picture.svg)
        assert len(labels) == 2, picture.title
        assert not re.search(r"nan|inf", picture.svg)


def test_pictures_without_numbers_are_named_with_their_reason() -> None:
    nothing = [StepSummary(s, 4, *[math.nan] * 6) for s in (1, 2)]
    pictures = all_pictures(nothing, (), {}, [Curve("a", (1,), (math.nan,))])
    assert [picture.title for picture in pictures if picture.svg] == []
    assert all(picture.missing for picture in pictures)


def test_a_band_follows_the_spread_of_the_rewards() -> None:
    narrow = reward_by_step([StepSummary(s, 100, 0.5, 0.0, math.nan, 0, 0, 0) for s in (1, 2)])
    assert "V̂" not in str(narrow.legend)
    wide = reward_by_step([StepSummary(s, 100, 0.5, 1.0, 0.5, 0, 0, 0) for s in (1, 2)])
    spans = [_height(picture.svg) for picture in (narrow, wide)]
    assert spans[0] == 0 < spans[1]


def _height(svg: str) -> float:
    """Height of the band in the picture."""
    path = re.search(r'class="band run1" d="M([^Z]*)Z"', svg)
    assert path
    ups = [float(point.split()[1]) for point in path[1].split("L")]
    return max(ups) - min(ups)


def test_histogram_bars_keep_the_proportions_of_the_counts() -> None:
    picture = histogram("credit", Histogram((-1.0, 0.0, 1.0), (10, 40)))
    low, high = (float(height) for height in re.findall(r'class="bar .*?height="([\d.]+)"', picture.svg))
    assert high == pytest.approx(4 * low, abs=0.3)
    assert re.findall(r'class="bar (\w+)"', picture.svg) == ["neg", "pos"]
    assert "logarithmic" in histogram("value", Histogram((0.0, 1.0, 2.0, 3.0), (1, 1, 9000))).how


@pytest.mark.parametrize("most", [1, 2, 3, 7, 40])
def test_counts_have_ticks_at_integers(most: int) -> None:
    svg = histogram("credit", Histogram((-1.0, 0.0, 1.0), (1, most))).svg
    ticks = re.findall(r'text-anchor="end">([^<]*)<', svg)
    assert len(ticks) >= 2 and all(float(text) == int(float(text)) for text in ticks)
    assert float(ticks[-1]) >= most


@pytest.mark.parametrize("numbers", [(0.0, 0.0), (1e-12, 2e-12), (-5.0, 3.0), (1e15, 1e15), (0.3, 0.30001)])
def test_axes_hold_their_numbers_between_few_round_ticks(numbers: tuple[float, float]) -> None:
    found = axis("x", [*numbers, math.nan, math.inf])
    assert found.low <= min(numbers) and max(numbers) <= found.high
    assert 2 <= len(found.ticks) <= 12
    assert all(-1e-9 <= found.share(tick) <= 1 + 1e-9 for tick in found.ticks)


def test_a_card_is_made_in_one_pass_over_its_segments() -> None:
    """Thousands of segments must not make a page take minutes."""

    class Counted(tuple):
        passes = 0

        def __iter__(self):
            Counted.passes += 1
            return super().__iter__()

    def passes(count: int, credit: float) -> int:
        Counted.passes = 0
        segments = Counted(ScoredSegment("x", 1, 0.5, credit, 0.0) for _ in range(count))
        render_trace(Trace(1, "a", "p", None, 0.5, segments))
        return Counted.passes

    assert passes(400, -0.1) == passes(4, -0.1)
    assert passes(400, math.nan) == passes(4, math.nan)
