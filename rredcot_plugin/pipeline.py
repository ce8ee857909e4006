"""The whole method on one page: rollouts in, credit out. No model is called here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rredcot_plugin import metrics as metric
from rredcot_plugin.advantages import (
    grpo_advantage,
    match_token_mean,
    scale_segments,
    segment_gae,
    weighted_coefficients,
    whiten,
)
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.groups import GroupStats, group_stats
from rredcot_plugin.hierarchy import hierarchical_gae
from rredcot_plugin.redistribution import redistribute, segment_rewards, spread_to_tokens, sum_per_segment
from rredcot_plugin.types import Credit, Rollouts, Segments, check_finite, check_partition, check_shape
from rredcot_plugin.values.base import Probed, calibrates, estimate, proposal_limits
from rredcot_plugin.values.calibration import (
    LabelledStates,
    OutcomeCalibrator,
    fold_of_groups,
    sample_of_groups,
)
from rredcot_plugin.values.features import boundary_features
from rredcot_plugin.values.least_variance import surprise, trace_baseline, weighted_others_mean

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

FeatureMap = Callable[..., torch.Tensor]
"""With the arguments of ``boundary_features``, and its result."""

ImportanceMap = Callable[[Rollouts, Segments], torch.Tensor]
"""With the arguments of ``surprise``, and its result."""


@dataclass(frozen=True)
class Outcomes:
    """What the rollouts earned; all (B,).

    ``total`` is R, the sum of the token rewards; ``score`` is R without ``Rollouts.penalties``, so it is what
    values predict. Both are 0 where ``finite`` is false.
    """

    total: Float[Tensor, " B"]
    score: Float[Tensor, " B"]
    finite: Bool[Tensor, " B"]
    stats: GroupStats


def assign_credit(
    rollouts: Rollouts,
    config: RRedCoTConfig | None = None,
    *,
    segments: Segments | None = None,
    coarse: Segments | None = None,
    values: Float[Tensor, "B S"] | None = None,
    probed: Probed | Mapping[str, Probed] | None = None,
    calibrator: OutcomeCalibrator | None = None,
    features: FeatureMap = boundary_features,
    importance: ImportanceMap = surprise,
) -> Credit:
    """Redistribute each outcome over the segments of its trace and return token advantages.

    δ_i = V̂_{i+1} − V̂_i, r = δ with V̂_0 on the first segment (so Σ r = R), Â_k = Σ λ^l δ_{k+l}, scaled as
    GRPO scales. One segment a trace gives verl's GRPO exactly. Penalties (KL in the reward) are not
    redistributed: they join the δ of their own segment. A rollout whose outcome is NaN or infinite earns
    nothing and counts for nobody.

    Args:
        rollouts: the batch; rows may stand in any order, groups are found by ``group_ids``.
        config: the options; None for the defaults.
        segments: a partition to use instead of the configured segmenter's.
        coarse: the segments that these are parts of, for ``lam_coarse``.
        values: V̂ of every state, taken as they are (no prior, no calibration).
        probed: log-probs of the proposals at the boundaries, from which the estimator makes values; a
            mapping from what was proposed (``ValueEstimator.proposes``) where estimators are mixed.
            Where the estimator has nothing to read, a boundary has the mean of its group.
        calibrator: keeps the fit of past steps; None calibrates on this batch alone.
        features: what computes ``boundary_features``; processes may share the groups.
        importance: the same of ``surprise``.

    Raises:
        ValueError: values that are not finite or do not fit the segments; segments that leave an unmasked
            token out or cover a masked one.
    """
    config = config or RRedCoTConfig()
    if segments is None:
        levels = config.build_levels(rollouts)
        coarse, segments = levels[0], levels[-1]
    check_partition(segments, rollouts.response_mask)
    penalties, outcomes = _outcomes(rollouts, segments)
    stats, finite = outcomes.stats, outcomes.finite
    report = {"rredcot/fallback/nonfinite_reward/mean": metric.share(~finite)}

    baselines = None
    if values is not None:
        check_shape("values", values, (rollouts.batch_size, segments.max_segments))
        check_finite("values", values, segments.exists)
        values = values.float()
    elif segments.max_segments == 1 and not config.has_critic:
        values = stats.mean[:, None]
    else:
        values, baselines, notes = _estimate(
            rollouts, config, segments, outcomes, probed, calibrator, features, importance
        )
        report |= notes
    real = segments.exists & finite[:, None]
    values = torch.where(real, values, 0.0)
    baselines = values if baselines is None else torch.where(real, baselines, 0.0)

    deltas = redistribute(values, outcomes.score, segments.num_segments)
    for shaper in config.build_shapers():
        deltas, residual = _shaped(shaper, deltas, segments, outcomes)
        report["rredcot/credit/shaping_residual/max"] = max(
            residual, report.get("rredcot/credit/shaping_residual/max", 0.0)
        )
    deltas = deltas + penalties
    rewards = segment_rewards(deltas, values)
    gae = _gae(config, segments, coarse, deltas)
    per_segment, advantages, returns = _advantages(config, segments, values, baselines, deltas, gae, outcomes)
    report |= metric.credit_metrics(segments, values, deltas, rewards, outcomes.total, per_segment)
    return Credit(advantages, returns, segments, values, rewards, report, baselines)


def _outcomes(rollouts: Rollouts, segments: Segments) -> tuple[torch.Tensor, Outcomes]:
    """Penalties of each segment (B, S), and what is left to redistribute."""
    total = rollouts.outcomes
    finite = torch.isfinite(total)
    total = torch.where(finite, total, 0.0)
    penalties = total.new_zeros(segments.exists.shape)
    if rollouts.penalties is not None:
        penalties = torch.where(finite[:, None], sum_per_segment(rollouts.penalties, segments), 0.0)
    score = total - penalties.sum(dim=1)
    return penalties, Outcomes(total, score, finite, group_stats(total, rollouts.group_ids, finite))


def _shaped(
    shaper: Callable[..., torch.Tensor], deltas: torch.Tensor, segments: Segments, outcomes: Outcomes
) -> tuple[torch.Tensor, float]:
    """Deltas after one shaper; what it changed of a trace's sum goes to the answer segment, and is returned."""
    shaped = shaper(deltas, segments, outcomes.score, outcomes.stats)
    check_shape(f"deltas of shaper {type(shaper).__name__}", shaped, deltas.shape)
    check_finite(f"deltas of shaper {type(shaper).__name__}", shaped, segments.exists)
    shaped = torch.where(segments.exists, shaped, 0.0)
    missing = deltas.sum(dim=1) - shaped.sum(dim=1)
    last = (segments.num_segments - 1).clamp(min=0)[:, None]
    missing = torch.where(segments.num_segments > 0, missing, 0.0)
    return shaped.scatter_add(1, last, missing[:, None]), float(missing.abs().max())


