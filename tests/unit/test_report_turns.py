"""Agents in dumps and reports: turns, tool calls, what tools answered, sessions of several outputs."""

from __future__ import annotations

import html
import io
import json
import re
from typing import Any

import pytest
import torch
from rich.console import Console

import rredcot_plugin as rr
from rredcot_plugin.adapter.prompted_rollouts import Output, PromptedRollouts
from rredcot_plugin.adapter.trace_record import MAX_OBSERVATION_CHARACTERS, CreditedBatch, trace_record
from rredcot_plugin.report import terminal
from rredcot_plugin.report.html import render_trace
from rredcot_plugin.report.traces import read_trace
from rredcot_plugin.report.turns import turn_credit
from rredcot_plugin.text.tool_calls import CALLS
from tests.unit.report_runs import ATTACK
from tests.unit.test_dump import BYTES

CALL = '<tool_call>{"name": "calculator"}</tool_call>'


def record(*parts: str, segmenter: str = "turn") -> dict[str, Any]:
    """What is dumped of a rollout whose parts are written by the model and a tool in turn."""
    pieces = [part.encode() for part in parts]
    ids = torch.tensor([list(b"".join(pieces))])
    own = [number % 2 == 0 for number, piece in enumerate(pieces) for _ in piece]
    mask = torch.tensor([own])
    rewards = torch.zeros(ids.shape)
    rewards[0, max(i for i, mine in enumerate(own) if mine)] = 1.0
    rollouts = rr.Rollouts(ids, mask, rewards, ["a"])
    rows = PromptedRollouts(rollouts, [torch.tensor(list(b"2 * 21 ="))], [""], [ids.shape[1]]).read(BYTES)
    credit = rr.assign_credit(rows.rollouts, rr.RRedCoTConfig(segmenter=segmenter, calibrate="none"))
    return trace_record(1, 0, CreditedBatch(rows, rows.rollouts, credit, BYTES))


def test_what_a_tool_answered_stands_before_the_turn_that_saw_it() -> None:
    found = record(f"ask {CALL}", "\n<tool>42</tool>\n", "so 42")
    assert [segment["text"] for segment in found["segments"]] == [f"ask {CALL}", "so 42"]
    assert [segment.get("observation") for segment in found["segments"]] == [None, "\n<tool>42</tool>\n"]
    trace = read_trace(json.loads(json.dumps(found)))
    assert trace.turns == [1, 2]
    assert sum(turn_credit(trace, turn) for turn in (1, 2)) == pytest.approx(sum(s.credit for s in trace.segments))


def test_an_answer_inside_a_segment_is_marked_in_its_text() -> None:
    [segment] = record("ask", " 42 ", "so 42", segmenter="none")["segments"]
    assert segment["text"] == "ask 42 so 42"
    assert segment["observed"] == [[3, 7]]
    assert segment["tokens"] == 8


def test_an_answer_of_megabytes_is_cut_in_the_dump() -> None:
    found = record("ask", "x" * 3_000_000 + "end", "so")["segments"][1]["observation"]
    assert len(found) < MAX_OBSERVATION_CHARACTERS + 50
    assert "2,996,003 characters left out" in found
    assert found.endswith("end")


def test_the_page_shows_turns_calls_and_answers_and_obeys_none_of_them() -> None:
    page = render_trace(read_trace(record(f"ask {CALL}", f"\n{ATTACK}\n", f"so {ATTACK}")))
    assert "2 turns" in page
    assert re.findall(r'<div class="turn">turn (\d), credit [^<]+</div>', page) == ["1", "2"]
    assert page.count('<span class="tool-call">') == 1
    assert page.count('<div class="observation">') == 1
    assert "<script" not in page
    assert "<img" not in page
    assert "alert(&quot;1&quot;)" in page


@pytest.mark.parametrize(("opens", "closes"), CALLS)
@pytest.mark.parametrize("closed", [True, False])
def test_calls_of_every_format_stand_out(opens: str, closes: str, closed: bool) -> None:
    call = f"{opens}f(){closes}" if closed else f"{opens}f( so"
    page = render_trace(read_trace(record(f"ask {call} so" if closed else f"ask {call}")))
    assert f'<span class="tool-call"><span class="part">{html.escape(call)}</span></span>' in page


