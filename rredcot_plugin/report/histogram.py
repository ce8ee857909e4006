"""Histograms of any number of numbers in one pass: exact counts, whose bins grow as the numbers spread."""

from __future__ import annotations

import math

import numpy as np

from rredcot_plugin.report.corpus import Histogram

MOST_FINE = 4096
"""Bins that are kept while counting."""

MOST_SHOWN = 30

NEAR = 1e-9
"""A number this far below an edge, in widths, is on it: 0.29 / 0.01 is 28.999999999999996."""


class StreamingHistogram:
    """Counts in bins [i·w, (i+1)·w), where w is ``finest`` times 1, 2, 10, 20, 100, …

    Each width is a whole multiple of the one before, so when the numbers spread over more than ``MOST_FINE`` bins,
    neighbours are added up and no number has to be seen again. All counts are exact.
    """

    def __init__(self, finest: float) -> None:
        self.finest = finest
        self.counts: dict[int, int] = {}
        self.low, self.high = math.inf, -math.inf
        self._at_high = 0
        self._level = 0

    def add(self, numbers: np.ndarray) -> None:
        """Count numbers; those that are not finite are left out."""
        numbers = numbers[np.isfinite(numbers)]
        if not numbers.size:
            return
        low, high = float(numbers.min()), float(numbers.max())
        if high >= self.high:
            self._at_high = int((numbers == high).sum()) + (self._at_high if high == self.high else 0)
        self.low, self.high = min(self.low, low), max(self.high, high)
        while self._is_too_fine():
            self._coarsen()
        indices, counts = np.unique(np.floor(numbers / self._width() + NEAR).astype(np.int64), return_counts=True)
        for index, count in zip(indices.tolist(), counts.tolist(), strict=True):
            self.counts[index] = self.counts.get(index, 0) + count

    def finish(self) -> Histogram | None:
        """At most ``MOST_SHOWN`` bins of a round width that hold all numbers; None if there are none."""
        if not self.counts:
            return None
        factor = self._shown_factor()
        width = self._width() * factor
        merged: dict[int, int] = {}
        for index, count in self.counts.items():
            merged[index // factor] = merged.get(index // factor, 0) + count
        first, last = min(merged), max(merged)
        if (
            self.finest < 1
            and last > first
            and merged[last] == self._at_high
            and _is_near(self.high / width, last)
        ):
            merged[last - 1] = merged.get(last - 1, 0) + merged[last]  # the last bin holds its upper edge too
            last -= 1
        edges = tuple(float(f"{i * width:.12g}") for i in range(first, last + 2))
        return Histogram(edges, tuple(merged.get(i, 0) for i in range(first, last + 1)))

    def _width(self) -> float:
        return self.finest * 10.0 ** (self._level // 2) * (1 + self._level % 2)

    def _is_too_fine(self) -> bool:
        width = self._width()
        return (self.high - self.low) / width > MOST_FINE or max(abs(self.low), abs(self.high)) / width > 1e12

    def _coarsen(self) -> None:
        factor = 5 if self._level % 2 else 2
        merged: dict[int, int] = {}
        for index, count in self.counts.items():
            merged[index // factor] = merged.get(index // factor, 0) + count
        self.counts = merged
        self._level += 1

    def _shown_factor(self) -> int:
        """How many bins make one that is shown: the least round width, not much finer than the numbers are large."""
        size = max(abs(self.low), abs(self.high), self.finest)
        least = max(self.finest, 10.0 ** (math.floor(math.log10(size)) - 2))
        parts = 2 if self._level % 2 else 1  # the width is so many times a power of ten
        for power in range(20):
            for leading in (1, 2, 5):
                factor, left = divmod(leading * 10**power, parts)
                width = factor * self._width()
                bins = (max(self.counts) // factor - min(self.counts) // factor + 1) if factor else 0
                if factor and not left and width >= least * (1 - NEAR) and bins <= MOST_SHOWN + 1:
                    return factor
        raise AssertionError("a width of 10^19 bins holds every number")


def _is_near(position: float, index: int) -> bool:
    return abs(position - index) < 1e-6
