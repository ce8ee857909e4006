"""Which probes a batch gets, where each stands, and how the answers find their way back."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.adapter.probe_plan import COLUMN, STATE, ProbePlan, plan_probes
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.text.alignment import TokenBytes
from rredcot_plugin.text.answers import FORMATS
from rredcot_plugin.text.encoding import ProbeEncoder
from rredcot_plugin.tiny.reasoner import build_tokenizer

TOKENIZER = build_tokenizer()
TABLE = TokenBytes.from_tokenizer(TOKENIZER)
RESPONSES = ["1 + 2 = 3\n3 + 4 = 7\n#### 7", "1 + 2 = 4\n#### 8", "3\n#### 7", "1 + 2 = 3\n3 + 4 = 9\n#### 10"]
PROMPT = TOKENIZER("1 + 2 + 4")["input_ids"]


def rows_of(responses: list[str], rewards: list[float]) -> PromptedRollouts:
    """One group; row b's prompt is b tokens longer than the first one's."""
    ids = [torch.tensor(TOKENIZER(text)["input_ids"]) for text in responses]
    lengths = [len(row) for row in ids]
    tokens = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    mask = torch.arange(tokens.shape[1]) < torch.tensor(lengths)[:, None]
    table = torch.zeros(tokens.shape)
    table[torch.arange(len(ids)), torch.tensor(lengths) - 1] = torch.tensor(rewards)
    aligned = [TABLE.align(row.numpy()) for row in ids]
    rollouts = rr.Rollouts(
        tokens, mask, table, [0] * len(ids), texts=[t for t, _ in aligned], token_offsets=[s for _, s in aligned]
    )
    return PromptedRollouts(
        rollouts, [torch.tensor(PROMPT + [1] * b) for b in range(len(ids))], [""] * len(ids), lengths
    )


def planned(responses: list[str], rewards: list[float], **options: object) -> tuple:
    rows, config = rows_of(responses, rewards), rr.RRedCoTConfig.from_mapping({"segmenter": "newline", **options})
    segments = config.build_segmenter()(rows.rollouts)
    encoder = ProbeEncoder(TOKENIZER, config.bridge, config.terminator, config.max_probe_tokens)
    return rows, segments, encoder, plan_probes(rows, segments, config, encoder)


@pytest.mark.parametrize("late", ["\\boxed{8}", "</think>\n#### 8", "#### 8"])
def test_what_a_batch_writes_last_does_not_decide_how_its_states_are_probed(late: str) -> None:
    """As in the step before: else the value of a rollout's early states would know what it wrote later."""
    config, encoder = rr.RRedCoTConfig(segmenter="newline"), ProbeEncoder(TOKENIZER)

    def plan(responses: list[str]) -> ProbePlan:
        rows = rows_of(responses, [1.0, 0.0, 0.0, 0.0])
        return plan_probes(rows, config.build_segmenter()(rows.rollouts), config, encoder)

    plan(RESPONSES)
    found = plan([RESPONSES[0], *[f"1 + 2 = 4\n{late}"] * 3])
    expected = encoder.encode("\n#### ", "7")
    assert expected is not None
    for specs in found.specs[1:]:
        assert {(tuple(ids), skip) for _, ids, skip in specs} <= {expected, encoder.encode("#### ", "7")} and specs
    plan(RESPONSES)
    assert encoder.answer_format.bridge == ("\n#### " if "#" in late else FORMATS["boxed"].bridge)


def test_every_boundary_has_the_others_rewarded_answers_behind_the_bridge() -> None:
    rows, segments, encoder, plan = planned(RESPONSES, [1.0, 0.0, 1.0, 0.0])
    for row, (specs, places) in enumerate(zip(plan.specs, plan.places, strict=True)):
        states = range(1, int(segments.num_segments[row]))
        assert places[:, STATE].tolist() == list(states), "one answer was rewarded"
        for (boundary, ids, skip), state in zip(specs, states, strict=True):
            start = int(segments.starts[row, state])
            assert boundary == len(rows.prompts[row]) + start
            before = TOKENIZER.decode(rows.rollouts.token_ids[row, :start].tolist())
            assert (tuple(ids), skip) == encoder.encode(encoder.bridge_after(before), "7")
            assert TOKENIZER.decode([*rows.rollouts.token_ids[row, :start].tolist(), *ids]).startswith(
                f"{before.rstrip()}\n#### 7"
            )


def test_answers_are_worth_the_outcome_without_rewards_on_the_way() -> None:
    rows = rows_of(RESPONSES, [1.0, 0.0, 1.0, 0.0])
    rewards = rows.rollouts.rewards.clone()
    rewards[:, 0] = 0.5
    rows = dataclasses.replace(rows, rollouts=dataclasses.replace(rows.rollouts, rewards=rewards))
    for turn_rewards, worth in {"keep": 1.0, "redistribute": 1.5}.items():
        config = rr.RRedCoTConfig(segmenter="newline", turn_rewards=turn_rewards)
        plan = plan_probes(rows, config.build_segmenter()(rows.rollouts), config, ProbeEncoder(TOKENIZER))
        proposals = plan.proposals["group"]
        assert float(proposals.utility[proposals.valid].max()) == worth