def test_a_long_answer_is_folded() -> None:
    page = render_trace(read_trace(record("ask", "word " * 500, "so")))
    observation = page[page.index('<div class="observation">') :]
    assert "show all 2,499 characters" in observation[: observation.index('<div class="turn">')]


def test_a_trace_of_one_turn_looks_as_before() -> None:
    page = render_trace(read_trace(record("one line\nand another", segmenter="newline")))
    assert "turn" not in re.sub(r"return", "", page)
    assert "observation" not in page


def test_a_session_of_several_outputs_is_one_story() -> None:
    found = record("first", "\n", "second")
    found["outputs"] = [{"number": 0, "prompt": "the question"}, {"number": 3, "prompt": f"a summary {ATTACK}"}]
    for segment, number in zip(found["segments"], (0, 3), strict=True):
        segment["output"] = number
    trace = read_trace(found)
    assert trace.turns == [1, 2]
    page = render_trace(trace)
    assert "a summary &lt;/script&gt;" in page
    assert page.count('<div class="observation">') == 1


def test_outputs_of_a_session_are_told_apart_in_its_dump() -> None:
    texts = ["first", "second"]
    ids = torch.tensor([list("\n".join(texts).encode())])
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[0, len(texts[0])] = False
    rewards = torch.zeros(ids.shape)
    rewards[0, -1] = 1.0
    prompts = [torch.tensor(list(text)) for text in (b"question", b"summary")]
    outputs = [[Output(prompts[0], 0, 5, 0), Output(prompts[1], 6, 6, 3)]]
    rollouts = rr.Rollouts(ids, mask, rewards, ["a"])
    rows = PromptedRollouts(rollouts, prompts[:1], [""], [ids.shape[1]], outputs).read(BYTES)
    credit = rr.assign_credit(rows.rollouts, rr.RRedCoTConfig(segmenter="turn", calibrate="none"))
    found = trace_record(1, 0, CreditedBatch(rows, rows.rollouts, credit, BYTES))
    assert [(segment["text"], segment["output"]) for segment in found["segments"]] == [("first", 0), ("second", 3)]
    assert "observation" not in found["segments"][1]
    assert read_trace(found).output_prompts == {0: "question", 3: "summary"}


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("observation", 7, "observation: expected str, got 7"),
        ("observed", [[1]], r"observed: expected two numbers, got \[1\]"),
        ("observed", [[-1, 2]], "observed: expected an integer from 0, got -1"),
        ("output", "x", "output: expected int, got 'x'"),
    ],
)
def test_a_broken_dump_is_named(key: str, value: Any, why: str) -> None:
    found = record("ask", " 42 ", "so")
    found["segments"][1][key] = value
    with pytest.raises(ValueError, match=why):
        read_trace(found)


def test_observed_ranges_outside_of_the_text_are_left_out() -> None:
    found = record("ask", " 42 ", "so", segmenter="none")
    found["segments"][0]["observed"] = [[3, 900]]
    assert "ask 42 so" in render_trace(read_trace(found))


def test_the_terminal_shows_turns_and_cuts_long_answers() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(terminal.render_trace(read_trace(record("ask", f"\n42{'x' * 5000}end", "so\x1b[2J")), 1.0))
    shown = console.export_text()
    assert "turn 1, credit" in shown
    assert "turn 2, credit" in shown
    assert 200 < shown.count("x") < 400
    assert "end" in shown
    assert "\x1b[2J" not in shown


def test_observed_line_ends_do_not_hide_what_a_tool_wrote() -> None:
    """The ends of a segment's text are stripped; a tool's answer that reaches into them stays marked."""
    one = record("a", "b")
    one["segments"] = [
        {**one["segments"][0], "text": "\n\n4\nrest", "observed": [[1, 4]]},
        {**one["segments"][0], "text": "call[42]\n\n", "observed": [[4, 9], [9, 10]]},
    ]
    page = render_trace(read_trace(one))
    assert '<span class="observation"><span class="part">4\n</span></span><span class="part">rest</span>' in page
    assert (
        '<span class="part">call</span><span class="observation"><span class="part">[42]</span></span></div>'
        in page
    )
