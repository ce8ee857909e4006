"""Rewards that stay on single lines: a value is of what is still to come, and so is what it is compared with."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.adapter.trace_record import CreditedBatch, trace_record
from rredcot_plugin.offline.trace_stats import traits_of
from rredcot_plugin.report.statistics import Statistics
from rredcot_plugin.report.traces import Trace, read_trace
from tests.unit.reference import text_rollouts
from tests.unit.test_dump import BYTES

TEXT, ENDS = "one\ntwo\nend", (3, 7)
"""Three lines; the first two may earn a half each, the answer 1."""


def traces(turn_rewards: str = "keep") -> list[Trace]:
    """Every combination of rewards once, with the values that are right: the mean of what follows."""
    cases = [(first, second, end) for first in (0.0, 0.5) for second in (0.0, 0.5) for end in (0.0, 1.0)]
    texts = [TEXT] * len(cases)
    plain = text_rollouts(texts, [end for *_, end in cases], group_ids=list(range(len(cases))))
    rewards = plain.rewards.clone()
    for row, (*lines, _) in enumerate(cases):
        for at, paid in zip(ENDS, lines, strict=True):
            rewards[row, at] += paid
    rollouts = dataclasses.replace(plain, rewards=rewards)
    config = rr.RRedCoTConfig(
        segmenter="newline", scale="none", turn_rewards=turn_rewards, segmenter_kwargs={"min_segment_tokens": 1}
    )
    values = torch.tensor([[1.0, 0.75, 0.5]] * len(cases))
    if turn_rewards == "redistribute":  # then a value is of the whole reward
        paid = torch.tensor([[0.0, first, first + second] for first, second, _ in cases])
        values = values + paid
    credit = rr.assign_credit(rollouts, config, values=values)
    rows = PromptedRollouts(
        rollouts, [torch.tensor([1])] * len(cases), [""] * len(cases), [len(TEXT)] * len(cases)
    )
    batch = CreditedBatch(rows, rollouts, credit, BYTES, keeps=turn_rewards == "keep")
    return [read_trace(json.loads(json.dumps(trace_record(0, row, batch)))) for row in range(len(cases))]


@pytest.mark.parametrize("turn_rewards", ["keep", "redistribute"])
def test_right_values_have_no_bias_and_fit_what_followed(turn_rewards: str) -> None:
    found = Statistics.of(traces(turn_rewards))
    bias = found.bias()
    assert bias is not None and bias.mean == pytest.approx(0.0, abs=1e-6)
    (step,) = found.steps()
    # variances of what is still to come: of the answer 1/4, of a line 1/16
    assert step.squared_error == pytest.approx((3 * 4 + 2 + 1) / 16 / 3, abs=1e-6)
    assert step.squared_error <= step.constant + 1e-6
    if turn_rewards == "keep":
        assert all(own.value == pytest.approx(own.reward, abs=1e-6) for own in found.calibration())


def test_the_curve_of_a_trace_rises_by_the_credit_of_each_segment() -> None:
    for trace in traces():
        steps = [after - before for before, after in zip(trace.values, trace.values[1:], strict=False)]
        assert steps == pytest.approx([segment.credit for segment in trace.segments], abs=1e-6)
        assert traits_of(trace)["last"] == pytest.approx(trace.values[-2])
        assert traits_of(trace)["answer_delta"] == pytest.approx(trace.reward - traits_of(trace)["last"], abs=1e-6)


def test_lines_say_what_they_were_paid_where_it_stays_on_them() -> None:
    assert [segment.paid for segment in traces()[-1].segments] == [0.5, 0.5, 0.0]
    assert not any(segment.paid for trace in traces("redistribute") for segment in trace.segments)


def test_metrics_of_a_critic_compare_it_with_what_followed() -> None:
    """Right values of a critic, which are of rewards on the way too, explain variance."""
    draw = torch.Generator().manual_seed(0)
    paid = (torch.rand(64, 3, generator=draw) < 0.5).float()
    plain = text_rollouts([TEXT] * 64, [float(end) for *_, end in paid.tolist()])
    rewards = plain.rewards.clone()
    for place, at in enumerate(ENDS):
        rewards[:, at] += paid[:, place]
    scores = torch.full(plain.rewards.shape, 0.5)
    scores[:, : ENDS[1] + 1], scores[:, : ENDS[0] + 1] = 1.0, 1.5
    rollouts = dataclasses.replace(plain, rewards=rewards, token_scores={"critic": scores})
    options = {"value_estimator": "critic", "segmenter": "newline", "scale": "none", "prior_from_group": False}
    config = rr.RRedCoTConfig.from_mapping({**options, "segmenter_kwargs": {"min_segment_tokens": 1}})
    credit = rr.assign_credit(rollouts, config)
    assert credit.metrics["rredcot/value/explained_variance/mean"] > 0.0
    # after the first line both are still to come, after the second one: of rewards from 0 to 2
    assert credit.metrics["rredcot/value/brier/mean"] == pytest.approx((0.5 + 0.25) / 2 / 4, abs=0.03)
