"""The page of `rredcot report --compare`: curves of several runs, options that differ, traces of the same prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean

from rredcot_plugin.report.colour import Scales, render_legend
from rredcot_plugin.report.compare import Comparison, Run
from rredcot_plugin.report.controls import render_controls
from rredcot_plugin.report.corpus import StepSummary
from rredcot_plugin.report.curves import COLOURS, Curve
from rredcot_plugin.report.findings import findings
from rredcot_plugin.report.fold import folded
from rredcot_plugin.report.html import PROMPT_BUDGET, Look, render_trace, room
from rredcot_plugin.report.page import Section, interactive, render_page, render_table
from rredcot_plugin.report.plots import Picture, learning_curves
from rredcot_plugin.report.report_page import render_figure, threshold
from rredcot_plugin.report.select import Group
from rredcot_plugin.report.svg import Plot, axis, drawable
from rredcot_plugin.report.text import escape, plain, precise, readable_prompt
from rredcot_plugin.report.value_curve import limits

WINDOW = 5
"""Steps averaged at either end of a run."""

HEADER = (
    "run", "traces", "steps", f"mean reward, first {WINDOW}", f"last {WINDOW} steps", "tokens per trace", "segments",
    "(R − V̂)²", "V̂ − R",
)  # fmt: skip

METRICS: tuple[tuple[str, str, Callable[[StepSummary], float]], ...] = (
    ("Mean reward by step", "Mean reward of a trace.", lambda s: s.reward),
    ("Length by step", "Mean tokens of a response.", lambda s: s.tokens),
    ("Value error by step", "Mean of (R − V̂)² at all boundaries, the Brier score where rewards are 0 and 1.", lambda s: s.squared_error),
    ("Value bias by step", "Mean of V̂ − R at the boundaries after the prompt; 0 is right.", lambda s: s.bias.mean if s.bias else math.nan),
    ("Credit by step", "Mean of |δ| over segments: how much of the reward is credited anywhere but evenly.", lambda s: s.credit),
    ("Segments by step", "Mean segments of a trace.", lambda s: s.segments),
)  # fmt: skip
"""Title, how to read it, and the number of a step."""


def render_comparison(
    comparison: Comparison, curves: Sequence[Curve] = (), title: str = "rredcot report", notes: Sequence[str] = ()
) -> str:
    """One self-contained page; all texts of the runs are escaped."""
    runs = comparison.runs
    sections = [
        Section("Runs", "", _runs(runs)),
        Section("Options", *_options(comparison)),
        Section("Curves", "One run is one seed.", _curves(runs, curves)),
        Section("The same prompts", *_traces(comparison)),
    ]
    lead = f"{' against '.join(run.label for run in runs)}: {comparison.shared:,} prompts are in all of them."
    intro = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return render_page(title, lead, sections, interactive(intro))


def _runs(runs: Sequence[Run]) -> str:
    said = "".join(
        f'<p class="call">{escape(f"{run.label}: {text}")}</p>'
        for run in runs
        for text in findings(
            run.corpus.steps, run.corpus.bias, calibrated=run.corpus.calibrated, fitted=run.corpus.fitted
        )
    )
    return said + render_table(HEADER, [_cells(run) for run in runs])


def _cells(run: Run) -> list[str]:
    steps = run.corpus.steps
    rewards = [step.reward for step in steps]
    bias = run.corpus.bias
    return [
        run.label,
        f"{run.corpus.num_traces:,}",
        f"{steps[0].step} to {steps[-1].step} ({len(steps)})",
        precise(_mean(rewards[:WINDOW])),
        precise(_mean(rewards[-WINDOW:])),
        plain(_mean([s.tokens for s in steps]), 1),
        plain(_mean([s.segments for s in steps]), 1),
        precise(_mean([s.squared_error for s in steps]), 3),
        precise(bias.mean if bias else math.nan, 3),
    ]


def _mean(numbers: Sequence[float]) -> float:
    known = drawable(numbers)
    return fmean(known) if known else math.nan


def _options(comparison: Comparison) -> tuple[str, str]:
    silent = [run.label for run in comparison.runs if not run.options]
    if silent:
        named = ", ".join(silent)
        return f"Not known of {named}: no run.json or .meta.json is beside its files.", ""
    rows = [[name, *values] for name, values in comparison.differing]
    if not rows:
        return "All recorded options are the same.", ""
    return "Those that are not the same in all runs.", render_table(["option", *_labels(comparison.runs)], rows)


def _labels(runs: Sequence[Run]) -> list[str]:
    return [run.label for run in runs]


def _curves(runs: Sequence[Run], curves: Sequence[Curve]) -> str:
    pictures = [metric_of_runs(runs, *metric) for metric in METRICS]
    if curves:
        pictures.insert(0, learning_curves(curves))
    missing = ", ".join(picture.title for picture in pictures if not picture.svg)
    note = f'<p class="note">Not drawn, as no run has two such numbers: {escape(missing)}.</p>' if missing else ""
    return f'<div class="pictures">{"".join(render_figure(p) for p in pictures if p.svg)}</div>{note}'


def metric_of_runs(runs: Sequence[Run], title: str, how: str, number: Callable[[StepSummary], float]) -> Picture:
    """A line per run of one number of its steps."""
    lines = [[(s.step, number(s)) for s in run.corpus.steps if math.isfinite(number(s))] for run in runs]
    if max(map(len, lines)) < 2:
        return Picture(title, how, missing="numbers of two steps are needed")
    steps, values = zip(*(point for line in lines for point in line), strict=True)
    plot = Plot(axis("training step", steps, whole=True), axis(title.removesuffix(" by step"), [0.0, *values]))
    body, legend = "", []
    for i, (run, line) in enumerate(zip(runs, lines, strict=True)):
        style = f"run{i % len(COLOURS)}"
        legend.append((run.label, style))
        if line:
            body += plot.line([step for step, _ in line], [y for _, y in line], style)
            body += "".join(
                plot.dot(step, y, style, tip=f"{run.label}, step {step}: {precise(y, 3)}") for step, y in line
            )
    return Picture(title, how, plot.render(body, title), legend=tuple(legend))


def _traces(comparison: Comparison) -> tuple[str, str]:
    if not comparison.pairs and comparison.shared:
        return (
            f"None of the {comparison.shared:,} shared prompts fits into --max-traces and --max-mb; raise them.",
            "",
        )
    if not comparison.pairs:
        return "The runs have no prompt in common, so no traces can stand beside each other.", ""
    groups = [_merged(pair) for pair in comparison.pairs]
    traces = [trace for group in groups for trace in group.traces]
    right_above = max(threshold(run.corpus) for run in comparison.runs)
    look = Look(Scales.of(traces), right_above)
    pairs = "\n".join(_pair(comparison.runs, pair, look) for pair in comparison.pairs)
    body = (
        f"{render_controls(groups, right_above, 'most different first')}{render_legend(traces, look.scales)}"
        f'<div class="groups">{pairs}</div><p class="empty note" hidden>No trace passes these filters.</p>'
    )
    note = f"{len(groups):,} of {comparison.shared:,} shared prompts, those whose mean rewards differ most first."
    return note, body


def _merged(pair: Sequence[Group]) -> Group:
    first = pair[0]
    traces = tuple(trace for group in pair for trace in group.traces)
    return Group(first.step, first.prompt, first.ground_truth, traces, sum(group.size for group in pair))


def _pair(runs: Sequence[Run], pair: Sequence[Group], look: Look) -> str:
    merged = _merged(pair)
    outcomes = {look.outcome(trace) for trace in merged.traces}
    truth = "" if merged.ground_truth is None else f'<span class="truth">right answer {folded(merged.ground_truth, 200)}</span>'  # fmt: skip
    span = limits(merged.traces)
    tallest = max((group.traces for group in pair), key=len)
    sides = "".join(_side(run, group, look, span) for run, group in zip(runs, pair, strict=True))
    return (
        f'<section class="group pair" style="{room(tallest)}" data-step="{merged.step}" data-mixed="{int({"right", "wrong"} <= outcomes)}">'
        f'<header><div class="prompt" role="heading" aria-level="3">'
        f"{folded(readable_prompt(merged.prompt), PROMPT_BUDGET)}</div>{truth}</header>"
        f'<div class="sides">{sides}</div></section>'
    )


def _side(run: Run, group: Group, look: Look, span: tuple[float, float]) -> str:
    cards = "\n".join(render_trace(trace, look, span) for trace in group.traces)
    return (
        f'<section class="side-of-run"><h4>{escape(run.label)} <span class="note">step {group.step}, '
        f'{len(group.traces)} of {group.size} traces</span></h4><div class="cards">{cards}</div></section>'
    )
