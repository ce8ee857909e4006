"""Turns of an agent in a trace: what each is worth, what tools answered before it, and the calls in the model's own text."""

from __future__ import annotations

import re

from rredcot_plugin.report.fold import folded
from rredcot_plugin.report.text import escape, readable_prompt, signed
from rredcot_plugin.report.traces import ScoredSegment, Trace
from rredcot_plugin.text.tool_calls import CALLS

OBSERVATION_BUDGET = 300
"""Characters of an observation before its middle is folded away."""

CALL = re.compile(
    "|".join(rf"{re.escape(opens)}.*?(?:{re.escape(closes)}|\Z)" for opens, closes in CALLS), re.DOTALL
)
"""A tool call, to the end of the text where it is not closed."""


def turn_credit(trace: Trace, turn: int) -> float:
    """Σ δ of a turn's segments, in reward units."""
    turns = zip(trace.turns, trace.segments, strict=True)
    return sum(segment.credit for number, segment in turns if number == turn)


def turn_line(trace: Trace, index: int, digits: int = 2) -> str:
    """ "turn 2, credit −0.10" for the first segment of a turn, of traces that have several; else nothing."""
    turns = trace.turns
    if turns[-1] == 1 or (index > 0 and turns[index] == turns[index - 1]):
        return ""
    return f"turn {turns[index]}, credit {signed(turn_credit(trace, turns[index]), digits)}"


def observation_of(trace: Trace, index: int) -> str:
    """What the model was shown before a segment: a tool's answer, or the rewritten context of another output; plain text."""
    segment = trace.segments[index]
    if index > 0 and segment.output != trace.segments[index - 1].output:
        return readable_prompt(trace.output_prompts.get(segment.output, ""))
    return readable_prompt(segment.observation)


def render_turn(trace: Trace, index: int, digits: int = 2) -> str:
    """HTML that stands above a segment: the line of its turn and what was observed before it."""
    line, observed = turn_line(trace, index, digits), observation_of(trace, index)
    found = f'<div class="turn">{escape(line)}</div>' if line else ""
    if not observed:
        return found
    return f'<div class="observation">{folded(observed, OBSERVATION_BUDGET)}</div>{found}'


def render_own(segment: ScoredSegment, budget: int) -> str:
    """HTML of a segment's text: tool calls and what the model did not write stand out, and long texts are folded."""
    text = segment.text.strip("\n")
    shift = segment.text.find(text)
    marks = [  # what lies in the stripped line ends is not shown
        (max(0, begin - shift), min(len(text), end - shift), "observation")
        for begin, end in segment.observed
        if end <= len(segment.text)
    ]
    marks += [(call.start(), call.end(), "tool-call") for call in CALL.finditer(text)]
    found, at = [], 0
    for begin, end, kind in sorted(marks):
        if begin < at or end <= begin:  # a call that reaches over an observation, or nothing
            continue
        found += [_part(text[at:begin], budget), f'<span class="{kind}">{_part(text[begin:end], budget)}</span>']
        at = end
    return "".join([*found, _part(text[at:], budget)])


def _part(text: str, budget: int) -> str:
    return folded(text, budget) if text else ""
