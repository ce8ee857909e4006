"""Group statistics against verl's conventions and a slow reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rredcot_plugin as rr
from rredcot_plugin.groups import group_stats

FIXED = {"segmenter": "fixed", "segmenter_kwargs": {"tokens": 4}}


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(-3, 3, width=32), st.sampled_from("abc"), st.booleans()), min_size=1, max_size=12)
)
def test_group_stats_equal_the_slow_reference(rows: list[tuple[float, str, bool]]) -> None:
    outcomes = torch.tensor([x for x, _, _ in rows])
    groups, valid = [g for _, g, _ in rows], torch.tensor([v for _, _, v in rows])
    stats = group_stats(outcomes, groups, valid)
    for i, (_, group, _) in enumerate(rows):
        members = [x for j, (x, g, v) in enumerate(rows) if g == group and v]
        others = [x for j, (x, g, v) in enumerate(rows) if g == group and v and j != i]
        alone = len(members) <= 1
        mean = 0.0 if alone else sum(members) / len(members)
        std = 1.0 if alone else float(torch.tensor(members, dtype=torch.float64).std())
        assert abs(float(stats.mean[i]) - mean) < 1e-5
        assert abs(float(stats.std[i]) - std) < 1e-5
        assert abs(float(stats.others_mean[i]) - (sum(others) / len(others) if others else 0.0)) < 1e-5


def test_small_spread_beside_a_large_mean_survives() -> None:
    stats = group_stats(torch.tensor([10_000.0, 10_000.01]), ["a", "a"], torch.tensor([True, True]))
    assert 0.005 < float(stats.std[0]) < 0.01


@pytest.mark.parametrize("preset", ["default", "lean", "low_variance"])
def test_a_rollout_alone_in_its_group_is_compared_with_other_prompts(preset: str) -> None:
    """rollout.n=1: credit sums to the reward, and no baseline knows its own outcome."""
    generator = torch.Generator().manual_seed(0)
    log_probs = -2 * torch.rand(8, 12, generator=generator)
    keys = {} if preset == "default" else {"preset": preset}
    config = rr.RRedCoTConfig.from_mapping({**FIXED, "value_estimator": "confidence", "scale": "none", **keys})

    def credit(outcomes: list[float]) -> rr.Credit:
        rewards = torch.zeros(8, 12)
        rewards[:, -1] = torch.tensor(outcomes)
        ids, mask = torch.zeros(8, 12, dtype=torch.int64), torch.ones(8, 12).bool()
        given = rr.Rollouts(ids, mask, rewards, list(range(8)), log_probs=log_probs, entropies=-log_probs)
        return rr.assign_credit(given, config)

    first, other = credit([1, 0, 0, 1, 1, 0, 0, 0]), credit([0, 0, 0, 1, 1, 0, 0, 0])
    torch.testing.assert_close(first.deltas.sum(1), torch.tensor([1.0, 0, 0, 1, 1, 0, 0, 0]))
    assert first.baselines is not None and other.baselines is not None
    torch.testing.assert_close(first.baselines[0], other.baselines[0])
    assert torch.isfinite(first.advantages).all() and not torch.equal(first.advantages, other.advantages)
