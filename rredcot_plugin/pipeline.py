"""The whole method on one page: rollouts in, credit out. No model is called here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from rredcot_plugin import metrics as metric
from rredcot_plugin.advantages import (
    grpo_advantage,
    match_token_mean,
    scale_segments,
    segment_gae,
    weighted_coefficients,
)
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.groups import GroupStats, group_stats
from rredcot_plugin.redistribution import redistribute, segment_rewards, spread_to_tokens
from rredcot_plugin.types import Credit, Rollouts, Segments, check_finite, check_shape
from rredcot_plugin.values.base import NO_PROBES, Probed
from rredcot_plugin.values.calibration import LabelledStates, OutcomeCalibrator, fold_of_groups
from rredcot_plugin.values.features import boundary_features

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def assign_credit(
    rollouts: Rollouts,
    config: RRedCoTConfig | None = None,
    *,
    segments: Segments | None = None,
    values: Float[Tensor, "B S"] | None = None,
    probed: Probed | None = None,
    calibrator: OutcomeCalibrator | None = None,
) -> Credit:
    """Redistribute each outcome over the segments of its trace and return token advantages.

    δ_i = V̂_{i+1} − V̂_i, r = δ with V̂_0 on the first segment (so Σ r = R), Â_k = Σ λ^l δ_{k+l}, scaled as
    GRPO scales. One segment a trace gives verl's GRPO exactly. A rollout whose outcome is NaN or infinite
    earns nothing and counts for nobody.

    Args:
        rollouts: the batch; rows may stand in any order, groups are found by ``group_ids``.
        config: the options; None for the defaults.
        segments: a partition to use instead of the configured segmenter's.
        values: V̂ of every state, taken as they are (no prior, no calibration).
        probed: log-probs of the proposals at the boundaries, from which the estimator makes values.
            Without ``values`` and ``probed`` a boundary starts out at the mean of its group, unless the
            estimator runs without probes.
        calibrator: keeps the fit of past steps; None calibrates on this batch alone.

    Raises:
        ValueError: values that are not finite or do not fit the segments.
    """
    config = config or RRedCoTConfig()
    segments = segments if segments is not None else config.build_segmenter()(rollouts)
    check_shape("segments.segment_ids", segments.segment_ids, rollouts.token_ids.shape)
    outcome = rollouts.outcomes
    finite = torch.isfinite(outcome)
    outcome = torch.where(finite, outcome, 0.0)
    stats = group_stats(outcome, rollouts.group_ids, finite)
    report = {"rredcot/fallback/nonfinite_reward/mean": metric.share(~finite)}

    if values is not None:
        check_shape("values", values, (rollouts.batch_size, segments.max_segments))
        check_finite("values", values, segments.exists)
        values = values.float()
    elif segments.max_segments == 1:
        values = stats.mean[:, None]
    else:
        values, notes = _estimate(rollouts, config, segments, outcome, finite, stats, probed, calibrator)
        report |= notes
    values = torch.where(segments.exists & finite[:, None], values, 0.0)

    deltas = redistribute(values, outcome, segments.num_segments)
    for shaper in config.build_shapers():
        deltas, residual = _shaped(shaper, deltas, segments, outcome, stats)
        report["rredcot/credit/shaping_residual/max"] = max(
            residual, report.get("rredcot/credit/shaping_residual/max", 0.0)
        )
    rewards = segment_rewards(deltas, values)
    per_segment, advantages = _advantages(config, segments, values, deltas, outcome, finite, stats)
    report |= metric.credit_metrics(segments, values, deltas, rewards, outcome, per_segment)
    return Credit(advantages, advantages.clone(), segments, values, rewards, report)


def _shaped(
    shaper: Callable[..., torch.Tensor],
    deltas: torch.Tensor,
    segments: Segments,
    outcome: torch.Tensor,
    stats: GroupStats,
) -> tuple[torch.Tensor, float]:
    """Deltas after one shaper; what it changed of a trace's sum goes to the answer segment, and is returned."""
    shaped = shaper(deltas, segments, outcome, stats)
    check_shape(f"deltas of shaper {type(shaper).__name__}", shaped, deltas.shape)
    check_finite(f"deltas of shaper {type(shaper).__name__}", shaped, segments.exists)
    shaped = torch.where(segments.exists, shaped, 0.0)
    missing = deltas.sum(dim=1) - shaped.sum(dim=1)
    last = (segments.num_segments - 1).clamp(min=0)[:, None]
    missing = torch.where(segments.num_segments > 0, missing, 0.0)
    return shaped.scatter_add(1, last, missing[:, None]), float(missing.abs().max())


