"""The whole method on one page: rollouts in, credit out. No model is called here."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from rredcot_plugin.baselines.base import Evidence, is_per_token
from rredcot_plugin.baselines.value import ValueBaseline
from rredcot_plugin.checks import check_finite, check_shape
from rredcot_plugin.choices import measures_from_groups_mean
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.credit import metrics as metric
from rredcot_plugin.credit.advantages import segment_gae
from rredcot_plugin.credit.hierarchy import gae_over
from rredcot_plugin.credit.later_segments import luck_of_later
from rredcot_plugin.credit.penalties import owed_by, with_penalties
from rredcot_plugin.credit.redistribution import segment_rewards, sum_per_segment
from rredcot_plugin.credit.shaping import shape
from rredcot_plugin.credit.turn_rewards import TurnRewards, known_to_baselines, terms
from rredcot_plugin.groups import Outcomes, group_stats
from rredcot_plugin.scaled import finished, scaled_advantages
from rredcot_plugin.segmenters.lookahead import LookaheadWatch
from rredcot_plugin.state_numbers import StateNumbers
from rredcot_plugin.state_values import has_groups_mean, step_values
from rredcot_plugin.types import Credit, Rollouts, Segments, check_partition
from rredcot_plugin.values.base import Probed
from rredcot_plugin.values.calibration import OutcomeCalibrator

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def assign_credit(
    rollouts: Rollouts,
    config: RRedCoTConfig | None = None,
    *,
    segments: Segments | None = None,
    coarse: Segments | None = None,
    values: Float[Tensor, "B S"] | None = None,
    probed: Probed | Mapping[str, Probed] | None = None,
    calibrator: OutcomeCalibrator | None = None,
    states: StateNumbers | None = None,
) -> Credit:
    """Redistribute each outcome over the segments of its trace and return token advantages.

    δ_i = V̂_{i+1} − V̂_i, r = δ with V̂_0 on the first segment (so Σ r = R), Â_k = Σ λ^l δ_{k+l}, measured from the
    baseline and scaled as GRPO scales. ``segmenter: none`` gives verl's GRPO exactly, unless ``baseline`` has a number
    per token. Penalties (KL in the reward) join the δ of their own segment, as do rewards before the last token with
    ``turn_rewards: keep``. A rollout whose outcome is not finite earns nothing and counts for nobody.

    Args:
        rollouts: the batch; rows may stand in any order, groups are found by ``group_ids``.
        config: the options; None for the defaults.
        segments: a partition to use instead of the configured segmenter's.
        coarse: the segments that these are parts of, for ``lam_coarse``.
        values: V̂ of every state, taken as they are (no prior, no calibration): of all that is still to come, rewards on
            the way included, so that ``lam`` is theirs too. Measured from, unless ``config.baseline`` names a baseline.
        probed: log-probs of the proposals at the boundaries, from which the estimator makes values; a mapping from what was
            proposed (``ValueEstimator.proposes``) where estimators are mixed. Without any, a boundary has its group's mean.
        calibrator: keeps the fit of past steps; None calibrates on this batch alone.
        states: what else is read of tokens and signals (``state_numbers``): with ``segments`` too, rollouts need neither.

    Raises:
        ValueError: numbers that are not finite or do not fit, segments that are not a partition, or missing signals.
    """
    config, states = _options(config), states or StateNumbers()
    segments, coarse, report = _segmented(rollouts, config, segments, coarse, states)
    rollouts, penalties, outcomes, earned, way = _earned(rollouts, config, segments)
    past = config.build_calibrator() if calibrator is None else calibrator
    found = step_values(rollouts, config, segments, outcomes, values, probed, past, states.prefixes, way)
    report |= {"rredcot/fallback/nonfinite_reward/mean": metric.share(~outcomes.finite)} | found.notes
    values = torch.where(segments.exists & outcomes.finite[:, None], found.values, 0.0)
    whole = found.given or config.has_critic
    known = known_to_baselines(way, segments.num_segments, config.lam if whole else config.lam_on_the_way)
    evidence = Evidence(rollouts, segments, outcomes, values, found.fit, states.gradient_norm_proxy, *known)
    baseline, evidence, baselines, apart, to_come = _measuring(config, evidence, penalties, found.given, whole)
    deltas, of_shapers = shape(config.build_shapers(), values, segments, outcomes, rollouts.group_ids)
    of_values = isinstance(baseline, ValueBaseline)
    paid, in_values, in_baselines = terms(way, values, segments.num_segments, whole=whole, of_values=of_values)
    gae_of = functools.partial(_gae, config, (segments, coarse), outcomes.finite, whole=whole)
    gae, owed = gae_of(deltas + penalties, paid), gae_of(owed_by(apart, to_come, segments.num_segments))
    deltas, values = deltas + penalties + paid, values + in_values
    rewards = segment_rewards(deltas, values)
    later = luck_of_later(config.credit_weight, evidence, way if whole else None)
    rest = gae - gae_of(apart) + (in_values - in_baselines) - later
    measured = (baseline, baselines, deltas, rest, owed)
    per_segment, tokens, baselines = scaled_advantages(config, evidence, earned, *measured)
    baselines = baselines + in_baselines + to_come
    report |= found.fit.remember() | of_shapers
    advantages, returns = finished(config, segments, tokens, gae + values, found.values, earned)
    report |= metric.credit_metrics(segments, values, deltas, rewards, earned.total, per_segment, baselines)
    return Credit(advantages, returns, segments, values, rewards, deltas, report, baselines)


def _options(config: RRedCoTConfig | None) -> RRedCoTConfig:
    if config is not None and not isinstance(config, RRedCoTConfig):
        raise ValueError(
            f"config: expected RRedCoTConfig, which RRedCoTConfig.from_mapping makes of a mapping, got {config!r}"
        )
    return config or RRedCoTConfig()


def _segmented(
    rollouts: Rollouts,
    config: RRedCoTConfig,
    segments: Segments | None,
    coarse: Segments | None,
    states: StateNumbers,
) -> tuple[Segments, Segments | None, dict[str, float]]:
    """Segments and the coarse ones, as given or by the configured segmenter; whether its boundaries look ahead. Checked, and
    ``states`` with them."""
    notes = {}
    if segments is None:
        if rollouts.token_ids is None:
            raise ValueError("token_ids: there are no tokens to segment; give Rollouts.token_ids, or segments=")
        levels = config.build_levels(rollouts)
        coarse, segments = levels[0], levels[-1]
        looks_ahead = LookaheadWatch(config.build_segmenter())(rollouts) is not None
        notes = {"rredcot/segments/inexact/mean": float(looks_ahead)}
    check_partition(segments, rollouts.response_mask)
    states.check(segments)
    return segments, coarse, notes


def _earned(
    rollouts: Rollouts, config: RRedCoTConfig, segments: Segments
) -> tuple[Rollouts, torch.Tensor, Outcomes, Outcomes, TurnRewards | None]:
    """The rollouts without rewards on the way that stay where they are; penalties of each segment; what is left to
    redistribute; all that was earned; and those rewards, None where there are none."""
    penalties, earned = _outcomes(rollouts, segments)
    if not config.keeps_turn_rewards or has_groups_mean(config, segments):
        return rollouts, penalties, earned, earned, None
    rest, way = TurnRewards.taken_from(rollouts, segments, earned)
    return rest, penalties, earned if way is None else _outcomes(rest, segments)[1], earned, way


def _outcomes(rollouts: Rollouts, segments: Segments) -> tuple[torch.Tensor, Outcomes]:
    """Penalties of each segment (B, S), and what is left to redistribute."""
    total = rollouts.outcomes
    finite = torch.isfinite(total)
    total = torch.where(finite, total, 0.0)
    penalties = total.new_zeros(segments.exists.shape)
    if rollouts.penalties is not None:
        penalties = torch.where(finite[:, None], sum_per_segment(rollouts.penalties, segments), 0.0)
    score = total if rollouts.penalties is None else torch.where(finite, rollouts.scores, 0.0)
    size = torch.where(rollouts.response_mask & finite[:, None], rollouts.rewards.float(), 0.0).abs().sum(dim=1)
    return penalties, Outcomes(total, score, finite, group_stats(total, rollouts.group_ids, finite), size)


def _gae(
    config: RRedCoTConfig,
    levels: tuple[Segments, Segments | None],
    finite: torch.Tensor,
    deltas: torch.Tensor,
    paid: torch.Tensor | None = None,
    *,
    whole: bool,
) -> torch.Tensor:
    """Â before scaling, over the segments and the coarse ones, 0 in rows that are not ``finite``. Rewards on the way may have
    a λ of their own, unless values are of them too (``whole``)."""
    own = None
    if paid is not None and (config.lam_turn_rewards is None or whole):
        deltas = deltas + paid
    elif paid is not None:
        own = segment_gae(paid, levels[0].num_segments, config.lam_on_the_way)
    found = gae_over(deltas, *levels, config.lam, config.lam_coarse)
    return torch.where(finite[:, None], found if own is None else own + found, 0.0)


def _measuring(
    config: RRedCoTConfig, evidence: Evidence, penalties: torch.Tensor, given: bool, whole: bool
) -> tuple[Any, Evidence, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The baseline, the evidence that it saw, what it returns, the penalties that are kept apart, and those to come that are to
    be added to the baseline: none where they are in values of all that is to come, in GRPO's mean, or counted by a baseline per
    token."""
    baseline = _baseline(config, evidence, given=given)
    of_values, none = isinstance(baseline, ValueBaseline), torch.zeros_like(penalties)
    counted = is_per_token(baseline) or has_groups_mean(config, evidence.segments)
    if counted or (whole and of_values):
        return baseline, evidence, _baselines(baseline, evidence), none, none
    evidence, to_come = with_penalties(evidence, penalties)
    return baseline, evidence, _baselines(baseline, evidence), penalties, to_come


def _baseline(config: RRedCoTConfig, evidence: Evidence, *, given: bool) -> Any:
    """The configured baseline; GRPO's mean where a trace is one segment by configuration."""
    log_probs = evidence.rollouts.log_probs is not None or evidence.gradient_norm_proxy is not None
    baseline = config.build_baseline(log_probs=log_probs, given=given)
    grpo = evidence.segments.max_segments == 1 and measures_from_groups_mean(config, baseline)
    return ValueBaseline() if grpo else baseline


def _baselines(baseline: Any, evidence: Evidence) -> torch.Tensor:
    """What the baseline returns, (B, S) or (B, T), checked; 0 in the padding, on masked tokens and in rows without a
    finite reward."""
    found, segments, name = baseline(evidence), evidence.segments, type(baseline).__name__
    real = evidence.rollouts.response_mask if is_per_token(baseline) else segments.exists
    real = real & evidence.outcomes.finite[:, None]
    check_shape(f"baselines of {name}", found, real.shape)
    check_finite(f"baselines of {name}", found, real)
    return torch.where(real, found, 0.0)
