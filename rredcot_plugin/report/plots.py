"""The pictures at the head of a report: reward and value error by step, calibration, histograms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rredcot_plugin.report.corpus import HISTOGRAMS, WHOLE, CalibrationBin, Histogram, StepSummary
from rredcot_plugin.report.curves import COLOURS, Curve
from rredcot_plugin.report.svg import Axis, Plot, axis, drawable, tick
from rredcot_plugin.report.text import column, precise, span

NORMAL_95 = 1.96
"""A normal mean ± this many standard errors covers 95 %."""

SAME = 1e-3
"""Means of a step closer than this are the same."""

MOST_DOTS = 40
"""Lines with more points are drawn without a dot at each."""


@dataclass(frozen=True)
class Picture:
    """A plot with its title and how to read it, or the reason why there is none (``svg`` is empty then).

    ``legend``: names of the lines and their styles.
    """

    title: str
    how: str
    svg: str = ""
    missing: str = ""
    legend: tuple[tuple[str, str], ...] = ()


def all_pictures(
    steps: Sequence[StepSummary],
    calibration: Sequence[CalibrationBin],
    histograms: Mapping[str, Histogram],
    curves: Sequence[Curve],
) -> list[Picture]:
    """Every picture that a report can have, in the order of the page; learning curves only if there are runs."""
    found = [
        reward_by_step(steps),
        error_by_step(steps),
        bias_by_step(steps),
        tokens_by_step(steps),
        calibration_plot(calibration),
        *(histogram(key, histograms.get(key)) for key in HISTOGRAMS),
    ]
    return [learning_curves(curves), *found] if curves else found


def reward_by_step(steps: Sequence[StepSummary]) -> Picture:
    """Mean reward with ± 1.96 standard deviations / √traces, and the mean V̂ of the prompts where that differs."""
    title = "Mean reward by step"
    how = (
        "Band: 95 % interval of the mean as if traces were independent; those of one prompt are not, so it is too "
        "narrow."
    )
    wanted = [s for s in steps if drawable([s.reward])]
    if len(wanted) < 2:
        return Picture(title, how, missing="rewards of two steps are needed")
    half = [NORMAL_95 * s.reward_std / math.sqrt(s.traces) if s.traces else math.nan for s in wanted]
    lows = [s.reward - (h if math.isfinite(h) else 0) for s, h in zip(wanted, half, strict=True)]
    highs = [s.reward + (h if math.isfinite(h) else 0) for s, h in zip(wanted, half, strict=True)]
    xs, values = [s.step for s in wanted], [s.value for s in wanted]
    plot = Plot(_steps(xs), axis("mean reward of a trace", [*lows, *highs, *drawable(values)]))
    body = plot.band(xs, lows, highs, "run1") + plot.line(xs, [s.reward for s in wanted], "run1")
    body += _dots(plot, wanted, "reward", "run1")
    # a leave-one-out mean averages to the mean reward: a line of it would say nothing
    if not any(abs(s.value - s.reward) > SAME for s in wanted):
        return Picture(title, how, plot.render(body, title), legend=(("reward", "run1"),))
    body += plot.line(xs, values, "run2 dashed")
    how += " V̂ of the prompt (dashed) was estimated: where it leaves the line, it is off before the first token."
    legend = (("reward", "run1"), ("V̂ of the prompt", "run2 dashed"))
    return Picture(title, how, plot.render(body, title), legend=legend)


def error_by_step(steps: Sequence[StepSummary]) -> Picture:
    """Mean of (R − V̂)² at all boundaries of the traces of a step."""
    how = "Mean of (R − V̂)² at all boundaries: lower is better, 0.25 is what V̂ = 0.5 costs where rewards are 0 and 1."
    return _by_step(
        "Value error by step", how, steps, "squared_error", "mean (R − V̂)², reward units squared", "values"
    )


def bias_by_step(steps: Sequence[StepSummary]) -> Picture:
    """Mean of V̂ − R at the boundaries after the prompts of a step, with an interval that counts prompts."""
    title = "Value bias by step"
    how = "Mean of V̂ − R at the boundaries after the prompt, with its 95 % interval over prompts. Off 0, V̂ is too high or too low."
    wanted = [(s.step, s.bias) for s in steps if s.bias is not None and drawable([s.bias.mean])]
    if len(wanted) < 2:
        return Picture(title, how, missing="values of two steps are needed")
    xs, found = [step for step, _ in wanted], [bias for _, bias in wanted]
    ends = drawable(number for bias in found for number in bias)
    plot = Plot(_steps(xs), axis("mean V̂ − R, reward units", [0.0, *ends]))
    body = plot.band(xs, [b.low for b in found], [b.high for b in found], "run1")
    body += plot.line([xs[0], xs[-1]], [0.0, 0.0], "soft dashed") + plot.line(xs, [b.mean for b in found], "run1")
    return Picture(title, how, plot.render(body, title))


def tokens_by_step(steps: Sequence[StepSummary]) -> Picture:
    """Mean tokens of a trace."""
    how = "Mean length of a response: reward that rises only where this rises was bought with tokens."
    return _by_step("Length by step", how, steps, "tokens", "tokens of a trace, mean", "token counts")


def _by_step(title: str, how: str, steps: Sequence[StepSummary], field: str, label: str, what: str) -> Picture:
    wanted = [s for s in steps if drawable([getattr(s, field)])]
    if len(wanted) < 2:
        return Picture(title, how, missing=f"{what} of two steps are needed")
    xs, ys = [s.step for s in wanted], [getattr(s, field) for s in wanted]
    plot = Plot(_steps(xs), axis(label, [0.0, *ys]))
    return Picture(title, how, plot.render(plot.line(xs, ys, "run1") + _dots(plot, wanted, field, "run1"), title))


def _steps(xs: Sequence[float]) -> Axis:
    return axis("training step", xs, whole=True)


def _dots(plot: Plot, steps: Sequence[StepSummary], field: str, style: str) -> str:
    if len(steps) > MOST_DOTS:
        return ""
    tips = ((s, f"step {s.step}: {precise(getattr(s, field), 3)}, {s.traces} traces") for s in steps)
    return "".join(plot.dot(s.step, getattr(s, field), style, tip=tip) for s, tip in tips)


def learning_curves(curves: Sequence[Curve]) -> Picture:
    """The metric of every run: thin as measured, thick smoothed."""
    title = "Learning curves"
    how = "Thin: each step as measured. Thick: exponential moving average (weight 0.8). One run is one seed."
    shown = [curve for curve in curves if len(drawable(curve.values)) == len(curve.values) > 1]
    if not shown:
        return Picture(title, how, missing="no run has two finite numbers")
    every = [value for curve in shown for value in curve.values]
    plot = Plot(_steps([step for curve in shown for step in curve.steps]), axis("mean reward of the batch", every))
    styles = [f"run{i % len(COLOURS)}{' dashed' if i >= len(COLOURS) else ''}" for i in range(len(shown))]
    body = ""
    for curve, style in zip(shown, styles, strict=True):
        body += plot.line(curve.steps, curve.values, f"{style} thin")
        body += plot.line(curve.steps, curve.smoothed(), f"{style} thick")
    legend = tuple(zip((curve.name for curve in shown), styles, strict=True))
    return Picture(title, how, plot.render(body, title), legend=legend)


def calibration_plot(bins: Sequence[CalibrationBin]) -> Picture:
    """Mean reward against mean V̂ in each bin; a dot's area goes with the states in it."""
    title = "Calibration of V̂"
    how = (
        "Each dot: states of similar V̂ and the mean reward that followed, with its 95 % interval over prompts; its area "
        "goes with the number of states. On the dashed line V̂ is right; below it V̂ is too high."
    )
    shown = [b for b in bins if b.states and len(drawable([b.value, b.reward])) == 2]
    if not shown:
        return Picture(title, how, missing="there are no values")
    reach = drawable(n for b in shown for n in (b.value, b.reward, b.reward_low, b.reward_high))
    plot = Plot(axis("V̂, mean of the bin", reach), axis("mean reward that followed", reach))
    ends = (plot.across.low, plot.across.high)
    body = plot.line(ends, ends, "soft dashed")
    most = max(b.states for b in shown)
    for b in shown:
        if len(drawable([b.reward_low, b.reward_high])) == 2:
            body += plot.whisker(b.value, b.reward_low, b.reward_high, "run1")
    for b in shown:
        reward, low, high = column((b.reward, b.reward_low, b.reward_high), 3)
        tip = f"V̂ {span(b.low, b.high)}: {b.states} states of {b.prompts} prompts, mean reward {reward} [{low}, {high}]"
        body += plot.dot(b.value, b.reward, "run1 filled", 2.5 + 8.5 * math.sqrt(b.states / most), tip)
    return Picture(title, how, plot.render(body, title))


