"""The expected reward along a trace as a small inline SVG."""

from __future__ import annotations

import math

from rredcot_plugin.report.text import plain, short
from rredcot_plugin.report.traces import Trace

WIDTH, HEIGHT = 320, 74
LEFT, RIGHT, TOP, BOTTOM = 26, 30, 10, 18
"""Room for labels around the curve, in user units of the SVG."""


def value_curve(trace: Trace, scale: float) -> str:
    """V̂ at every boundary, from the prompt to the reward; each stretch coloured by the credit it stands for.

    The vertical axis runs from the least to the greatest of 0, 1 and the values; nothing is drawn for a
    trace with a value that is not finite, or without segments.
    """
    values = trace.values
    if len(values) < 2 or any(math.isnan(value) for value in values):
        return ""
    low, high = min(0.0, *values), max(1.0, *values)
    step = (WIDTH - LEFT - RIGHT) / (len(values) - 1)
    xs = [LEFT + i * step for i in range(len(values))]
    ys = [TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM) for value in values]
    points = list(zip(xs, ys, strict=True))
    credits = [segment.credit for segment in trace.segments]
    ends = zip(points[:-1], points[1:], credits, strict=True)
    lines = "".join(_stretch(start, end, credit, scale) for start, end, credit in ends)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4"/>' for x, y in points)
    label = ", ".join(plain(value) for value in values)
    return (
        f'<svg class="value" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="expected reward: {label}">'
        f"{_axis(low, high)}{lines}<g class='dots'>{dots}</g>"
        f'<text x="{LEFT}" y="{HEIGHT - 3}">prompt</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 3}" text-anchor="end">end</text>'
        f'<text x="{WIDTH - RIGHT + 5}" y="{ys[-1] + 3.5:.1f}">R={short(values[-1])}</text></svg>'
    )


def _axis(low: float, high: float) -> str:
    bottom = HEIGHT - BOTTOM
    return (
        f'<path class="grid" d="M{LEFT} {TOP}H{WIDTH - RIGHT}M{LEFT} {bottom}H{WIDTH - RIGHT}"/>'
        f'<text x="{LEFT - 5}" y="{TOP + 3.5}" text-anchor="end">{high:g}</text>'
        f'<text x="{LEFT - 5}" y="{bottom + 3.5}" text-anchor="end">{low:g}</text>'
    )


def _stretch(start: tuple[float, float], end: tuple[float, float], credit: float, scale: float) -> str:
    kind = "neg" if credit < -0.03 * scale else "pos" if credit > 0.03 * scale else "zero"
    return f'<path class="{kind}" d="M{start[0]:.1f} {start[1]:.1f}L{end[0]:.1f} {end[1]:.1f}"/>'
