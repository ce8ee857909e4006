"""Rows of sessions with several outputs, before any host: where segments are cut, what is probed, parts and whole."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rredcot_plugin as rr
from rredcot_plugin.adapter.output_cuts import build_levels, cut_at_outputs
from rredcot_plugin.adapter.probe_plan import STATE, answer_starts, plan_probes
from rredcot_plugin.adapter.prompted_rollouts import Output, PromptedRollouts
from rredcot_plugin.text.answers import THINK_END
from rredcot_plugin.text.encoding import ProbeEncoder
from rredcot_plugin.types import Segments
from tests.unit.test_group_work import TABLE, TOKENIZER, bare_rows, in_parts, work

PROMPT = torch.arange(5)


def two_outputs(start: int, total: int, second: int = 3) -> list[Output]:
    return [Output(PROMPT, 0, start - 1), Output(torch.arange(second), start, total - start, 1)]


def cut(ids: list[int], *starts: int) -> list[int]:
    """Ids after the cuts at the outputs that begin at these columns."""
    own = torch.tensor([ids])
    bounds = [0, *starts, len(ids) + 1]
    outputs = [Output(PROMPT, a, max(0, b - a - 1)) for a, b in itertools.pairwise(bounds)]
    found = cut_at_outputs(Segments(own, own.amax(dim=1) + 1), [outputs])
    assert int(found.num_segments) == max(found.segment_ids[0].tolist()) + 1
    return found.segment_ids[0].tolist()


def test_a_segment_is_cut_where_an_output_begins_and_nowhere_else() -> None:
    assert cut([0, 0, -1, 0, 0, 1], 3) == [0, 0, -1, 1, 1, 2]
    assert cut([0, 0, -1, 1, 1, 1], 3) == [0, 0, -1, 1, 1, 1], "there is a boundary"
    assert cut([0, -1, -1, -1, 0, 0], 2) == [0, -1, -1, -1, 1, 1], "at its first token of the model"
    assert cut([-1, -1, 0, 0, 1, 1], 2) == [-1, -1, 0, 0, 1, 1], "nothing stands before it"
    assert cut([0, -1, 0, -1, 0, 0], 2, 4) == [0, -1, 1, -1, 2, 2]
    assert cut([0, 0, -1, -1, -1, 0], 3, 5) == [0, 0, -1, -1, -1, 1], "an output without tokens makes no segment"
    assert cut([0, 0, 0, -1], 4) == [0, 0, 0, -1], "an output of no columns"


@given(st.lists(st.integers(0, 3), min_size=2, max_size=12), st.integers(1, 11))
def test_segments_that_were_parts_of_others_still_are(steps: list[int], start: int) -> None:
    fine = torch.tensor(steps).clamp(max=1).cumsum(0)
    fine = fine - fine[0]
    coarse, at = fine // 2, min(start, len(steps) - 1)
    ids = torch.stack([torch.cat([level[:at], torch.tensor([-1]), level[at:]]) for level in (fine, coarse)])
    outputs = [two_outputs(at + 1, ids.shape[1])] * 2
    found = cut_at_outputs(Segments(ids, ids.amax(dim=1) + 1), outputs).segment_ids
    pairs = set(map(tuple, found.T.tolist())) - {(-1, -1)}
    assert len({fine for fine, _ in pairs}) == len(pairs), "each fine one in one coarse one"


def joined_rows() -> PromptedRollouts:
    """``bare_rows`` of which every third is two outputs; the first one has another column masked."""
    rows, outputs = bare_rows(), []
    mask = rows.rollouts.response_mask.clone()
    for row, length in enumerate(rows.lengths):
        if row % 3:
            outputs.append([Output(rows.prompts[row], 0, length)])
            continue
        start = length // 2
        mask[row, start - 1] = False
        outputs.append(
            [Output(rows.prompts[row], 0, start - 1), Output(PROMPT[: 1 + row % 4], start, length - start, 1)]
        )
    rollouts = dataclasses.replace(rows.rollouts, response_mask=mask)
    return dataclasses.replace(rows, rollouts=rollouts, outputs=outputs)


@pytest.mark.parametrize("segmenter", ["newline", "fixed"])
def test_parts_of_a_batch_with_several_outputs_give_what_the_whole_gives(segmenter: str) -> None:
    config, rows = rr.RRedCoTConfig(segmenter=segmenter, prior_from_group=False), joined_rows()
    seen, plan, _ = in_parts(rows, config, 3)
    whole, expected, _ = in_parts(rows, config, 1)
    assert torch.equal(seen.levels[-1].segment_ids, whole.levels[-1].segment_ids)
    assert seen.tokens == whole.tokens == rows.tokens
    assert plan.specs == expected.specs and plan.tokens == expected.tokens and plan.size > 20
    assert [own.tolist() for own in plan.places] == [own.tolist() for own in expected.places]


def test_a_state_is_probed_after_its_own_prompt_and_the_text_of_its_own_output() -> None:
    rows, config = joined_rows(), rr.RRedCoTConfig(segmenter="newline")
    group = work(config)
    seen = group.read(rows)
    group.encoder.follow(seen.style)
    plan = group.plan(group.encoder.state_dict(), seen.outcomes - 1)
    specs, several = iter(plan.specs), 0
    for row in range(len(rows.lengths)):
        outputs, segments = rows.outputs_of(row), seen.levels[-1]
        by_output = [next(specs) for _ in outputs]
        columns = segments.starts[row, plan.places[row][:, STATE]].tolist()
        at = 0
        for output, own in zip(outputs, by_output, strict=True):
            inside = range(output.start, output.start + output.length)
            for (boundary, ids, skip), column in zip(own, columns[at:], strict=False):
                assert column in inside and boundary == len(output.prompt) + column - output.start
                before = TOKENIZER.decode(rows.token_ids[row, output.start : column].tolist())
                assert list(ids[:skip]) == TOKENIZER(group.encoder.bridge_after(before))["input_ids"]
            at += len(own)
        assert at == len(columns)
        several += len(outputs) > 1 and len(by_output[1]) > 0
    assert several > 3


def test_thinking_that_ended_in_an_earlier_output_has_not_ended_in_the_next() -> None:
    texts = [f"1 + 2 = 3{THINK_END}\n", "3 + 4 = 7\n#### 7"]
    ids = [torch.tensor(TOKENIZER(text)["input_ids"]) for text in texts]
    (a, b), rows = map(len, ids), 2
    tokens = torch.cat([ids[0], torch.tensor([0]), ids[1]]).expand(rows, -1)
    mask = torch.arange(a + 1 + b) != a
    rewards = torch.zeros(rows, a + 1 + b)
    rewards[0, -1] = 1.0
    rollouts = rr.Rollouts(tokens, mask.expand(rows, -1), rewards, ["a", "a"])
    outputs = [[Output(PROMPT, 0, a), Output(PROMPT[:2], a + 1, b, 1)]] * rows
    joined = PromptedRollouts(rollouts, [PROMPT] * rows, [""] * rows, [a + 1 + b] * rows, outputs)
    group = work(rr.RRedCoTConfig(segmenter="newline"))
    seen = group.read(joined)
    group.encoder.follow(seen.style)
    plan = group.plan(group.encoder.state_dict(), seen.outcomes - 1)
    text = joined.read(TABLE).rollouts.texts
    assert text is not None and text[0] == "\n".join(texts), "no word reaches over both"
    own = plan.specs[2 * 1 + 1]
    assert own and all(THINK_END in TOKENIZER.decode(list(ids[:skip])) for _, ids, skip in own)


def test_grpo_is_not_cut() -> None:
    (level,) = build_levels(joined_rows().read(TABLE), rr.RRedCoTConfig(segmenter="none"))
    assert level.max_segments == 1
    (level,) = build_levels(joined_rows().read(TABLE), rr.RRedCoTConfig(segmenter="turn"))
    assert level.max_segments > 1


def test_the_answer_begins_in_the_output_that_holds_the_last_segment() -> None:
    ids = torch.tensor([[0, 0, -1, 1, 1, 2], [0, 0, -1, 0, 0, 0], [0, 1, -1, -1, -1, -1]])
    rollouts = rr.Rollouts(ids.clamp(min=0), ids >= 0, torch.zeros(3, 6), ["a"] * 3)
    outputs = [two_outputs(3, 6), [Output(PROMPT, 0, 6)], two_outputs(3, 6)]
    rows = PromptedRollouts(rollouts, [PROMPT] * 3, [""] * 3, [6] * 3, outputs)
    found = answer_starts(rows, Segments(ids, torch.tensor([3, 1, 2])))
    assert found == [-1, 3 + 2, -1, 5 + 1, -1]


def test_each_output_is_asked_behind_the_end_of_its_own_prompt() -> None:
    """The second prompt of a session opens a thought, the first one does not; a call in either waits for a tool."""
    ask = "<|im_start|>assistant\n"
    opened, texts = f"{ask}<think>\n", ["1 <tool_call>\n2", "1 + 2\n= 3"]
    a, b = (len(TOKENIZER(text)["input_ids"]) for text in texts)
    ids = TOKENIZER(texts[0])["input_ids"] + [0] + TOKENIZER(texts[1])["input_ids"]
    rewards = torch.zeros(2, len(ids))
    rewards[0, -1] = 1.0
    mask = (torch.arange(len(ids)) != a).expand(2, -1)
    rollouts = rr.Rollouts(torch.tensor([ids, ids]), mask, rewards, ["a", "a"])
    first, second = (torch.tensor(TOKENIZER(text)["input_ids"]) for text in (ask, opened))
    outputs = [[Output(first, 0, a), Output(second, a + 1, b, 1)]] * 2
    rows = PromptedRollouts(rollouts, [first] * 2, [""] * 2, [a + 1 + b] * 2, outputs).read(TABLE)
    assert [output.tail for output in rows.outputs_of(1)] == [ask, opened]
    assert rows.prompt_tails == [ask + opened] * 2
    encoder = ProbeEncoder(TOKENIZER)
    config = rr.RRedCoTConfig(segmenter="newline", proposals="ground_truth")
    rollouts = dataclasses.replace(rows.rollouts, ground_truths=["3", "3"])
    rows = dataclasses.replace(rows, rollouts=rollouts)
    plan = plan_probes(rows, build_levels(rows, config)[-1], config, encoder)
    before = [TOKENIZER.decode(list(ids[:skip])) for specs in plan.specs[:2] for _, ids, skip in specs]
    answer = "**Final Answer**\n\\boxed{"
    assert before == [f"<|im_end|>\n{ask}<think>\n\n</think>\n\n{answer}", *[f"</think>\n\n{answer}"] * 2]
