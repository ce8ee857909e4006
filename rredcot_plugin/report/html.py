"""Traces as HTML: one row a segment, coloured by its credit, with the course of the value under each trace.

Everything that a model wrote goes through ``escape``; there is no script in what this module makes.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from rredcot_plugin.report.select import Group
from rredcot_plugin.report.text import plain, readable_prompt, short, signed, visible
from rredcot_plugin.report.traces import ScoredSegment, Trace
from rredcot_plugin.report.value_curve import value_curve

FAINT = 0.03
"""Share of the colour scale below which a segment stays uncoloured."""


def escape(text: str) -> str:
    return html.escape(visible(text), quote=True)


def credit_scale(traces: Sequence[Trace]) -> float:
    """|credit| that gets the full colour, in reward units: the largest one of these traces, or 1 if all are 0."""
    sizes = [abs(s.credit) for trace in traces for s in trace.segments if not math.isnan(s.credit)]
    return max(sizes, default=0.0) or 1.0


def render_groups(groups: Sequence[Group]) -> str:
    """All groups, one below the other, on one colour scale."""
    scale = credit_scale([trace for group in groups for trace in group.traces])
    return _legend(scale) + "\n".join(_render_group(group, scale) for group in groups)


def _legend(scale: float) -> str:
    return (
        f'<div class="legend"><span>{signed(-scale)}</span><span class="ramp" aria-hidden="true"></span>'
        f"<span>{signed(scale)}</span><span class='note'>credit of a step: how much it changed the expected "
        "reward. Point at a step for its numbers.</span></div>\n"
    )


def _render_group(group: Group, scale: float) -> str:
    truth = ""
    if group.ground_truth is not None:
        truth = f'<span class="truth">right answer {escape(group.ground_truth)}</span>'
    cards = "\n".join(render_trace(trace, scale) for trace in group.traces)
    return (
        f'<section class="group"><header><h3>{escape(readable_prompt(group.prompt))}</h3>{truth}'
        f'<span class="note">step {group.step}, {len(group.traces)} of {group.size} traces</span></header>'
        f'<div class="cards">{cards}</div></section>'
    )


def render_trace(trace: Trace, scale: float) -> str:
    """One trace as a card; ``scale`` is the |credit| of full colour."""
    rows = "".join(_row(trace, i, scale) for i in range(len(trace.segments)))
    if not rows:
        rows = '<li><span class="credit"></span><span class="text note">empty response</span></li>'
    return (
        f'<article class="trace">{_badge(trace)}<ol class="segments">{rows}</ol>'
        f"{value_curve(trace, scale)}</article>"
    )


def _badge(trace: Trace) -> str:
    # rewards are any real numbers; only 0/1 rewards say right and wrong by themselves
    mark = {1.0: "✓ ", 0.0: "✗ "}.get(trace.reward, "")
    kind = "good" if trace.reward > 0 else "bad"
    tokens = sum(segment.tokens for segment in trace.segments)
    return (
        f'<header><span class="badge {kind}">{mark}reward {short(trace.reward)}</span>'
        f'<span class="note">{tokens} tokens, {len(trace.segments)} steps</span></header>'
    )


def _row(trace: Trace, index: int, scale: float) -> str:
    segment = trace.segments[index]
    is_worst = index == trace.worst and segment.credit < -0.1 * scale
    flag = '<span class="flag">lost most here</span>' if is_worst else ""
    kinds = f"{kind_of(segment.credit)}{' worst' if is_worst else ''}"
    return (
        f'<li class="{kinds}" style="--a:{strength(segment.credit, scale):.2f}" title="{_numbers(trace, index)}">'
        f'<span class="credit">{signed(segment.credit)}</span>'
        f'<span class="text">{escape(segment.text.strip(chr(10)))}{flag}</span></li>'
    )


def kind_of(credit: float) -> str:
    """CSS class of a credit: ``neg``, ``pos`` or ``zero`` (0 and NaN)."""
    return "neg" if credit < 0 else "pos" if credit > 0 else "zero"


def strength(credit: float, scale: float) -> float:
    """Opacity of a segment's colour in [0, 1], linear in |credit| / scale; faint and unknown ones get 0."""
    share = 0.0 if math.isnan(credit) else min(1.0, abs(credit) / scale)
    return share if share >= FAINT else 0.0


def _numbers(trace: Trace, index: int) -> str:
    segment: ScoredSegment = trace.segments[index]
    before, after = trace.values[index], trace.values[index + 1]
    tokens = "1 token" if segment.tokens == 1 else f"{segment.tokens} tokens"
    return (
        f"step {index + 1} of {len(trace.segments)}: credit {signed(segment.credit, 3)}; expected reward "
        f"{plain(before, 3)} before, {plain(after, 3)} after; advantage {signed(segment.advantage, 3)}; {tokens}"
    )
