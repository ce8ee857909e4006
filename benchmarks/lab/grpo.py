"""Advantages of GRPO, RLOO, REINFORCE++ and OTB by verl's own functions, and of no baseline at all."""

from __future__ import annotations

import numpy as np
import torch
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import (
    compute_grpo_outcome_advantage,
    compute_optimal_token_baseline_advantage,
    compute_reinforce_plus_plus_outcome_advantage,
    compute_rloo_outcome_advantage,
)

from rredcot_plugin.types import Rollouts


def grpo_advantages(rollouts: Rollouts, *, deviation: bool = True) -> torch.Tensor:
    """(B, T); divided by the group's deviation unless ``deviation`` is false."""
    advantages: torch.Tensor = compute_grpo_outcome_advantage(
        rollouts.rewards,
        rollouts.response_mask.float(),
        np.array(rollouts.group_ids, dtype=object),
        norm_adv_by_std_in_grpo=deviation,
    )[0]
    return advantages


def rloo_advantages(rollouts: Rollouts) -> torch.Tensor:
    """(B, T); the reward over the mean of the group's other rollouts."""
    advantages: torch.Tensor = compute_rloo_outcome_advantage(
        rollouts.rewards, rollouts.response_mask.float(), np.array(rollouts.group_ids, dtype=object)
    )[0]
    return advantages


def reinforce_plus_plus_advantages(rollouts: Rollouts) -> torch.Tensor:
    """(B, T); the reward, whitened over the tokens of the batch: a baseline that needs no group."""
    advantages: torch.Tensor = compute_reinforce_plus_plus_outcome_advantage(
        rollouts.rewards, rollouts.response_mask.float(), config=AlgoConfig(gamma=1.0)
    )[0]
    return advantages


def otb_advantages(rollouts: Rollouts) -> torch.Tensor:
    """(B, T); the reward over a mean for each token, weighted by gradient length, that includes the rollout itself."""
    assert rollouts.log_probs is not None and rollouts.sum_pi_squared is not None
    advantages: torch.Tensor = compute_optimal_token_baseline_advantage(
        rollouts.rewards,
        rollouts.response_mask.float(),
        np.array(rollouts.group_ids, dtype=object),
        rollouts.log_probs,
        rollouts.sum_pi_squared,
    )[0]
    return advantages


def reward_advantages(rollouts: Rollouts) -> torch.Tensor:
    """(B, T); the reward itself: what does not succeed has no gradient."""
    return torch.where(rollouts.response_mask.bool(), rollouts.outcomes[:, None], 0.0)
