"""Redistribution and segment GAE: golden arrays, identities, parity with the slow reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rredcot_plugin as rr
from rredcot_plugin.credit.advantages import whiten
from tests.unit.reference import batches, gae_reference, random_values, redistribute_reference

FIXED = {"segmenter": "fixed", "segmenter_kwargs": {"tokens": 3}}


def test_golden_deltas_and_gae() -> None:
    values = torch.tensor([[0.5, 0.75, 0.25], [0.2, 9.0, 9.0]])
    num = torch.tensor([3, 1])
    deltas = rr.redistribute(values, torch.tensor([1.0, 0.0]), num)
    assert torch.allclose(deltas, torch.tensor([[0.25, -0.5, 0.75], [-0.2, 0.0, 0.0]]))
    assert torch.allclose(rr.segment_gae(deltas, num, 1.0)[0], torch.tensor([0.5, 0.25, 0.75]))
    assert torch.allclose(rr.segment_gae(deltas, num, 0.0), deltas)


def test_segment_gae_of_a_credit_takes_its_deltas_and_not_its_rewards() -> None:
    """Rewards have V̂_0 on the first segment: from them it would be credited with R at λ = 1."""
    at_the_end = torch.zeros(2, 6).index_fill(1, torch.tensor(5), 1.0)
    rollouts = rr.Rollouts(torch.zeros(2, 6).long(), torch.ones(2, 6).bool(), at_the_end, [0, 0])
    values = torch.tensor([[0.5, 0.75], [0.5, 0.25]])
    config = rr.RRedCoTConfig(**FIXED, scale="none")
    credit = rr.assign_credit(rollouts, config, values=values)
    assert torch.allclose(rr.segment_gae(credit.deltas, credit.segments.num_segments, 1.0), 1 - values)
    wrong = rr.segment_gae(credit.segment_rewards, credit.segments.num_segments, 1.0)
    assert torch.allclose(wrong[:, 0], torch.ones(2))


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=9), st.floats(-2, 2), st.floats(0, 1))
def test_parity_with_the_slow_reference(values: list[float], outcome: float, lam: float) -> None:
    num = torch.tensor([len(values)])
    deltas = rr.redistribute(torch.tensor([values]), torch.tensor([outcome]), num)
    expected = redistribute_reference(values, outcome)
    assert torch.allclose(deltas[0], torch.tensor(expected), atol=1e-5)
    assert torch.allclose(
        rr.segment_gae(deltas, num, lam)[0], torch.tensor(gae_reference(expected, lam)), atol=1e-4
    )


@settings(deadline=None)
@given(batches(), st.floats(0, 1), st.sampled_from(["group_std", "none", "batch_std"]), st.booleans())
def test_credit_sums_to_the_reward_and_masked_tokens_get_nothing(rollouts, lam, scale, match) -> None:
    config = rr.RRedCoTConfig(**FIXED, lam=lam, scale=scale, match_grpo=match)
    segments = config.build_segmenter()(rollouts)
    credit = rr.assign_credit(rollouts, config, segments=segments, values=random_values(segments))
    real = segments.num_segments > 0
    assert torch.allclose(credit.segment_rewards.sum(1)[real], rollouts.outcomes[real], atol=1e-5)
    assert (credit.advantages[~rollouts.response_mask] == 0).all()
    assert (credit.segment_rewards[~segments.exists] == 0).all()
    assert torch.isfinite(credit.advantages).all()
    per_token = rr.spread_to_tokens(credit.segment_rewards / segments.lengths.clamp(min=1), segments.segment_ids)
    assert torch.allclose(per_token.sum(1)[real], rollouts.outcomes[real], atol=1e-5)


@settings(deadline=None)
@given(batches(), st.randoms(use_true_random=False))
def test_permuting_the_batch_permutes_the_result(rollouts, random) -> None:
    order = list(range(rollouts.batch_size))
    random.shuffle(order)
    index = torch.tensor(order)
    shuffled = rr.Rollouts(
        rollouts.token_ids[index],
        rollouts.response_mask[index],
        rollouts.rewards[index],
        [rollouts.group_ids[i] for i in order],
        log_probs=rollouts.log_probs[index],
    )
    config = rr.RRedCoTConfig(**FIXED)
    a, b = rr.assign_credit(rollouts, config), rr.assign_credit(shuffled, config)
    assert torch.allclose(a.advantages[index], b.advantages, atol=2e-3)
    assert torch.allclose(a.values[index], b.values, atol=1e-3)


@settings(deadline=None)
@given(batches(), st.integers(0, 3), st.integers(0, 3))
def test_padding_changes_nothing(rollouts, left, right) -> None:
    def pad(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x, (left, right))

    wide = rr.Rollouts(
        pad(rollouts.token_ids),
        pad(rollouts.response_mask),
        pad(rollouts.rewards),
        rollouts.group_ids,
        log_probs=pad(rollouts.log_probs),
    )
    config = rr.RRedCoTConfig(**FIXED)
    a, b = rr.assign_credit(rollouts, config), rr.assign_credit(wide, config)
    T = rollouts.token_ids.shape[1]
    assert torch.allclose(a.advantages, b.advantages[:, left : left + T], atol=1e-3)


def test_lambda_zero_sums_to_the_grpo_advantage() -> None:
    """Σ_k Â_k = R − mean_g(R) with the group's mean as prior (docs/reference/math.md)."""
    rewards = torch.zeros(4, 6)
    rewards[:, -1] = torch.tensor([1.0, 0.0, 0.0, 1.0])
    rollouts = rr.Rollouts(torch.zeros(4, 6, dtype=torch.int64), torch.ones(4, 6).bool(), rewards, [0] * 4)
    config = rr.RRedCoTConfig(**FIXED, lam=0.0, scale="none", leave_one_out=False)
    credit = rr.assign_credit(rollouts, config)
    per_segment = credit.advantages[:, ::3].sum(1)  # one token of each segment of three
    assert torch.allclose(per_segment, torch.tensor([0.5, -0.5, -0.5, 0.5]), atol=1e-6)