def _gae(config: RRedCoTConfig, segments: Segments, coarse: Segments | None, deltas: torch.Tensor) -> torch.Tensor:
    """Â before scaling, over one level of segments or two."""
    if config.lam_coarse is None:
        return segment_gae(deltas, segments.num_segments, config.lam)
    if coarse is None:
        raise ValueError(
            f"coarse: lam_coarse={config.lam_coarse} needs the segments that these are parts of, got None"
        )
    return hierarchical_gae(deltas, segments, coarse, config.lam, config.lam_coarse)


def _advantages(
    config: RRedCoTConfig,
    segments: Segments,
    values: torch.Tensor,
    baselines: torch.Tensor,
    deltas: torch.Tensor,
    gae: torch.Tensor,
    outcomes: Outcomes,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Advantages per segment and per token, and returns per token (method.md, section 5).

    Â is measured from V̂ of the state before a segment; from another baseline b it is Â + V̂ − b. Returns are the advantages, as in GRPO; where a critic gave the values, Â + V̂ before any scaling:
    what the critic is to learn.
    """
    scale = config.scale or "group_std"
    stats, real = outcomes.stats, segments.exists & outcomes.finite[:, None]
    grpo = torch.where(outcomes.finite, grpo_advantage(outcomes.total, stats, scale), 0.0)
    raw = torch.where(real, gae, 0.0)
    measured = torch.where(real, gae + values - baselines, 0.0)
    if config.mode == "weighted":
        per_segment = weighted_coefficients(deltas, grpo, segments) * grpo[:, None]
    else:
        per_segment = scale_segments(measured, baselines, outcomes.total, segments, stats, scale)
    per_segment = torch.where(real, per_segment, 0.0)
    advantages = spread_to_tokens(per_segment, segments.segment_ids)
    if config.match_grpo:
        advantages = match_token_mean(advantages, grpo, segments)
    if scale == "whiten":
        advantages = whiten(advantages, segments)
    if config.has_critic:
        return per_segment, advantages, spread_to_tokens(raw + values, segments.segment_ids)
    return per_segment, advantages, advantages.clone()


def _estimate(
    rollouts: Rollouts,
    config: RRedCoTConfig,
    segments: Segments,
    outcomes: Outcomes,
    probed: Probed | Mapping[str, Probed] | None,
    calibrator: OutcomeCalibrator | None,
    features: FeatureMap,
    surprise_of: ImportanceMap,
) -> tuple[torch.Tensor, torch.Tensor | None, dict[str, float]]:
    """V̂ of every state: prior at the prompt, estimator behind it, the prior where it has nothing to say; baselines
    where they are not V̂."""
    stats, finite = outcomes.stats, outcomes.finite
    prior = stats.others_mean if config.leave_one_out else stats.mean
    estimator = config.build_value_estimator()
    evidence = _by_proposal(probed, estimator, segments)
    found = estimate(estimator, evidence, clip=config.clip, rollouts=rollouts, segments=segments)
    behind_prompt = (segments.exists & found.known[:, None])[:, 1:]
    check_finite(f"values of {type(estimator).__name__}", found.values[:, 1:], behind_prompt)
    values = torch.where(found.known[:, None] & torch.isfinite(found.values), found.values, prior[:, None])
    raw, baselines = values, None
    notes = {"rredcot/fallback/group_mean/mean": metric.share(~found.known)}
    kind = config.baseline_for(log_probs=rollouts.log_probs is not None)
    importance = torch.ones_like(values) if kind == "value" else surprise_of(rollouts, segments)
    if kind == "trace":
        baselines = trace_baseline(importance, segments, outcomes.total, stats, finite)
    calibrated, shifted = config.calibrate != "none" and calibrates(estimator), kind == "least_variance"
    if calibrated or shifted:
        calibrator = calibrator if calibrator is not None else config.build_calibrator()
        labelled = _labelled(rollouts, segments, values, outcomes, calibrator, importance, features)
        if shifted:  # before the step joins the past
            first = weighted_others_mean(outcomes.total, importance[:, 0], stats, finite)
            fitted = labelled.spread(calibrator.baselines(labelled.states, labelled.fold, labelled.counted), first)
            baselines = torch.cat([first[:, None], fitted[:, 1:]], dim=1)
        if calibrated:
            fit = calibrator.calibrate(labelled.states, labelled.fold, labelled.counted)
            notes |= {"rredcot/fallback/uncalibrated/mean": float(fit is None)} | calibrator.notes()
            values = labelled.spread(fit, prior, values)
        else:
            calibrator.remember(labelled.states, labelled.counted)
    if config.prior_from_group:
        values = torch.cat([prior[:, None], values[:, 1:]], dim=1)
    notes |= metric.calibration_metrics(values, outcomes.score, segments, finite)
    exists = segments.exists[:, 1:] & found.known[:, None]
    return values, baselines, notes | metric.spread("rredcot/value/raw", raw[:, 1:][exists])


def _by_proposal(
    probed: Probed | Mapping[str, Probed] | None, estimator: object, segments: Segments
) -> Mapping[str, Probed]:
    """The probes by what was proposed, their shapes checked."""
    if isinstance(probed, Probed):
        probed = dict.fromkeys(proposal_limits(estimator), probed)
    for name, found in (probed or {}).items():
        N = found.log_pi.shape[-1]
        check_shape(f"probed.log_pi of {name}", found.log_pi, (*segments.exists.shape, N))
        check_shape(f"probed.utility of {name}", found.utility, (len(segments.num_segments), N))
        check_shape(f"probed.valid of {name}", found.valid, (len(segments.num_segments), N))
        if not torch.equal(found.num_segments.cpu(), segments.num_segments.cpu()):
            raise ValueError(
                f"probed.num_segments of {name}: expected those of the segments, {segments.num_segments.tolist()}, "
                f"got {found.num_segments.tolist()}"
            )
    return probed or {}


@dataclass(frozen=True)
class Labelled:
    """The M states that a fit sees or values, at ``at`` (B, S), with their folds; ``counted`` of them are fitted."""

    states: LabelledStates
    fold: Int[Tensor, " M"]
    counted: Bool[Tensor, " M"]
    at: Bool[Tensor, "B S"]

    def spread(
        self,
        fitted: Float[Tensor, " M"] | None,
        otherwise: Float[Tensor, " B"],
        elsewhere: Float[Tensor, "B S"] | None = None,
    ) -> Float[Tensor, "B S"]:
        """The fitted numbers in their places, ``elsewhere`` around them; ``otherwise`` everywhere if there are none."""
        everywhere = otherwise[:, None].expand(self.at.shape)
        if fitted is None:
            return everywhere
        result = (everywhere if elsewhere is None else elsewhere).clone()
        result[self.at] = fitted.to(result.dtype)
        return result


def _labelled(
    rollouts: Rollouts,
    segments: Segments,
    values: torch.Tensor,
    outcomes: Outcomes,
    calibrator: OutcomeCalibrator,
    importance: torch.Tensor,
    features: FeatureMap,
) -> Labelled:
    """Features, outcome and weight of every state behind a prompt."""
    finite, score = outcomes.finite, outcomes.score
    low, high = calibrator.span(score[finite])
    width = max(high - low, 1e-6)
    stats = group_stats(score, rollouts.group_ids, finite)
    unit = ((values - low) / width).clamp(0, 1)
    others, outcome = (((x - low) / width).clamp(0, 1) for x in (stats.others_mean, score))
    looked_at = features(rollouts, segments, unit, stats, others, outcome, finite)
    at = segments.exists & finite[:, None]
    at = at & (torch.arange(segments.max_segments, device=at.device)[None, :] > 0)
    weight = at / at.sum(dim=1, keepdim=True).clamp(min=1)  # every trace counts once
    labels = score[:, None].expand_as(values)[at].double()
    states = LabelledStates(looked_at[at], labels, weight[at].double(), importance[at].double())
    folds = fold_of_groups(rollouts.group_ids).to(at.device)
    sampled = sample_of_groups(rollouts.group_ids, at.sum(dim=1), calibrator.max_states).to(at.device)
    fold, counted = (x[:, None].expand_as(at)[at] for x in (folds, sampled))
    return Labelled(states, fold, counted, at)
