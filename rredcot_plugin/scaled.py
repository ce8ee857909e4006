"""Advantages of segments and tokens, in the configured mode and scale. Masked tokens, padding and rows without a finite reward get
exactly nothing."""

from __future__ import annotations

import dataclasses

import torch

from rredcot_plugin.baselines.base import Evidence, is_per_token
from rredcot_plugin.choices import choose_scale
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.credit.advantages import (
    grpo_advantage,
    match_token_mean,
    scale_advantages,
    weighted_coefficients,
    whiten,
)
from rredcot_plugin.credit.penalties import without_penalties
from rredcot_plugin.credit.redistribution import mean_per_segment, spread_to_tokens
from rredcot_plugin.groups import Outcomes
from rredcot_plugin.measured import Measured
from rredcot_plugin.types import Segments


def scaled_advantages(
    config: RRedCoTConfig,
    measured: Measured,
    earned: Outcomes,
    deltas: torch.Tensor,
    gae: torch.Tensor,
    owed: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Advantages per segment and per token, in the configured mode, and the whole baselines per segment. ``earned``, unlike the
    evidence, counts rewards on the way; ``owed``, of penalties, is added to what is scaled."""
    evidence, baselines = measured.evidence, measured.numbers
    on_their_segments = measured.in_baselines + measured.to_come
    if config.mode == "weighted":
        return *_weighted(config, evidence.segments, deltas, earned), baselines + on_their_segments
    if bool(owed.any()):
        earned = without_penalties(earned, evidence.rollouts.group_ids)
    # baselines are of what is redistributed, and so is the mean that they are compared with
    stats = dataclasses.replace(earned.stats, mean=evidence.outcomes.stats.mean)
    earned = dataclasses.replace(earned, stats=stats)
    if is_per_token(measured.baseline):
        found = _from_tokens(config, evidence, earned, gae, baselines)
        baselines = mean_per_segment(baselines, evidence.segments)
    else:
        found = _from_segments(config, evidence, earned, gae, baselines, owed)
    return *found, baselines + on_their_segments


def finished(
    config: RRedCoTConfig,
    segments: Segments,
    advantages: torch.Tensor,
    targets: torch.Tensor | None,
    found: torch.Tensor,
    outcomes: Outcomes,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns per token. Returns are the advantages, as in GRPO; where a critic gave the values, its ``targets``
    (B, S), Â + V̂ before any scaling, and its own V̂, as ``found``, where the reward is not finite."""
    if config.match_grpo:
        advantages = match_token_mean(advantages, _grpo(config, outcomes), segments)
    if _scale(config) == "whiten":
        advantages = whiten(advantages, segments, outcomes.finite)
    if targets is not None:
        targets = torch.where(outcomes.finite[:, None], targets, found)
        return advantages, spread_to_tokens(targets, segments.segment_ids)
    return advantages, advantages.clone()


def _from_segments(
    config: RRedCoTConfig,
    evidence: Evidence,
    earned: Outcomes,
    gae: torch.Tensor,
    baselines: torch.Tensor,
    owed: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages per segment and per token, scaled. Â is measured from V̂; from another baseline b it is Â + V̂ − b."""
    segments, outcomes = evidence.segments, evidence.outcomes
    real = segments.exists & outcomes.finite[:, None]
    measured = torch.where(real, gae + evidence.values - baselines, 0.0)
    scaled = scale_advantages(measured, baselines, earned, real, _scale(config))
    per_segment = torch.where(real, scaled + owed, 0.0)
    return per_segment, spread_to_tokens(per_segment, segments.segment_ids)


def _from_tokens(
    config: RRedCoTConfig, evidence: Evidence, earned: Outcomes, gae: torch.Tensor, baselines: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same from a baseline per token; the advantage of a segment is the mean over its tokens."""
    segments, outcomes = evidence.segments, evidence.outcomes
    mask = evidence.rollouts.response_mask
    real = mask & outcomes.finite[:, None]
    measured = spread_to_tokens(gae + evidence.values, segments.segment_ids) - baselines
    scaled = scale_advantages(measured, baselines, earned, real, _scale(config))
    tokens = torch.where(real, scaled, 0.0)
    return mean_per_segment(tokens, segments), tokens


def _weighted(
    config: RRedCoTConfig, segments: Segments, deltas: torch.Tensor, outcomes: Outcomes
) -> tuple[torch.Tensor, torch.Tensor]:
    """GRPO's advantage times a coefficient for each segment."""
    grpo = _grpo(config, outcomes)
    real = segments.exists & outcomes.finite[:, None]
    per_segment = torch.where(real, weighted_coefficients(deltas, grpo, segments) * grpo[:, None], 0.0)
    return per_segment, spread_to_tokens(per_segment, segments.segment_ids)


def _grpo(config: RRedCoTConfig, outcomes: Outcomes) -> torch.Tensor:
    return torch.where(outcomes.finite, grpo_advantage(outcomes, _scale(config)), 0.0)


def _scale(config: RRedCoTConfig) -> str:
    return str(choose_scale(config).value)
