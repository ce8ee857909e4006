"""The benchmark of baseline weights: what it compares is what it says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import rredcot_plugin as rr

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from baseline_weights import exact_norms, others_mean


def test_exact_norms_are_those_of_the_softmax_gradient_and_others_leave_the_own_reward_out() -> None:
    logits = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))
    ids, pi = torch.randint(0, 5, (4, 3), generator=torch.Generator().manual_seed(1)), logits.softmax(-1)
    chosen = pi.gather(-1, ids[..., None])[..., 0]
    rewards = torch.zeros(4, 3)
    rewards[:, -1] = torch.tensor([1.0, 0.0, 0.5, 0.0])
    mask = torch.ones(4, 3).bool()
    squares = pi.square().sum(-1)
    rollouts = rr.Rollouts(ids, mask, rewards, [0, 0, 1, 1], log_probs=chosen.log(), sum_pi_squared=squares)
    segments = rr.get_segmenter("none")(rollouts)
    gradient = torch.nn.functional.one_hot(ids, 5) - pi  # of log π(o_t) with respect to the logits
    expected = gradient.square().sum(-1).sum(1)
    assert exact_norms(rollouts, segments)[:, 0].tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    assert others_mean(rollouts, 2).tolist() == [0.0, 1.0, 0.0, 0.5]
