"""Where redistribution has nothing to say, the numbers are verl's own: GRPO, Dr. GRPO and RLOO.

Hypothesis runs both on the same ragged batches: padding left, right and in between, empty and truncated
responses, groups of one and without variance, shuffled rows, the reward on the last token or spread over all,
in half precision or float32. Rewards are multiples of 1/8, so that no float32 sum depends on its order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from verl.trainer.ppo import core_algos

import rredcot_plugin as rr
from rredcot_plugin.groups import group_stats

TOLERANCE = 1e-6
SCALES = ((True, "group_std"), (False, "none"))
"""verl's ``norm_adv_by_std_in_grpo`` and our ``scale``: GRPO and Dr. GRPO."""

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CHECK = settings(deadline=None, derandomize=True, max_examples=100)


@dataclass(frozen=True)
class Layout:
    """Where the tokens of a response stand: ``left`` columns in, ``gap`` masked ones behind the first ``cut``."""

    tokens: int
    left: int
    cut: int
    gap: int

    def mask(self, width: int) -> torch.Tensor:
        columns = torch.arange(self.tokens)
        mask = torch.zeros(width, dtype=torch.bool)
        mask[self.left + columns + torch.where(columns >= self.cut, self.gap, 0)] = True
        return mask

    @property
    def width(self) -> int:
        return self.left + self.tokens + self.gap


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    tokens = draw(st.integers(0, 8))  # 0: an empty response
    return Layout(tokens, draw(st.integers(0, 3)), draw(st.integers(0, tokens)), draw(st.integers(0, 2)))


@st.composite
def ragged(draw: st.DrawFn) -> rr.Rollouts:
    """Rows of any group in any order; some end at the last column, as truncated responses do."""
    rows = draw(st.lists(layouts(), min_size=1, max_size=8))
    width = max(1, max(row.width for row in rows) + draw(st.integers(0, 2)))
    mask = torch.stack([row.mask(width) for row in rows])
    rewards = torch.zeros(mask.shape)
    equal, dense = draw(st.booleans()), draw(st.booleans())
    for row in range(len(rows)):
        columns = mask[row].nonzero()[:, 0]
        if len(columns):
            rewards[row, columns[-1]] = 1.0 if equal else draw(st.sampled_from([0.0, 1.0, -1.0, 0.5]))
        if dense and len(columns) > 1:
            rewards[row, columns[0]] = draw(st.sampled_from([0.0, -0.125, 0.25]))
    groups = draw(st.lists(st.sampled_from(["a", "b", "c"]), min_size=len(rows), max_size=len(rows)))
    dtype = draw(st.sampled_from(DTYPES))
    ids = torch.zeros(mask.shape, dtype=torch.int64)
    return rr.Rollouts(ids, mask, rewards.to(dtype), groups)


def verl_grpo(rollouts: rr.Rollouts, by_std: bool) -> torch.Tensor:
    advantages, _ = core_algos.compute_grpo_outcome_advantage(
        rollouts.rewards.float(),
        rollouts.response_mask.float(),
        np.array(rollouts.group_ids, dtype=object),
        norm_adv_by_std_in_grpo=by_std,
    )
    return advantages


def verl_rloo(rollouts: rr.Rollouts) -> torch.Tensor:
    advantages, _ = core_algos.compute_rloo_outcome_advantage(
        rollouts.rewards.float(), rollouts.response_mask.float(), np.array(rollouts.group_ids, dtype=object)
    )
    return advantages


def cut_every(tokens: int, **options: object) -> rr.RRedCoTConfig:
    return rr.RRedCoTConfig(
        segmenter="fixed",
        segmenter_kwargs={"tokens": tokens},
        calibrate="none",
        lam=1.0,
        turn_rewards="redistribute",
        **options,
    )


def same_everywhere(per_rollout: torch.Tensor, segments: rr.Segments) -> torch.Tensor:
    return per_rollout[:, None].expand(-1, segments.max_segments)


def stats_of(rollouts: rr.Rollouts):
    return group_stats(rollouts.outcomes, rollouts.group_ids, torch.ones(rollouts.batch_size, dtype=torch.bool))


@CHECK
@given(ragged(), st.sampled_from(SCALES))
def test_one_segment_a_trace_is_grpo(rollouts: rr.Rollouts, scales: tuple[bool, str]) -> None:
    by_std, scale = scales
    credit = rr.assign_credit(rollouts, rr.RRedCoTConfig(segmenter="none", scale=scale))
    expected = verl_grpo(rollouts, by_std)
    assert torch.allclose(credit.advantages, expected, rtol=0, atol=TOLERANCE)
    assert torch.allclose(credit.returns, expected, rtol=0, atol=TOLERANCE)
    assert credit.advantages.dtype == torch.float32


