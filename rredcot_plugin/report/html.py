"""Traces as HTML: one row a segment, coloured by its credit, with the course of the value under each trace.

Everything that a model wrote goes through ``escape``; there is no script in what this module makes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rredcot_plugin.report.fold import folded
from rredcot_plugin.report.select import Group
from rredcot_plugin.report.text import plain, readable_prompt, short, signed
from rredcot_plugin.report.traces import ScoredSegment, Trace
from rredcot_plugin.report.value_curve import limits, value_curve

FAINT = 0.03
"""Share of the colour scale below which a segment stays uncoloured."""

FLAGGED = 0.2
"""Share of the colour scale that the worst segment must have lost to be pointed out."""

TRACE_BUDGET = 9000
"""Characters of a trace that are shown before its segments are folded, shared among them."""

LONG = 2500
"""A trace with more characters to show scrolls in its card."""

PROMPT_BUDGET = 600


@dataclass(frozen=True)
class Look:
    """What all traces of a page share: |credit| of full colour, and the reward above which a trace is right."""

    scale: float = 1.0
    right_above: float = 0.0

    def outcome(self, trace: Trace) -> str:
        """``right``, ``wrong``, or ``unknown`` where the reward is not a number."""
        if math.isnan(trace.reward):
            return "unknown"
        return "right" if trace.reward > self.right_above else "wrong"


def credit_scale(traces: Sequence[Trace]) -> float:
    """|credit| that gets the full colour, in reward units; 1 if all credit is 0.

    It is the 95th percentile of the traces' largest |credit|, rounded down to one of them: a single trace with an
    outlier does not bleach all others, and is itself drawn at full colour.
    """
    sizes = [max((abs(c) for c in _credits(trace)), default=0.0) for trace in traces]
    peaks = sorted(size for size in sizes if size > 0)
    return peaks[int(0.95 * (len(peaks) - 1))] if peaks else 1.0


def _credits(trace: Trace) -> list[float]:
    return [s.credit for s in trace.segments if math.isfinite(s.credit)]


def has_credit(trace: Trace) -> bool:
    """Whether any segment has credit: verl's own rollouts have none, a reward that is NaN gives none."""
    return bool(_credits(trace))


def render_groups(groups: Sequence[Group], right_above: float = 0.0) -> str:
    """All groups, one below the other, on one colour scale."""
    traces = [trace for group in groups for trace in group.traces]
    look = Look(credit_scale(traces), right_above)
    legend = _legend(traces, look.scale) if any(map(has_credit, traces)) else ""
    body = "\n".join(_render_group(group, look) for group in groups)
    return f'{legend}<div class="groups">{body}</div>'


def _legend(traces: Sequence[Trace], scale: float) -> str:
    beyond = any(abs(credit) > scale for trace in traces for credit in _credits(trace))
    least, most = (" or less", " or more") if beyond else ("", "")
    return (
        f'<div class="legend"><span>{signed(-scale)}{least}</span><span class="ramp" aria-hidden="true"></span>'
        f"<span>{signed(scale)}{most}</span><span class='note'>credit of a segment: how much it changed the expected "
        "reward. Point at a segment for its numbers.</span></div>\n"
    )


def _render_group(group: Group, look: Look) -> str:
    truth = ""
    if group.ground_truth is not None:
        truth = f'<span class="truth">right answer {folded(group.ground_truth, 200)}</span>'
    outcomes = {look.outcome(trace) for trace in group.traces}
    span = limits(group.traces)
    cards = "\n".join(render_trace(trace, look.scale, look.right_above, span) for trace in group.traces)
    return (
        f'<section class="group{" wide" if any(map(_is_long, group.traces)) else ""}" data-step="{group.step}" data-mixed="{int({"right", "wrong"} <= outcomes)}">'
        f'<header><div class="prompt" role="heading" aria-level="3">'
        f"{folded(readable_prompt(group.prompt), PROMPT_BUDGET)}</div>{truth}"
        f'<span class="note">step {group.step}, {len(group.traces)} of {group.size} traces</span></header>'
        f'<div class="cards">{cards}</div></section>'
    )


def render_trace(
    trace: Trace, scale: float, right_above: float = 0.0, span: tuple[float, float] | None = None
) -> str:
    """One trace as a card; ``scale`` is the |credit| of full colour, ``span`` the vertical axis of its curve."""
    look = Look(scale, right_above)
    reward = "" if math.isnan(trace.reward) else f"{trace.reward:.6g}"
    # + 0.0: no loss is 0, not −0
    data = (
        f'data-outcome="{look.outcome(trace)}" data-reward="{reward}" data-loss="{-trace.lowest_credit + 0.0:.6g}"'
    )
    return (
        f'<article class="trace" {data}>{_header(trace, look)}{_segments(trace, scale)}'
        f'<p class="detail" aria-hidden="true"></p>{value_curve(trace, scale, span)}</article>'
    )


def _header(trace: Trace, look: Look) -> str:
    # rewards are any real numbers; only 0/1 rewards say right and wrong by themselves
    mark = {1.0: "✓ ", 0.0: "✗ "}.get(trace.reward, "")
    kind = {"right": "good", "wrong": "bad"}.get(look.outcome(trace), "unknown")
    tokens = sum(segment.tokens for segment in trace.segments)
    size = _number(sum(len(segment.text) for segment in trace.segments), "character")
    if trace.has_segments:
        size = f"{_number(tokens, 'token')}, {_number(len(trace.segments), 'segment')}"
    jump = (
        '<button type="button" class="go">go to worst</button>'
        if _is_long(trace) and _flagged(trace, look.scale)
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


def _segments(trace: Trace, scale: float) -> str:
    kinds = " ".join(
        ["segments", *(["long"] if _is_long(trace) else []), *([] if has_credit(trace) else ["bare"])]
    )
    rows = "".join(_row(trace, i, scale) for i in range(len(trace.segments)))
    if not rows:
        rows = '<li><span class="credit"></span><div class="text note">empty response</div></li>'
    return f'<ol class="{kinds}">{rows}</ol>'


def _row(trace: Trace, index: int, scale: float) -> str:
    segment = trace.segments[index]
    text = folded(segment.text.strip("\n"), _budget(trace))
    if not has_credit(trace):
        return f'<li><div class="text">{text}</div></li>'
    is_worst = index == _flagged(trace, scale)
    flag = '<span class="flag">lost most here</span>' if is_worst else ""
    kinds = f"{kind_of(segment.credit)}{' worst' if is_worst else ''}"
    return (
        f'<li class="{kinds}" style="--a:{strength(segment.credit, scale):.2f}">'
        f'<button type="button" class="credit">{signed(segment.credit)}</button>'
        f'<div class="text">{flag}{text}</div><span class="numbers">{_numbers(trace, index)}</span></li>'
    )


def _flagged(trace: Trace, scale: float) -> int | None:
    """The segment that lost most, if what it lost is worth a flag."""
    return trace.worst if trace.lowest_credit < -FLAGGED * scale else None


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
    return (
        f"segment {index + 1} of {len(trace.segments)}: credit {signed(segment.credit, 3)}; expected reward "
        f"{plain(before, 3)} before, {plain(after, 3)} after; advantage {signed(segment.advantage, 3)}; "
        f"{_number(segment.tokens, 'token')}"
    )