def _advantages(
    config: RRedCoTConfig,
    segments: Segments,
    values: torch.Tensor,
    deltas: torch.Tensor,
    outcome: torch.Tensor,
    finite: torch.Tensor,
    stats: GroupStats,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages per segment and per token (method.md, section 5)."""
    scale = config.scale or "group_std"
    grpo = torch.where(finite, grpo_advantage(outcome, stats, scale), 0.0)
    if config.mode == "weighted":
        per_segment = weighted_coefficients(deltas, grpo, segments) * grpo[:, None]
    else:
        raw = segment_gae(deltas, segments.num_segments, config.lam)
        per_segment = scale_segments(raw, values, outcome, segments, stats, scale)
    per_segment = torch.where(segments.exists & finite[:, None], per_segment, 0.0)
    advantages = spread_to_tokens(per_segment, segments.segment_ids)
    if config.match_grpo:
        advantages = match_token_mean(advantages, grpo, segments)
    return per_segment, advantages


def _estimate(
    rollouts: Rollouts,
    config: RRedCoTConfig,
    segments: Segments,
    outcome: torch.Tensor,
    finite: torch.Tensor,
    stats: GroupStats,
    probed: Probed | None,
    calibrator: OutcomeCalibrator | None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """V̂ of every state: prior at the prompt, estimator behind it, the prior where it has nothing to say."""
    prior = stats.others_mean if config.leave_one_out else stats.mean
    values = prior[:, None].expand(-1, segments.max_segments).clone()
    known = torch.zeros_like(finite)
    estimator = config.build_value_estimator()
    if probed is not None:
        check_shape("probed.log_pi", probed.log_pi[:, :, 0], values.shape)
    if probed is not None or estimator.proposes == NO_PROBES:
        estimate = estimator(probed, clip=config.clip, rollouts=rollouts, segments=segments)
        known = estimate.known
        values = torch.where(known[:, None], estimate.values, values)
    raw = values
    notes = {"rredcot/fallback/group_mean/mean": metric.share(~known)}
    low, high = (float(outcome[finite].min()), float(outcome[finite].max())) if bool(finite.any()) else (0.0, 0.0)
    if config.calibrate == "outcome":
        calibrator = calibrator if calibrator is not None else OutcomeCalibrator()
        fitted = _calibrate(rollouts, segments, values, outcome, finite, stats, (low, high), calibrator)
        notes["rredcot/fallback/uncalibrated/mean"] = float(fitted is None)
        values = prior[:, None].expand_as(values) if fitted is None else fitted
    if config.prior_from_group:
        values = torch.cat([prior[:, None], values[:, 1:]], dim=1)
    notes |= metric.calibration_metrics(values, outcome, segments, low, high)
    exists = segments.exists[:, 1:] & known[:, None]
    return values, notes | metric.spread("rredcot/value/raw", raw[:, 1:][exists])


def _calibrate(
    rollouts: Rollouts,
    segments: Segments,
    values: torch.Tensor,
    outcome: torch.Tensor,
    finite: torch.Tensor,
    stats: GroupStats,
    span: tuple[float, float],
    calibrator: OutcomeCalibrator,
) -> torch.Tensor | None:
    """Cross-fitted values of the boundaries, or None where outcomes do not vary."""
    low, high = span
    width = max(high - low, 1e-6)
    unit = ((values - low) / width).clamp(0, 1)
    others = ((stats.others_mean - low) / width).clamp(0, 1)
    features = boundary_features(rollouts, segments, unit, stats, others)
    at = segments.exists & finite[:, None]
    at = at & (torch.arange(segments.max_segments, device=at.device)[None, :] > 0)
    weight = at / at.sum(dim=1, keepdim=True).clamp(min=1)  # every trace counts once
    y = ((outcome - low) / width)[:, None].expand_as(values)
    states = LabelledStates(features[at], y[at].double(), weight[at].double())
    fold = fold_of_groups(rollouts.group_ids).to(at.device)[:, None].expand_as(at)[at]
    fitted = calibrator.calibrate(states, fold)
    if fitted is None:
        return None
    result = values.clone()
    result[at] = low + fitted.to(result.dtype) * width
    return result
