"""The whole report in the terminal: tables of steps and calibration, histograms as bars, the worst segments."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rredcot_plugin.report.colour import credit_scale
from rredcot_plugin.report.columns import bin_rewards, step_numbers
from rredcot_plugin.report.corpus import HISTOGRAMS, WHOLE, CalibrationBin, Corpus, Histogram, StepSummary
from rredcot_plugin.report.curves import Curve
from rredcot_plugin.report.findings import findings
from rredcot_plugin.report.select import worst_segments
from rredcot_plugin.report.terminal import render_trace
from rredcot_plugin.report.text import column, plain, precise, short, span, visible

BARS = "▁▂▃▄▅▆▇█"
FEW_SOURCES = 4
MOST_STEPS = 20
MOST_POINTS = 40


def render_corpus(
    corpus: Corpus, curves: Sequence[Curve] = (), notes: Sequence[str] = (), worst: int = 3
) -> RenderableType:
    """What the page shows, in text; ``worst`` traces with the segments that lost most."""
    parts: list[RenderableType] = [
        Text(f"{corpus.num_traces:,} traces in {corpus.num_groups:,} groups", style="bold"),
        *(Text(visible(source), style="dim") for source in corpus.sources[:FEW_SOURCES]),
        *(Text(visible(note), style="dim") for note in notes),
        *(
            Text(f"! {text}", style="yellow")
            for text in findings(corpus.steps, corpus.bias, calibrated=corpus.calibrated, fitted=corpus.fitted)
        ),
        _heading("Steps"),
        _steps(corpus.steps),
    ]
    if curves:
        parts += [_heading("Learning curves"), _curves(curves)]
    if corpus.calibration:
        parts += [
            _heading("Calibration: the reward that followed states of a value"),
            _calibration(corpus.calibration),
        ]
    parts += [_heading("Histograms"), _histograms(corpus)]
    parts += _worst(corpus, worst)
    return Group(*parts)


def bars(counts: Sequence[int]) -> str:
    """One character a bin, as high as its count; a space for none.

    >>> bars([0, 1, 50, 100])
    ' ▁▄█'
    """
    top = max(counts, default=0) or 1
    return "".join(BARS[max(0, -(-len(BARS) * count // top) - 1)] if count else " " for count in counts)


def thinned(items: Sequence[StepSummary], most: int = MOST_STEPS) -> list[StepSummary]:
    """At most so many, evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for i, name in enumerate(names):
        # names of rows may be broken where a terminal is narrow, numbers may not
        table.add_column(name, justify="left" if i == 0 else "right", no_wrap=i > 0, overflow="fold")
    return table


def _steps(steps: Sequence[StepSummary]) -> RenderableType:
    table = _table("step", "traces", "reward", "std", "V̂ of prompt", "V̂ − R", "(R − V̂)²", "tokens", "segments")
    shown = thinned(steps)
    for step, *numbers in zip(shown, *step_numbers(shown, 2), strict=True):
        lengths = plain(step.tokens, 1), plain(step.segments, 1)
        table.add_row(str(step.step), f"{step.traces:,}", *numbers, *lengths)
    if len(shown) == len(steps):
        return table
    return Group(table, Text(f"{len(shown)} of {len(steps):,} steps", style="dim"))


def _curves(curves: Sequence[Curve]) -> Table:
    table = _table("run", "first", "last", "smoothed", "reward over the steps")
    for curve in curves:
        smoothed = curve.smoothed()
        points = smoothed[:: -(-len(smoothed) // MOST_POINTS)]
        low, size = min(smoothed), max(smoothed) - min(smoothed)
        line = "".join(BARS[int((len(BARS) - 1) * (point - low) / size) if size else 0] for point in points)
        table.add_row(
            Text(visible(curve.name)),
            precise(curve.values[0]),
            precise(curve.values[-1]),
            precise(smoothed[-1]),
            line,
        )
    return table


def _calibration(bins: Sequence[CalibrationBin]) -> Table:
    table = _table("V̂", "states", "prompts", "mean V̂", "mean reward", "95 % interval")
    values = column(one.value for one in bins)
    for one, value, reward, interval in zip(bins, values, *bin_rewards(bins, 2), strict=True):
        known = interval if one.prompts > 1 else "n/a"
        table.add_row(span(one.low, one.high), f"{one.states:,}", f"{one.prompts:,}", value, reward, known)
    return table


def _histograms(corpus: Corpus) -> Table:
    table = _table("", "from", "", "to", "numbers")
    table.columns[2].justify = "left"
    for name, axis in HISTOGRAMS.items():
        found: Histogram | None = corpus.histograms.get(name)
        if found is not None:
            last = found.edges[-1] - (name in WHOLE)  # the last integer that the bin holds
            ends = (_edge(found.edges[0]), _edge(last))
            table.add_row(axis, ends[0], bars(found.counts), ends[1], f"{sum(found.counts):,}")
    return table


def _edge(number: float) -> str:
    return short(number) if abs(number) >= 1 or number == 0 else f"{number:.3g}".replace("-", "−")


def _worst(corpus: Corpus, most: int) -> list[RenderableType]:
    traces = [trace for group in corpus.groups for trace in group.traces]
    if most == 0 or not traces:
        return []
    if not corpus.has_credit:
        return [
            Text(
                "\nNo segment credit in these files: there are no worst segments to show. `rredcot score` adds it.",
                style="dim",
            )
        ]
    losing = worst_segments(traces, most)
    if not losing:
        return [Text("\nNo segment lost reward.", style="dim")]
    scale = credit_scale(traces)
    found: list[RenderableType] = [_heading("Segments that lost the most reward")]
    for trace, _ in losing:
        found += [render_trace(trace, scale), Text("")]
    return found