@pytest.mark.parametrize(("by_std", "scale"), SCALES)
def test_with_rewards_of_0_and_1_it_is_grpo_bit_for_bit(by_std: bool, scale: str) -> None:
    counts = [(n, right) for n in range(1, 17) for right in range(n + 1)]
    rewards = torch.cat([(torch.arange(n) < right).float() for n, right in counts])[:, None]
    groups = [f"{n} {right}" for n, right in counts for _ in range(n)]
    rollouts = rr.Rollouts(torch.zeros_like(rewards).long(), torch.ones_like(rewards).bool(), rewards, groups)
    credit = rr.assign_credit(rollouts, rr.RRedCoTConfig(segmenter="none", scale=scale))
    assert torch.equal(credit.advantages, verl_grpo(rollouts, by_std))


@CHECK
@given(ragged(), st.sampled_from(SCALES), st.integers(1, 4))
def test_the_group_mean_as_value_is_grpo(rollouts: rr.Rollouts, scales: tuple[bool, str], tokens: int) -> None:
    by_std, scale = scales
    config = cut_every(tokens, scale=scale)
    segments = config.build_segmenter()(rollouts)
    values = same_everywhere(stats_of(rollouts).mean, segments)
    credit = rr.assign_credit(rollouts, config, segments=segments, values=values)
    assert torch.allclose(credit.advantages, verl_grpo(rollouts, by_std), rtol=0, atol=TOLERANCE)


@CHECK
@given(ragged(), st.integers(1, 4))
def test_the_mean_of_the_others_as_value_is_rloo(rollouts: rr.Rollouts, tokens: int) -> None:
    """Groups of one included: verl leaves their reward as it is, and our mean of no others is 0."""
    config = cut_every(tokens, scale="none")
    segments = config.build_segmenter()(rollouts)
    values = same_everywhere(stats_of(rollouts).others_mean, segments)
    credit = rr.assign_credit(rollouts, config, segments=segments, values=values)
    assert torch.allclose(credit.advantages, verl_rloo(rollouts), rtol=0, atol=TOLERANCE)


@CHECK
@given(ragged(), st.integers(1, 4))
def test_an_estimator_with_nothing_to_go_by_is_rloo(rollouts: rr.Rollouts, tokens: int) -> None:
    """Without probes every state has the prior. One segment a trace in the whole batch is GRPO instead."""
    config = cut_every(tokens, scale="none", leave_one_out=True, prior_from_group=True)
    segments = config.build_segmenter()(rollouts)
    assume(segments.max_segments > 1)
    credit = rr.assign_credit(rollouts, config, segments=segments)
    assert torch.allclose(credit.advantages, verl_rloo(rollouts), rtol=0, atol=TOLERANCE)
    assert credit.metrics["rredcot/fallback/group_mean/mean"] == 1.0


def with_rewards(rewards: list[float], groups: list[str]) -> rr.Rollouts:
    mask = torch.ones(len(rewards), 6, dtype=torch.bool)
    placed = torch.zeros(mask.shape)
    placed[:, -1] = torch.tensor(rewards)
    return rr.Rollouts(torch.zeros(mask.shape, dtype=torch.int64), mask, placed, groups)


@pytest.mark.parametrize("reward", [0.0, 1.0, -0.5])
def test_a_group_of_one_keeps_its_reward_in_verl_and_here(reward: float) -> None:
    rollouts = with_rewards([reward, 1.0, 0.0], ["alone", "b", "b"])
    rloo = rr.assign_credit(rollouts, cut_every(3, scale="none"))
    assert rloo.advantages[0].tolist() == verl_rloo(rollouts)[0].tolist() == [reward] * 6
    for by_std, scale in SCALES:
        grpo = rr.assign_credit(rollouts, rr.RRedCoTConfig(segmenter="none", scale=scale))
        assert torch.allclose(grpo.advantages, verl_grpo(rollouts, by_std), rtol=0, atol=TOLERANCE)
        assert float(grpo.advantages[0, 0]) == pytest.approx(reward, abs=2e-6)


def test_a_group_without_variance_earns_nothing_in_verl_and_here() -> None:
    rollouts = with_rewards([1.0, 1.0, 1.0], ["a"] * 3)
    config = cut_every(2)
    values = torch.tensor([0.1, 0.9, 0.4]).expand(3, 3)
    for credit in (rr.assign_credit(rollouts, config), rr.assign_credit(rollouts, config, values=values)):
        assert credit.advantages.abs().max() == verl_grpo(rollouts, True).abs().max() == 0


def test_the_comparison_notices_another_formula() -> None:
    """GRPO and RLOO differ by a factor, the population's standard deviation from the sample's by another."""
    rollouts = with_rewards([1.0, 0.0, 0.0], ["a"] * 3)
    assert not torch.allclose(verl_grpo(rollouts, False), verl_rloo(rollouts), atol=0.1)
    population = (rollouts.outcomes - 1 / 3) / rollouts.outcomes.std(unbiased=False)
    assert not torch.allclose(verl_grpo(rollouts, True)[:, 0], population, atol=0.1)
