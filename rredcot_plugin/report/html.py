"""Traces as HTML: one row per segment, coloured by its credit or its advantage, with the value curve under each trace.

Everything that a model wrote goes through ``escape``; there is no script in what this module makes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from rredcot_plugin.report.colour import Scales, has_credit, kind_of, render_legend, strength
from rredcot_plugin.report.fold import folded
from rredcot_plugin.report.select import Group
from rredcot_plugin.report.text import decimals, escape, plain, readable_prompt, short, signed
from rredcot_plugin.report.traces import ScoredSegment, Trace
from rredcot_plugin.report.turns import render_own, render_turn
from rredcot_plugin.report.value_curve import limits, value_curve
from rredcot_plugin.report.why import render_why, sibling_note

FLAGGED = 0.2
"""Share of the colour scale that the worst segment must have lost to be pointed out."""

TRACE_BUDGET = 9000
"""Characters of a trace that are shown before its segments are folded, shared among them."""

LONG = 2500
"""A trace with more characters to show scrolls in its card."""

PROMPT_BUDGET = 600

CARD_HEIGHT, LIST_HEIGHT, LINE_HEIGHT, LINE_CHARACTERS = 262, 470, 25, 32
"""Roughly, in pixels: a card without its texts, the texts of one that scrolls, a line; and what fits on a line."""


@dataclass(frozen=True)
class Look:
    """What all traces of a page share: the colour scales, and the reward above which a trace is right."""

    scales: Scales = field(default_factory=Scales)
    right_above: float = 0.0

    def outcome(self, trace: Trace) -> str:
        """``right``, ``wrong``, or ``unknown`` where the reward is not a number."""
        if math.isnan(trace.reward):
            return "unknown"
        return "right" if trace.reward > self.right_above else "wrong"


def render_groups(groups: Sequence[Group], right_above: float = 0.0) -> str:
    """All groups, one below the other, on one colour scale, under the control of their colours."""
    traces = [trace for group in groups for trace in group.traces]
    look = Look(Scales.of(traces), right_above)
    body = "\n".join(render_group(group, look) for group in groups)
    return f'{render_legend(traces, look.scales)}<div class="groups">{body}</div>'


def render_group(group: Group, look: Look) -> str:
    """One prompt and its traces side by side."""
    truth = ""
    if group.ground_truth is not None:
        truth = f'<span class="truth">right answer {folded(group.ground_truth, 200)}</span>'
    outcomes = {look.outcome(trace) for trace in group.traces}
    span = limits(group.traces)
    cards = "\n".join(render_trace(trace, look, span) for trace in group.traces)
    kinds = "group wide" if any(map(_is_long, group.traces)) else "group"
    why = sibling_note(group.traces, group.size)
    note = f'<p class="note siblings">{escape(why)}</p>' if why else ""
    return (
        f'<section class="{kinds}" style="{room(group.traces)}" data-step="{group.step}" data-mixed="{int({"right", "wrong"} <= outcomes)}">'
        f'<header><div class="prompt" role="heading" aria-level="3">'
        f"{folded(readable_prompt(group.prompt), PROMPT_BUDGET)}</div>{truth}"
        f'<span class="note">step {group.step}, {len(group.traces)} of {group.size} traces</span>{note}</header>'
        f'<div class="cards">{cards}</div></section>'
    )


def room(traces: Sequence[Trace]) -> str:
    """Style from which the browser guesses how high the cards will be, before it has drawn them: without it the page
    would grow while one scrolls."""
    lines = max((_lines(trace) for trace in traces), default=0)
    text = min(LIST_HEIGHT, LINE_HEIGHT * lines) if any(map(_is_long, traces)) else LINE_HEIGHT * lines
    return f"--cards:{len(traces)};--card-height:{CARD_HEIGHT + text}px"


def _lines(trace: Trace) -> int:
    """Lines of a card's texts, roughly."""
    return sum(1 + min(len(segment.text), _budget(trace)) // LINE_CHARACTERS for segment in trace.segments)


def render_trace(trace: Trace, look: Look | None = None, span: tuple[float, float] | None = None) -> str:
    """One trace as a card; ``span`` is the vertical axis of its curve."""
    look = look or Look()
    reward = "" if math.isnan(trace.reward) else f"{trace.reward:.6g}"
    # + 0.0: no loss is 0, not −0
    data = (
        f'data-outcome="{look.outcome(trace)}" data-reward="{reward}" data-loss="{-trace.lowest_credit + 0.0:.6g}"'
    )
    return (
        f'<article class="trace" {data}>{_header(trace, look)}{_segments(trace, look.scales)}'
        f'<p class="detail" aria-hidden="true"></p>{render_why(trace, look.right_above)}'
        f"{value_curve(trace, look.scales.credit, span)}</article>"
    )


def _header(trace: Trace, look: Look) -> str:
    outcome = look.outcome(trace)
    # rewards are any real numbers; only 0/1 rewards say right and wrong by themselves
    mark = {(1.0, "right"): "✓ ", (0.0, "wrong"): "✗ "}.get((trace.reward, outcome), "")
    kind = {"right": "good", "wrong": "bad"}.get(outcome, "unknown")
    tokens = sum(segment.tokens for segment in trace.segments)
    size = _number(sum(len(segment.text) for segment in trace.segments), "character")
    if trace.has_segments:
        size = f"{_number(tokens, 'token')}, {_number(len(trace.segments), 'segment')}"
    if trace.segments and trace.turns[-1] > 1:
        size += f", {_number(trace.turns[-1], 'turn')}"
    jump = (
        '<button type="button" class="go">go to worst</button>'
        if _is_long(trace) and _flagged(trace, look.scales.credit) is not None
        else ""
    )
    return (
        f'<header><span class="badge {kind}">{mark}reward {short(trace.reward)}</span>{jump}'
        f'<span class="note">{size}</span></header>'
    )


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _budget(trace: Trace) -> int:
    return min(900, max(180, TRACE_BUDGET // max(1, len(trace.segments))))


def _is_long(trace: Trace) -> bool:
    return sum(min(len(segment.text), _budget(trace)) for segment in trace.segments) > LONG


def _segments(trace: Trace, scales: Scales) -> str:
    is_bare = not has_credit(trace)
    kinds = " ".join(["segments", *(["long"] if _is_long(trace) else []), *(["bare"] if is_bare else [])])
    places = range(len(trace.segments))
    rows = "".join(_bare_row(trace, i, scales) if is_bare else _row(trace, i, scales) for i in places)
    if not rows:
        rows = '<li><span class="credit"></span><div class="text note">empty response</div></li>'
    return f'<ol class="{kinds}">{rows}</ol>'


def _text(trace: Trace, index: int, scales: Scales) -> str:
    return render_turn(trace, index, decimals(scales.credit)) + render_own(trace.segments[index], _budget(trace))


def _bare_row(trace: Trace, index: int, scales: Scales) -> str:
    return f'<li><div class="text">{_text(trace, index, scales)}</div></li>'


def _row(trace: Trace, index: int, scales: Scales) -> str:
    segment = trace.segments[index]
    is_worst = index == _flagged(trace, scales.credit)
    flag = '<span class="flag">lost most here</span>' if is_worst else ""
    kinds = f"{kind_of(segment.credit)}{' worst' if is_worst else ''}"
    opacities = f"--a:{strength(segment.credit, scales.credit):.2f};--b:{strength(segment.advantage, scales.advantage):.2f}"
    return (
        f'<li class="{kinds}" data-advantage="{kind_of(segment.advantage)}" style="{opacities}">'
        f'<button type="button" class="credit"><span class="by-credit">{signed(segment.credit, decimals(scales.credit))}</span>'
        f'<span class="by-advantage">{signed(segment.advantage, decimals(scales.advantage))}</span></button>'
        f'<div class="text">{flag}{_text(trace, index, scales)}</div>'
        f'<div class="numbers">{_numbers(trace, index, scales)}</div></li>'
    )


def _flagged(trace: Trace, scale: float) -> int | None:
    """The segment that lost most, if what it lost is worth a flag."""
    return trace.worst if trace.lowest_credit < -FLAGGED * scale else None


def _numbers(trace: Trace, index: int, scales: Scales) -> str:
    """Three lines, so that they take the same room for every segment."""
    segment: ScoredSegment = trace.segments[index]
    before, after = trace.values[index], trace.values[index + 1]
    digits, of_advantage = decimals(scales.credit, 3), decimals(scales.advantage, 3)
    lines = (
        f"segment {index + 1} of {len(trace.segments)}, {_number(segment.tokens, 'token')}: ",
        f"credit {signed(segment.credit, digits)}, advantage {signed(segment.advantage, of_advantage)}; ",
        f"expected reward {plain(before, digits)} before, {plain(after, digits)} after",
    )
    return "".join(f"<span>{line}</span>" for line in lines)