def test_a_state_after_a_tool_is_probed_behind_its_answer() -> None:
    """Tokens and bridge alike: the second turn begins on a line of its own, because the tool has ended one."""
    rows, config = rows_of(["1 + 2 = 3\n3 + 4", "3\n#### 7"], [0.0, 1.0]), rr.RRedCoTConfig(segmenter="turn")
    rollouts = rows.rollouts
    line_end = int((rollouts.token_ids[0] == TOKENIZER("\n")["input_ids"][-1]).nonzero()[0])
    mask = rollouts.response_mask.clone()
    mask[0, line_end - 1 : line_end + 1] = False  # what the tool said
    spans = [[own for own, real in zip(rollouts.token_offsets[0], mask[0], strict=False) if real]]
    rollouts = dataclasses.replace(rollouts, response_mask=mask, token_offsets=spans + rollouts.token_offsets[1:])
    rows = dataclasses.replace(rows, rollouts=rollouts)
    segments = config.build_segmenter()(rollouts)
    assert segments.num_segments.tolist()[0] == 2
    encoder = ProbeEncoder(TOKENIZER)
    plan = plan_probes(rows, segments, config, encoder)
    ((boundary, ids, skip),) = plan.specs[0]
    assert boundary == len(rows.prompts[0]) + line_end + 1
    assert (tuple(ids), skip) == encoder.encode("#### ", "7"), "no second line end"


def test_log_probs_go_back_to_their_state_and_proposal() -> None:
    _, segments, _, plan = planned(RESPONSES, [1.0, 0.0, 1.0, 0.5])
    numbers = [[-0.1 * (i + 1) - row for i in range(len(specs))] for row, specs in enumerate(plan.specs)]
    for normalise in (False, True):
        found = plan.probed(numbers, length_normalize=normalise)["group"]
        for row, places in enumerate(plan.places):
            for place, number, (_, ids, skip) in zip(places, numbers[row], plan.specs[row], strict=True):
                expected = number / (len(ids) - skip if normalise else 1)
                assert float(found.log_pi[row, place[STATE], place[COLUMN]]) == pytest.approx(expected)
    assert torch.equal(found.valid, plan.proposals["group"].valid)
    assert (found.log_pi[~segments.exists] == 0).all()


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 0.1])
def test_a_proposal_without_a_log_prob_is_dropped_for_its_row(wrong: float) -> None:
    _, _, _, plan = planned(RESPONSES, [1.0, 0.0, 1.0, 0.5])
    numbers = [[-1.0] * len(specs) for specs in plan.specs]
    numbers[0][0] = wrong
    found, column = plan.probed(numbers, length_normalize=False)["group"], int(plan.places[0][0, COLUMN])
    assert not found.valid[0, column]
    expected = plan.proposals["group"].valid.clone()
    expected[0, column] = False
    assert torch.equal(found.valid, expected)
    assert torch.isfinite(found.log_pi[found.valid[:, None, :].expand_as(found.log_pi)]).all()


def test_log_probs_of_other_probes_are_refused() -> None:
    _, _, _, plan = planned(RESPONSES, [1.0, 0.0, 1.0, 0.5])
    numbers = [[-1.0] * len(specs) for specs in plan.specs]
    with pytest.raises(ValueError, match="one for each probe"):
        plan.probed([*numbers[:-1], numbers[-1][:-1]], length_normalize=False)


def test_a_batch_is_looked_over_as_often_as_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning is linear in rows: what looks at the whole batch must not run once a row."""
    looked: list[int] = []
    starts = vars(rr.Segments)["starts"].func
    monkeypatch.setattr(rr.Segments, "starts", property(lambda self: looked.append(1) or starts(self)))
    counts = []
    for times in (1, 6):
        looked.clear()
        rows, config = (
            rows_of(RESPONSES * times, [1.0, 0.0, 1.0, 0.0] * times),
            rr.RRedCoTConfig(segmenter="newline"),
        )
        segments = config.build_segmenter()(rows.rollouts)
        plan_probes(rows, segments, config, ProbeEncoder(TOKENIZER))
        counts.append(len(looked))
    assert counts[0] == counts[1] > 0


def test_without_proposals_no_state_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """``red`` has a segment a token: a text for each would be quadratic in the response."""
    written: list[str] = []
    monkeypatch.setattr(ProbeEncoder, "bridge_after", lambda self, prefix, tail="": written.append(prefix) or "")
    _, _, _, plan = planned(RESPONSES, [1.0, 0.0, 1.0, 0.0], value_estimator="confidence")
    assert plan.size == 0 and plan.tokens == 0
    assert len(plan.packed) == len(plan.places) == len(RESPONSES)
    assert written == []
