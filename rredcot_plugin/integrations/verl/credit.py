"""Credit of the active rows from what a step has read, and the numbers that verl trains on. Nothing is fetched here."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from verl.trainer.ppo import core_algos

from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.integrations.verl.batch import SIGNALS, onto_unmasked
from rredcot_plugin.integrations.verl.step import StepState
from rredcot_plugin.integrations.verl.tokens import fit_width, rewards_at_ends
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.types import MASKED, Credit, Rollouts
from rredcot_plugin.values.calibration import OutcomeCalibrator


def credit_of_step(
    state: StepState,
    rewards: torch.Tensor,
    settings: RRedCoTConfig,
    calibrator: OutcomeCalibrator,
    *,
    kl_in_reward: bool,
) -> tuple[Credit, Rollouts]:
    """Credit of the sessions, with the rewards (all rows of the batch) as verl has them by now: where
    ``kl_in_reward``, with the KL penalty on single tokens, which stays where it is."""
    ids = state.segments.segment_ids
    mask = ids != MASKED
    active = onto_unmasked(fit_width(rewards_of_sessions(state, rewards), ids), mask)
    if state.summary.moved is not None:
        active = active + state.summary.moved
    if state.rows is None:
        rollouts = Rollouts(None, mask, active, state.group_ids, versions=state.versions)
    else:
        before = state.rows.rollouts
        signals: dict[str, Any] = {name: state.signals.get(name) for name in SIGNALS.values()}
        rollouts = dataclasses.replace(
            before,
            rewards=active,
            penalties=penalties_of(active - before.rewards) if kl_in_reward else None,
            token_scores=state.token_scores,
            versions=state.versions,
            **signals,
        )
    probed = None
    if state.log_probs is not None:
        probed = state.plan.probed(state.log_probs, length_normalize=settings.length_normalize)
    credit = assign_credit(
        rollouts,
        settings,
        segments=state.segments,
        coarse=state.summary.levels[0],
        probed=probed,
        calibrator=calibrator,
        states=state.numbers,
    )
    return credit, rollouts


def rewards_of_sessions(state: StepState, rewards: torch.Tensor) -> torch.Tensor:
    """(sessions, columns): the rewards of each session's last output, and what verl has added to those of earlier ones, which
    are copies; the reward itself counts once, and one of a copy that is not finite nowhere."""
    now = state.layout.join(rewards[state.roles.active].float().cpu())
    if state.layout.is_trivial:
        return now
    added = torch.zeros_like(now) if state.copies is None else penalties_of(now - fit_width(state.copies, now))
    return torch.where(state.layout.is_last(now.shape[1]), now, added)


def penalties_of(added: torch.Tensor) -> torch.Tensor:
    """What verl has put on single tokens since the reward came; NaN rewards have no penalty to keep."""
    return added.nan_to_num(0.0, 0.0, 0.0)


def gae_of_critic(credit: Credit, rollouts: Rollouts, algorithm: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns of ``red`` with a critic: verl's GAE on the redistributed rewards. Where the reward is not finite
    there is nothing to learn: no advantage, and the critic's own values as returns."""
    values = (rollouts.token_scores or {})["critic"]
    counted = rollouts.response_mask & torch.isfinite(rollouts.outcomes)[:, None]
    if not bool(counted.any()):  # verl cannot whiten nothing
        return torch.zeros_like(values), values
    rewards, rules = rewards_at_ends(credit), (algorithm.gamma, algorithm.lam)
    advantages, returns = core_algos.compute_gae_advantage_return(rewards, values, counted.float(), *rules)
    counted = counted | ~rollouts.response_mask
    return torch.where(counted, advantages, 0.0), torch.where(counted, returns, values)
