"""The page of `rredcot report`: what was read, numbers over all of it, and the traces that lost most."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rredcot_plugin.report.colour import has_credit
from rredcot_plugin.report.columns import bin_rewards, step_numbers
from rredcot_plugin.report.controls import render_controls
from rredcot_plugin.report.corpus import CalibrationBin, Corpus, StepSummary
from rredcot_plugin.report.curves import Curve
from rredcot_plugin.report.findings import findings
from rredcot_plugin.report.html import render_groups
from rredcot_plugin.report.page import Section, interactive, render_page, render_table
from rredcot_plugin.report.plots import Picture, all_pictures
from rredcot_plugin.report.select import Group
from rredcot_plugin.report.svg import drawable, tick
from rredcot_plugin.report.text import column, escape, span

FEW_SOURCES = 4
"""More sources than these are folded."""

NO_CREDIT = (
    "These traces have no credit: their segments are not coloured. To get it, train with "
    "+algorithm.rredcot.dump_dir=FOLDER (algorithm.adv_estimator=rredcot) and report on FOLDER, or give existing "
    "rollouts credit with: rredcot score ROLLOUTS.jsonl --model MODEL"
)

STEP_HEADER = (
    "step", "traces", "mean reward", "std of reward", "V̂ of prompt", "V̂ − R after it", "(R − V̂)²",
    "tokens per trace", "segments per trace",
)  # fmt: skip

BIN_HEADER = ("V̂", "states", "prompts", "mean V̂", "mean reward", "95 % interval")


def render_report(
    corpus: Corpus,
    curves: Sequence[Curve] = (),
    title: str = "rredcot report",
    notes: Sequence[str] = (),
    reload: float | None = None,
) -> str:
    """One self-contained HTML page; all texts in ``corpus``, ``curves``, ``title`` and ``notes`` are escaped.

    With ``reload`` the page loads itself again after so many seconds, until a reader says no. Equal arguments give
    equal pages. Its one script filters and sorts what is there already: without it the page
    shows everything.
    """
    groups = _ordered(corpus.groups)
    right_above = threshold(corpus)
    sections = [Section("Overview", "", _overview(corpus, curves))]
    if groups:
        note = f"Right: reward above {tick(right_above)}, half-way between the lowest and the highest (0 if all are equal)."
        if corpus.has_credit:
            note += " Select a segment to see its stretch in the curve of the expected reward; arrow keys move on."
        body = f"{render_controls(groups, right_above)}{render_groups(groups, right_above)}"
        none = '<p class="empty note" hidden>No trace passes these filters.</p>'
        sections.append(Section("Traces", note, body + none))
    return render_page(
        title, _lead(corpus, groups), sections, interactive(_reload(reload) + _intro(corpus, groups, notes))
    )


def threshold(corpus: Corpus) -> float:
    """The reward above which a trace counts as right: half-way between the lowest and the highest one read.

    It is 0.5 for rewards 0 and 1, 0 for −1 and 1; where all rewards are equal, 0.
    """
    rewards = [trace.reward for group in corpus.groups for trace in group.traces]
    rewards = drawable([*rewards, *(corpus.reward_range or ())])
    if not rewards or min(rewards) == max(rewards):
        return 0.0
    return (min(rewards) + max(rewards)) / 2


def _ordered(groups: Iterable[Group]) -> list[Group]:
    """Worst loss first; where no trace has credit, by step."""
    return sorted(groups, key=lambda group: (group.lowest_credit, group.step))


def _lead(corpus: Corpus, groups: Sequence[Group]) -> str:
    if not corpus.num_traces:
        return "No traces were read."
    shown = sum(len(group.traces) for group in groups)
    read = f"{_count(corpus.num_traces, 'trace')} in {_count(corpus.num_groups, 'group')}"
    read += f" at {_count(len(corpus.steps), 'step')}" if corpus.steps else ""
    if shown == corpus.num_traces:
        return f"{read} were read, and all are shown."
    return (
        f"{read} were read. Numbers and plots cover all of them; shown below are {_count(shown, 'trace')} of "
        f"{_count(len(groups), 'group')}: {_choice(corpus, groups)}."
    )


def _choice(corpus: Corpus, groups: Sequence[Group]) -> str:
    if not corpus.has_credit:
        return "a sample"
    if len(groups) == corpus.num_groups:
        return "of each group the traces with the worst segments and one of the best reward"
    return "mostly those with the worst segments, up to a quarter drawn at random"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _intro(corpus: Corpus, groups: Sequence[Group], notes: Sequence[str]) -> str:
    parts = []
    if groups:
        parts.append('<nav aria-label="Parts"><a href="#h1">Overview</a><a href="#h2">Traces</a></nav>')
    sources = "".join(f"<li>{escape(source)}</li>" for source in corpus.sources)
    listed = f"<ul>{sources}</ul>"
    if len(corpus.sources) > FEW_SOURCES:
        listed = f"<details><summary>{len(corpus.sources):,} files</summary>{listed}</details>"
    if corpus.sources:
        parts.append(f'<dl class="facts"><dt>read from</dt><dd>{listed}</dd></dl>')
    parts += [f"<p>{escape(note)}</p>" for note in notes]
    if corpus.num_traces and not corpus.has_credit:
        parts.append(f'<p class="call">{escape(NO_CREDIT)}</p>')
    elif any(not has_credit(trace) for group in groups for trace in group.traces):
        parts.append(
            '<p class="note">Traces without colour have no credit: their rewards or values are not known.</p>'
        )
    return "".join(parts) + _problems(corpus)


def _reload(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return (
        f'<label class="reload" hidden><input type="checkbox" id="reload" data-seconds="{seconds:g}" checked>reload every '
        f"{seconds:g} s</label>"
    )


def _problems(corpus: Corpus) -> str:
    if not corpus.num_problems and not corpus.problems:
        return ""
    total = max(corpus.num_problems, len(corpus.problems))
    listed = f" (the first {len(corpus.problems)} are listed)" if len(corpus.problems) < total else ""
    rows = "".join(f"<li>{escape(f'{p.path}, line {p.line}: {p.why}')}</li>" for p in corpus.problems)
    return (
        f'<details class="fold"><summary>{_count(total, "line")} could not be read and '
        f"{'is' if total == 1 else 'are'} left out{listed}</summary><ul>{rows}</ul></details>"
    )


def _overview(corpus: Corpus, curves: Sequence[Curve]) -> str:
    pictures = all_pictures(corpus.steps, corpus.calibration, corpus.histograms, curves)
    drawn = "".join(render_figure(picture) for picture in pictures if picture.svg)
    reasons: dict[str, list[str]] = {}
    for picture in pictures:
        if not picture.svg:
            reasons.setdefault(picture.missing, []).append(picture.title)
    left_out = "; ".join(f"{', '.join(titles)} ({reason})" for reason, titles in reasons.items())
    missing = f'<p class="note">Not drawn: {escape(left_out)}.</p>' if left_out else ""
    said = "".join(
        f'<p class="call">{escape(text)}</p>'
        for text in findings(corpus.steps, corpus.bias, calibrated=corpus.calibrated, fitted=corpus.fitted)
    )
    return f'{said}<div class="pictures">{drawn}</div>{missing}{_step_table(corpus.steps)}{_bin_table(corpus.calibration)}'


def render_figure(picture: Picture) -> str:
    """A picture with its title, how to read it and its legend."""
    keys = "".join(
        f'<li><svg viewBox="0 0 26 10" aria-hidden="true"><path class="line {style}" d="M0 5H26"/></svg>{escape(name)}</li>'
        for name, style in picture.legend
    )
    legend = f'<ul class="keys">{keys}</ul>' if keys else ""
    return (
        f'<figure><figcaption><h3>{escape(picture.title)}</h3><p class="how">{escape(picture.how)}</p>{legend}'
        f"</figcaption>{picture.svg}</figure>"
    )


def _step_table(steps: Sequence[StepSummary]) -> str:
    if not steps:
        return ""
    is_open = " open" if len(steps) == 1 else ""
    table = render_table(STEP_HEADER, _step_rows(steps))
    return f'<details class="fold"{is_open}><summary>Numbers of each step as a table</summary>{table}</details>'


def _bin_table(bins: Sequence[CalibrationBin]) -> str:
    if not bins:
        return ""
    columns = [
        [span(b.low, b.high) for b in bins],
        [f"{b.states:,}" for b in bins],
        [f"{b.prompts:,}" for b in bins],
        column((b.value for b in bins), 3),
        *bin_rewards(bins, 3),
    ]
    table = render_table(BIN_HEADER, list(zip(*columns, strict=True)))
    return f'<details class="fold"><summary>Calibration as a table</summary>{table}</details>'


def _step_rows(steps: Sequence[StepSummary]) -> list[Sequence[str]]:
    lengths = (["n/a" if math.isnan(n) else f"{n:,.1f}" for n in (s.tokens, s.segments)] for s in steps)
    starts = ([str(s.step), f"{s.traces:,}"] for s in steps)
    numbers = zip(*step_numbers(steps, 3), strict=True)
    return [[*start, *own, *end] for start, own, end in zip(starts, numbers, lengths, strict=True)]
