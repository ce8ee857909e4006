"""What a report says about where numbers come from: credit beside advantages, probed answers, V̂ of siblings."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.adapter.dump import Dumper
from rredcot_plugin.adapter.probe_plan import ProbePlan
from rredcot_plugin.adapter.trace_record import MAX_PROPOSAL_CHARACTERS, MAX_PROPOSALS, Asked, trace_record
from rredcot_plugin.probes.layout import pack
from rredcot_plugin.report.colour import NO_ADVANTAGES, Scales, disagreement, render_legend
from rredcot_plugin.report.html import CARD_HEIGHT, LINE_HEIGHT, LIST_HEIGHT, render_groups, room
from rredcot_plugin.report.traces import Proposal, Trace, read_dumps, read_trace
from rredcot_plugin.report.why import LEAVE_ONE_OUT, MEASURED, render_why, sibling_note
from rredcot_plugin.values.proposals import pack_proposals
from tests.unit.test_dump import step_of
from tests.unit.test_report import ATTACK, record
from tests.unit.test_report_page import Elements, group, trace


def with_advantages(found: Trace, *advantages: float) -> Trace:
    segments = (replace(s, advantage=a) for s, a in zip(found.segments, advantages, strict=True))
    return replace(found, segments=tuple(segments))


# ---- credit and advantage


def test_both_numbers_of_a_segment_and_the_control_are_in_the_page() -> None:
    page = Elements(render_groups([group(with_advantages(trace(-0.25, 0.5), 1.25, 0.5))]))
    assert page.values("name").count("colour") == 2
    assert page.values("type").count("radio") == 2
    assert page.values("data-advantage") == ["pos", "pos"]
    assert "−0.25" in page.text and "+1.25" in page.text
    assert page.values("style")[1] == "--a:0.50;--b:1.00"
    assert "1 of 2 segments with a clear credit have an advantage of the other sign" in page.text
    assert page.values("disabled") == []


def test_without_advantages_the_control_is_disabled_and_says_why() -> None:
    bare = with_advantages(trace(-0.3, 0.8), math.nan, math.nan)
    page = Elements(render_groups([group(bare)]))
    assert len(page.values("disabled")) == 1
    assert NO_ADVANTAGES in page.text
    assert render_legend([], Scales()) == ""


def test_a_dump_without_advantages_is_read(tmp_path: Path) -> None:
    line = record([0.2, -0.7])
    for segment in line["segments"]:
        del segment["advantage"]
    (tmp_path / "1.jsonl").write_text(json.dumps(line))
    (found,) = read_dumps(tmp_path)
    assert all(math.isnan(segment.advantage) for segment in found.segments)


def test_faint_credit_is_no_disagreement() -> None:
    traces = [with_advantages(trace(-1.0, 0.01, 0.5), 1.0, -1.0, 1.0)]
    assert disagreement(traces, Scales(1.0, 1.0)) == (1, 2)


# ---- probed answers


def asked_of(answers: list[tuple[str, float]], log_probs: torch.Tensor, states: int) -> Asked:
    """One row whose ``answers`` were probed at every state behind the prompt; ``log_probs`` (answers, states − 1)."""
    proposals = pack_proposals([answers], [0])
    places = [(0, state, column, 3) for column in range(len(answers)) for state in range(1, states)]
    segments = rr.Segments(torch.zeros(1, 1, dtype=torch.int64), torch.tensor([1]))
    plan = ProbePlan([pack([])], [torch.tensor(places)], {"group": proposals}, {}, segments, 0)
    return Asked(plan, [log_probs.flatten()])


def test_a_record_has_the_most_probable_proposals_at_every_boundary() -> None:
    answers = [(f"{i}" * 300, float(i % 2)) for i in range(12)]
    probabilities = torch.arange(1, 25).reshape(12, 2) / 100
    named, by_state = asked_of(answers, probabilities.log(), 3).of(0, 3)
    assert len(named) == MAX_PROPOSALS
    assert named[0] == {"text": "11" * (MAX_PROPOSAL_CHARACTERS // 2), "kind": "group", "utility": 1.0}
    assert by_state[0] == [None] * MAX_PROPOSALS  # the prompt was not asked
    assert by_state[1][:2] == pytest.approx([0.23, 0.21])
    assert by_state[2][:2] == pytest.approx([0.24, 0.22])


def test_numbers_that_are_none_stay_out_of_a_record() -> None:
    named, by_state = asked_of([("a", 1.0), ("b", 0.0)], torch.tensor([[math.nan], [-1e-14]]), 2).of(0, 2)
    assert [one["text"] for one in named] == ["b"]
    assert by_state == [[None], [1.0]]


def test_dumps_hold_what_was_probed_and_reports_read_it(tmp_path: Path) -> None:
    batch = step_of(["a"])
    states = int(batch.credit.segments.num_segments[0])
    assert states == 2
    asked = asked_of([("2", 1.0), ("3\ud800", 0.0)], torch.tensor([[0.6], [0.1]]).log(), states)
    Dumper(tmp_path, 1024, about={"options": {"lam": 1.0}}).write(1, 0, replace(batch, asked=asked))
    (found,) = read_dumps(tmp_path)
    assert [(p.text, p.utility, round(p.probabilities[1], 3)) for p in found.proposals] == [
        ("2", 1.0, 0.6),
        ("3\ud800", 0.0, 0.1),
    ]
    assert math.isnan(found.proposals[0].probabilities[0])
    assert json.loads((tmp_path / "run.json").read_text()) == {"options": {"lam": 1.0}}
    assert "proposals" not in trace_record(1, 0, batch)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"proposals": 3}, "proposals: expected list"),
        ({"proposals": [{"text": 1, "kind": "group", "utility": 1}]}, "text: expected str"),
        ({"proposals": []}, "expected 0 numbers, one per proposal, got 1"),
    ],
)
def test_broken_proposals_are_told(change: dict, reason: str) -> None:
    line = record([0.2])
    line["segments"][0]["probabilities"] = [0.5]
    with pytest.raises(ValueError, match=reason):
        read_trace({**line, **change})


def test_probed_answers_stand_in_the_page_escaped_and_folded() -> None:
    proposals = (
        Proposal(ATTACK, "group", 1.0, (math.nan, 0.25)),
        Proposal("7" * 500, "ground_truth", 0.0, (math.nan, 1.2e-9)),
    )
    html = render_why(replace(trace(0.1, -0.6), proposals=proposals), 0.5)
    page = Elements(html)
    assert not {"script", "img", "b"} & set(page.tags)
    assert '<script>alert("1")</script>' in page.text
    assert re.findall(r'class="each">([^<]+)</td>', html) == ["n/a 0.250", "n/a 1.2e−9"]
    assert "✓ 1.00" in page.text and "✗ 0.00" in page.text
    assert "(ground_truth)" in page.text
    assert "7" * 200 not in page.text
    assert render_why(trace(0.1), 0.5) == ""


# ---- siblings


def siblings(*rewards: float, leave_out: bool) -> list[Trace]:
    total = sum(rewards)
    found = []
    for reward in rewards:
        value = (total - reward) / (len(rewards) - 1) if leave_out else 0.2 + reward / 2
        found.append(trace(reward - value, prior=value))
    return found


def test_different_values_of_one_prompt_are_explained() -> None:
    assert sibling_note(siblings(1, 0, 0, 1, leave_out=True), 4) == LEAVE_ONE_OUT
    assert sibling_note(siblings(1, 0, 0, 1, leave_out=True)[:2], 4) == LEAVE_ONE_OUT
    assert sibling_note(siblings(1, 0, 0, 1, leave_out=False), 4) == MEASURED
    assert sibling_note(siblings(1, 1, leave_out=True), 2) == ""
    assert sibling_note([trace(0.5)], 1) == ""
    page = Elements(render_groups([group(*siblings(1, 0, leave_out=True), size=2)]))
    assert page.text.count(LEAVE_ONE_OUT) == 1


def test_the_six_decimals_of_a_dump_are_enough() -> None:
    found = siblings(1, 0, 0, leave_out=True)
    rounded = [replace(t, segments=(replace(t.segments[0], value=round(t.segments[0].value, 6)),)) for t in found]
    assert sibling_note(rounded, 3) == LEAVE_ONE_OUT


def test_the_room_of_a_group_is_guessed_from_its_tallest_card() -> None:
    few, many = room([trace(0.1)]), room([trace(0.1), trace(*[0.01] * 10)])
    assert few == f"--cards:1;--card-height:{CARD_HEIGHT + LINE_HEIGHT}px"
    assert many == f"--cards:2;--card-height:{CARD_HEIGHT + 10 * LINE_HEIGHT}px"
    assert room([trace(*[0.01] * 40, text="x" * 500)]) == f"--cards:1;--card-height:{CARD_HEIGHT + LIST_HEIGHT}px"
