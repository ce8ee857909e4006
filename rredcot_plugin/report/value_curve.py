"""The expected reward along a trace as a small inline SVG."""

from __future__ import annotations

from collections.abc import Iterable

from rredcot_plugin.report.svg import drawable, tick
from rredcot_plugin.report.text import decimals, plain, short
from rredcot_plugin.report.traces import Trace

WIDTH, HEIGHT = 320, 84
LEFT, RIGHT, TOP, BOTTOM = 28, 40, 11, 20
"""Room for labels around the curve, in user units of the SVG; at the sides more where they are long."""

GAP, CHARACTER = 7, 6.8
"""Between a label and the curve, and of one character of a label."""

LONGEST = 6
"""Characters of a reward at the end of a curve; longer ones are rounded to three digits."""

MOST_DOTS = 20
"""Curves with more boundaries are drawn without a dot at each."""


def limits(traces: Iterable[Trace]) -> tuple[float, float]:
    """Vertical axis for curves side by side: from the least to the greatest of 0, 1 and all their values."""
    values = drawable(value for trace in traces for value in trace.values)
    return min(0.0, *values, 0.0), max(1.0, *values, 1.0)


def value_curve(trace: Trace, scale: float, span: tuple[float, float] | None = None) -> str:
    """V̂ at every boundary, from the prompt to the reward; each stretch coloured by the credit it stands for.

    ``span`` is the vertical axis, by default ``limits`` of this trace alone; nothing is drawn for a trace with a
    value that is not finite, or without segments. Each stretch stands in front of an invisible area that shows
    up where the page's script selects a segment.
    """
    values = trace.values
    if len(values) < 2 or len(drawable(values)) < len(values):
        return ""
    low, high = span or limits([trace])
    names, end = _names(low, high), _end(values[-1])
    left = max(LEFT, GAP + CHARACTER * max(map(len, names)))
    right = WIDTH - max(RIGHT, GAP + CHARACTER * len(end))
    step = (right - left) / (len(values) - 1)
    ys = [TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM) for value in values]
    points = [(left + i * step, y) for i, y in enumerate(ys)]
    credits = [segment.credit for segment in trace.segments]
    areas = "".join(_area(x, step) for x, _ in points[:-1])
    lines = "".join(_stretch(*ends, scale) for ends in zip(points[:-1], points[1:], credits, strict=True))
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4"/>' for x, y in points)
    label = ", ".join(plain(value, decimals(scale)) for value in values)
    return (
        f'<svg class="value" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="expected reward: {label}">'
        f'{_axis(*names, left, right)}{areas}{lines}<g class="dots">{dots if len(points) <= MOST_DOTS else ""}</g>'
        f'<text x="{left:.0f}" y="{HEIGHT - 4}">prompt</text>'
        f'<text x="{right:.0f}" y="{HEIGHT - 4}" text-anchor="end">end</text>'
        f'<text x="{right + 5:.0f}" y="{ys[-1] + 4:.1f}">{end}</text></svg>'
    )


def _names(low: float, high: float) -> tuple[str, str]:
    """What stands at the ends of the vertical axis."""
    return tick(float(f"{low:.2g}")), tick(float(f"{high:.2g}"))


def _end(reward: float) -> str:
    """What stands at the end of the curve."""
    text = short(reward)
    return f"R={text if len(text) <= LONGEST else tick(float(f'{reward:.3g}'))}"


def _axis(low: str, high: str, left: float, right: float) -> str:
    bottom = HEIGHT - BOTTOM
    return (
        f'<path class="grid" d="M{left:.0f} {TOP}H{right:.0f}M{left:.0f} {bottom}H{right:.0f}"/>'
        f'<text x="{left - 5:.0f}" y="{TOP + 4}" text-anchor="end">{high}</text>'
        f'<text x="{left - 5:.0f}" y="{bottom + 4}" text-anchor="end">{low}</text>'
    )


def _area(x: float, width: float) -> str:
    return (
        f'<rect class="area" x="{x:.1f}" y="{TOP - 4}" width="{width:.1f}" height="{HEIGHT - TOP - BOTTOM + 8}"/>'
    )


def _stretch(start: tuple[float, float], end: tuple[float, float], credit: float, scale: float) -> str:
    kind = "neg" if credit < -0.03 * scale else "pos" if credit > 0.03 * scale else "zero"
    return f'<path class="stretch {kind}" d="M{start[0]:.1f} {start[1]:.1f}L{end[0]:.1f} {end[1]:.1f}"/>'
