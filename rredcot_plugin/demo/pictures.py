"""The demo's files: `curve.png`, and `demo.html` with curves, numbers and coloured traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rredcot_plugin.demo.summary import HEADER, RunSummary, summarise
from rredcot_plugin.demo.training import PROMPTS, ROLLOUTS, TrainingRun
from rredcot_plugin.report.curves import curve_of, draw, read_scalars, save_png
from rredcot_plugin.report.html import render_groups
from rredcot_plugin.report.page import Section, interactive, render_page, render_table
from rredcot_plugin.report.plots import learning_curves
from rredcot_plugin.report.report_page import render_figure
from rredcot_plugin.report.select import group_traces
from rredcot_plugin.report.traces import Trace, read_dumps

CAVEAT = "One seed and a tiny model: a picture of the method at work, not evidence that one estimator is better."


@dataclass(frozen=True)
class DemoResult:
    """Where the pictures are, the numbers of each run, and the traces that were dumped (none without rredcot)."""

    png: Path
    html: Path
    summaries: list[RunSummary]
    traces: list[Trace]


def make_pictures(out: Path, runs: Sequence[TrainingRun]) -> DemoResult:
    """Read what the runs left and write both files into ``out``.

    Raises:
        ValueError: a run without event files or rewards, or a broken dump.
    """
    scalars = {run.estimator: read_scalars(run.tensorboard) for run in runs}
    curves = [curve_of(name, found) for name, found in scalars.items()]
    png, page = out / "curve.png", out / "demo.html"
    save_png(draw(curves), png)
    summaries = [summarise(name, found) for name, found in scalars.items()]
    traces = [trace for run in runs if run.estimator == "rredcot" for trace in read_dumps(run.dumps)]
    sections = [
        Section("Learning curves", "", f'<div class="pictures">{render_figure(learning_curves(curves))}</div>'),
        Section("What happened", CAVEAT, render_table(HEADER, [summary.cells() for summary in summaries])),
    ]
    if traces:
        note = "Responses of the model while rredcot trained it, those whose segments lost most first."
        sections.append(Section("Which step lost the reward?", note, render_groups(group_traces(traces))))
    page.write_text(render_page("rredcot demo", _lead(runs[0]), sections, interactive()), encoding="utf-8")
    return DemoResult(png, page, summaries, traces)


def _lead(run: TrainingRun) -> str:
    return (
        f"A reasoner of 1.0M parameters, trained with stock verl on a CPU: {run.steps} steps of {PROMPTS} "
        f"prompts x {ROLLOUTS} responses, seed {run.seed}, the same data and budget for each estimator."
    )