def test_whitened_equal_numbers_are_nothing() -> None:
    """In float32 the mean of many equal numbers is not that number."""
    numbers = torch.full((7, 999), 10_000.1)
    segments = rr.Segments(torch.zeros(7, 999, dtype=torch.int64), torch.ones(7, dtype=torch.int64))
    assert float(whiten(numbers, segments, torch.ones(7).bool()).abs().max()) == 0.0


def test_match_grpo_gives_each_trace_grpos_token_mean() -> None:
    torch.manual_seed(0)
    mask = torch.rand(6, 20) > 0.3
    rewards = torch.zeros(6, 20)
    rewards[:, 0] = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0, 1.0])
    mask[:, 0] = True
    rollouts = rr.Rollouts(torch.zeros(6, 20, dtype=torch.int64), mask, rewards, [0, 0, 0, 1, 1, 1])
    config = rr.RRedCoTConfig(**FIXED, match_grpo=True)
    segments = config.build_segmenter()(rollouts)
    credit = rr.assign_credit(rollouts, config, segments=segments, values=random_values(segments))
    grpo = rr.assign_credit(rollouts, rr.RRedCoTConfig(segmenter="none"))
    mean = credit.advantages.sum(1) / mask.sum(1)
    assert torch.allclose(mean, grpo.advantages.sum(1) / mask.sum(1), atol=1e-5)
    assert credit.advantages.std() > 0.1


def test_weighted_coefficients_have_token_mean_one_and_grpos_sign() -> None:
    rewards = torch.zeros(2, 9)
    rewards[0, -1] = 1.0
    rollouts = rr.Rollouts(torch.zeros(2, 9, dtype=torch.int64), torch.ones(2, 9).bool(), rewards, [0, 0])
    config = rr.RRedCoTConfig(**FIXED, mode="weighted")
    values = torch.tensor([[0.5, 0.9, 0.4], [0.5, 0.6, 0.1]])
    credit = rr.assign_credit(rollouts, config, values=values)
    grpo = rr.assign_credit(rollouts, rr.RRedCoTConfig(segmenter="none")).advantages[:, 0]
    assert torch.allclose(credit.advantages.mean(1), grpo, atol=1e-5)
    assert (credit.advantages[0] >= 0).all()
    assert (credit.advantages[1] <= 0).all()
    assert credit.advantages[0, 3] == 0  # the segment that lost value earns nothing in a good trace
    assert credit.advantages[1, 3] < credit.advantages[1, 6] < 0  # the worst step of a bad trace is blamed most


