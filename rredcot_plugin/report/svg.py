"""Axes, lines, bars and points as inline SVG, in the colours of the page's style; needs nothing but Python."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rredcot_plugin.report.text import escape

WIDTH, HEIGHT = 400, 260
LEFT, RIGHT, TOP, BOTTOM = 50, 14, 32, 44
"""Size of a plot and room around its frame, in user units; texts are 12 units high."""

CHARACTER = 7.0
"""Width of one in a text of an axis, on the safe side."""

HUGE = 1e100
"""Numbers beyond this are not drawn: their differences would overflow."""


@dataclass(frozen=True)
class Axis:
    """``low`` … ``high`` over the frame's width (or height), with ``ticks`` at some of these numbers.

    ``names``: what to write at the ticks instead of the numbers themselves.
    """

    label: str
    low: float
    high: float
    ticks: tuple[float, ...]
    names: tuple[str, ...] = ()

    def texts(self) -> list[tuple[float, str]]:
        """Ticks and what stands at them."""
        return list(zip(self.ticks, self.names or map(tick, self.ticks), strict=True))

    def share(self, number: float) -> float:
        """Where a number lies between low (0) and high (1)."""
        return (number - self.low) / (self.high - self.low)


def drawable(numbers: Iterable[float]) -> list[float]:
    """The finite ones of moderate size."""
    return [number for number in numbers if math.isfinite(number) and abs(number) < HUGE]


def axis(label: str, numbers: Iterable[float], *, whole: bool = False, count: int = 5, least: float = 0.0) -> Axis:
    """An axis over all drawable numbers (at least one), widened to round ticks of 1, 2 or 5 times a power of ten.

    ``whole``: ticks at integers only, and not widened. ``least``: the smallest distance of two ticks.
    """
    found = drawable(numbers)
    low, high = min(found), max(found)
    if high - low < 1e-9 * max(1.0, abs(low)):
        pad = 0.5 if whole else 0.1 * (abs(low) or 1.0)
        low, high = low - pad, high + pad
    step = max(1.0 if whole else least, _round_step((high - low) / count))
    if whole:
        first, last = math.ceil(low / step), math.floor(high / step)
    else:
        first, last = math.floor(low / step + 1e-6), math.ceil(high / step - 1e-6)
        low, high = first * step, last * step
    return Axis(label, low, high, tuple(i * step for i in range(first, last + 1)))


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))


def tick(number: float) -> str:
    """A tick's text: 12000 is 12k, −0.5 has a true minus, 1e-17 is 0.

    >>> tick(12000), tick(-0.5), tick(2_500_000), tick(0.30000000000000004)
    ('12k', '−0.5', '2.5M', '0.3')
    """
    for size, unit, least in ((1e9, "G", 1e9), (1e6, "M", 1e6), (1e3, "k", 1e4)):
        if least <= abs(number) < 1e12:
            return f"{number / size:.4g}{unit}".replace("-", "−")
    return f"{0.0 if abs(number) < 1e-12 else number:g}".replace("-", "−")


@dataclass(frozen=True)
class Plot:
    """A frame with a horizontal and a vertical axis; methods give pieces of SVG at data coordinates."""

    across: Axis
    up: Axis

    @property
    def left(self) -> float:
        """Where the frame begins: to the right of the longest text of the vertical axis."""
        return max(LEFT, CHARACTER * max((len(text) for _, text in self.up.texts()), default=0) + 8)

    def x(self, number: float) -> float:
        return self.left + self.across.share(number) * (WIDTH - self.left - RIGHT)

    def y(self, number: float) -> float:
        return HEIGHT - BOTTOM - self.up.share(number) * (HEIGHT - TOP - BOTTOM)

    def line(self, xs: Sequence[float], ys: Sequence[float], style: str) -> str:
        """A line that breaks where a number is missing."""
        parts, pen_down = [], False
        for x, y in zip(xs, ys, strict=True):
            known = bool(drawable([x, y]) == [x, y])
            if known:
                parts.append(f"{'L' if pen_down else 'M'}{self.x(x):.1f} {self.y(y):.1f}")
            pen_down = known
        return f'<path class="line {style}" d="{"".join(parts)}"/>'

    def dot(self, x: float, y: float, style: str, radius: float = 3.0, tip: str = "") -> str:
        title = f"<title>{escape(tip)}</title>" if tip else ""
        return f'<circle class="dot {style}" cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="{radius:.1f}">{title}</circle>'

    def whisker(self, x: float, low: float, high: float, style: str) -> str:
        low, high = max(low, self.up.low), min(high, self.up.high)
        return f'<path class="whisker {style}" d="M{self.x(x):.1f} {self.y(low):.1f}V{self.y(high):.1f}"/>'

    def band(self, xs: Sequence[float], lows: Sequence[float], highs: Sequence[float], style: str) -> str:
        """The area between two lines; points with a missing number are left out of it."""
        rows = [row for row in zip(xs, lows, highs, strict=True) if drawable(row) == list(row)]
        there = [f"{self.x(x):.1f} {self.y(high):.1f}" for x, _, high in rows]
        back = [f"{self.x(x):.1f} {self.y(low):.1f}" for x, low, _ in reversed(rows)]
        return f'<path class="band {style}" d="M{"L".join(there + back)}Z"/>' if rows else ""

    def bar(self, start: float, end: float, height: float, style: str, tip: str) -> str:
        left, right, top = self.x(start), self.x(end), self.y(height)
        size = f'width="{max(0.8, right - left - 1):.1f}" height="{self.y(self.up.low) - top:.1f}"'
        return f'<rect class="bar {style}" x="{left + 0.5:.1f}" y="{top:.1f}" {size}><title>{escape(tip)}</title></rect>'

    def render(self, body: str, label: str) -> str:
        """The whole picture; ``label`` is what a screen reader says."""
        return (
            f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
            f"{self._frame()}{body}</svg>"
        )

    def _frame(self) -> str:
        bottom, end, left = HEIGHT - BOTTOM, WIDTH - RIGHT, f"{self.left:.0f}"
        lines = "".join(f"M{left} {self.y(number):.1f}H{end}" for number in self.up.ticks)
        ups = "".join(
            f'<text x="{self.left - 6:.0f}" y="{self.y(number) + 4:.1f}" text-anchor="end">{text}</text>'
            for number, text in self.up.texts()
        )
        acrosses = "".join(
            f'<text x="{self.x(number):.1f}" y="{bottom + 17}" text-anchor="middle">{text}</text>'
            for number, text in self._spaced()
        )
        return (
            f'<path class="grid" d="{lines}"/><path class="base" d="M{left} {bottom}H{end}"/>{ups}{acrosses}'
            f'<text class="label" x="4" y="15">{escape(self.up.label)}</text>'
            f'<text class="label" x="{(self.left + end) / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle">'
            f"{escape(self.across.label)}</text>"
        )

    def _spaced(self) -> list[tuple[float, str]]:
        """The texts under the horizontal axis: all, or every second, third, … one where they would touch."""
        texts = self.across.texts()
        if len(texts) < 2:
            return texts
        room = self.x(texts[1][0]) - self.x(texts[0][0])
        return texts[:: math.ceil(CHARACTER * (max(len(text) for _, text in texts) + 1) / room)]