HISTOGRAM_TITLES = {
    "segment_tokens": ("Length of segments", "If most have one token, the segmenter cuts too often."),
    "credit": (
        "Credit of segments",
        "Left (orange) lost reward, right (blue) gained it; 0 itself counts toward the right.",
    ),
    "advantage": ("Advantage of segments", "What the policy update multiplies the log-probs of a segment with."),
    "value": ("Values", "If all are near one number, V̂ cannot tell states apart."),
    "segments": ("Segments of a trace", "If most have one segment, there is no credit within traces."),
    "reward": ("Rewards", "If all are equal, groups have nothing to learn from."),
}
"""Title, and what to look for."""


def histogram(key: str, found: Histogram | None) -> Picture:
    """Counts as bars; on a logarithmic axis where the tallest is more than 200 times the median one."""
    title, how = HISTOGRAM_TITLES[key]
    if found is None or not any(found.counts) or len(drawable(found.edges)) != len(found.edges):
        return Picture(title, how, missing="there are no such numbers")
    filled = sorted(count for count in found.counts if count)
    is_log = filled[-1] > 200 * filled[len(filled) // 2]
    up = _log_counts(filled[-1]) if is_log else axis("count", [0, filled[-1]], count=4, least=1.0)
    is_whole = key in WHOLE
    shift = 0.5 if is_whole else 0.0  # integers stand in the middle of their bars
    plot = Plot(axis(HISTOGRAMS[key], [edge - shift for edge in found.edges], whole=is_whole), up)
    body = ""
    for low, high, count in zip(found.edges[:-1], found.edges[1:], found.counts, strict=True):
        if count:
            height = math.log10(2 * count) if is_log else count
            style = _side(low, high) if key in ("credit", "advantage") else "run1"
            body += plot.bar(low - shift, high - shift, height, style, _tip(low, high, count, is_whole))
    how += " Counts on a logarithmic scale." if is_log else ""
    return Picture(title, how, plot.render(body, title))


def _tip(low: float, high: float, count: int, is_whole: bool) -> str:
    if is_whole:
        last = high - 1
        return f"{low:g}: {count}" if last <= low else f"{low:g} to {last:g}: {count}"
    return f"{span(low, high, 3)}: {count}"


def _log_counts(most: int) -> Axis:
    """Heights are log₁₀(2 · count), so that one of a kind still has a bar."""
    powers = range(math.floor(math.log10(most)) + 1)
    ticks = tuple(math.log10(2 * 10**power) for power in powers)
    return Axis(
        "count, logarithmic", 0.0, math.log10(2.2 * most), ticks, tuple(tick(10**power) for power in powers)
    )


def _side(low: float, high: float) -> str:
    """Colour of a bin: that of losses if it lies below 0, of gains above, neither around it."""
    return "neg" if high <= 0 else "pos" if low >= 0 else "soft"