@pytest.mark.parametrize("scale", ["group_std", "batch_std", "none"])
def test_a_group_that_hardly_varies_does_not_blow_up(scale: str) -> None:
    rewards = torch.zeros(4, 6)
    rewards[:, -1] = torch.tensor([0.5, 0.5, 0.5, 0.5001])
    rollouts = rr.Rollouts(torch.zeros(4, 6, dtype=torch.int64), torch.ones(4, 6).bool(), rewards, [0] * 4)
    values = torch.tensor([[0.5, 0.1]]).expand(4, 2)
    credit = rr.assign_credit(rollouts, rr.RRedCoTConfig(**FIXED, scale=scale), values=values)
    assert credit.advantages.abs().max() <= 6


@pytest.mark.parametrize("scale", ["group_std", "batch_std"])
def test_equal_rewards_earn_nothing_where_their_deviation_divides(scale: str) -> None:
    rewards = torch.zeros(4, 6)
    rewards[:, -1] = 1.0
    rollouts = rr.Rollouts(torch.zeros(4, 6, dtype=torch.int64), torch.ones(4, 6).bool(), rewards, [0] * 4)
    values = torch.tensor([[0.9, 0.1]]).expand(4, 2)
    config = rr.RRedCoTConfig(**FIXED, scale=scale)
    assert (rr.assign_credit(rollouts, config, values=values).advantages == 0).all()


def test_nan_rewards_are_counted_and_earn_nothing() -> None:
    rewards = torch.zeros(4, 6)
    rewards[:, -1] = torch.tensor([1.0, 0.0, float("nan"), float("inf")])
    rollouts = rr.Rollouts(torch.zeros(4, 6, dtype=torch.int64), torch.ones(4, 6).bool(), rewards, [0] * 4)
    for config in (
        rr.RRedCoTConfig(**FIXED),
        rr.RRedCoTConfig(segmenter="none"),
        rr.RRedCoTConfig(**FIXED, mode="weighted"),
    ):
        credit = rr.assign_credit(rollouts, config)
        assert torch.isfinite(credit.advantages).all()
        assert (credit.advantages[2:] == 0).all()
        assert credit.metrics["rredcot/fallback/nonfinite_reward/mean"] == 0.5
        alone = rr.assign_credit(
            rr.Rollouts(rollouts.token_ids[:2], rollouts.response_mask[:2], rewards[:2], [0, 0]), config
        )
        assert torch.allclose(credit.advantages[:2], alone.advantages, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v[:, :1], "expected shape"),
        (lambda v: torch.where(v > 0.4, torch.nan, v), "finite"),
    ],
)
def test_bad_values_are_refused(change, message: str) -> None:
    rewards = torch.zeros(2, 6)
    rollouts = rr.Rollouts(torch.zeros(2, 6, dtype=torch.int64), torch.ones(2, 6).bool(), rewards, [0, 0])
    with pytest.raises(ValueError, match=message):
        rr.assign_credit(rollouts, rr.RRedCoTConfig(**FIXED), values=change(torch.full((2, 2), 0.5)))


def test_spread_refuses_ids_beyond_the_segments() -> None:
    with pytest.raises(ValueError, match="under 2, got 5"):
        rr.spread_to_tokens(torch.zeros(1, 2), torch.tensor([[0, 5]]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_rewards_of_any_precision(dtype: torch.dtype) -> None:
    rewards = torch.zeros(4, 6, dtype=dtype)
    rewards[0, -1] = 1.0
    rollouts = rr.Rollouts(torch.zeros(4, 6, dtype=torch.int64), torch.ones(4, 6).bool(), rewards, [0, 0, 1, 1])
    credit = rr.assign_credit(rollouts, rr.RRedCoTConfig(**FIXED))
    assert credit.advantages.dtype == torch.float32
    assert torch.allclose(credit.segment_rewards.sum(1), rollouts.outcomes, atol=1e-6)
