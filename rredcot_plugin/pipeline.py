"""The whole method on one page: rollouts in, credit out. No model is called here."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.credit import metrics as metric
from rredcot_plugin.credit.advantages import segment_gae
from rredcot_plugin.credit.hierarchy import gae_over
from rredcot_plugin.credit.later_segments import luck_of_later
from rredcot_plugin.credit.penalties import owed_by
from rredcot_plugin.credit.redistribution import segment_rewards
from rredcot_plugin.credit.shaping import shape
from rredcot_plugin.earned import Earned
from rredcot_plugin.measured import Measured
from rredcot_plugin.scaled import finished, scaled_advantages
from rredcot_plugin.segmenters.lookahead import LookaheadWatch
from rredcot_plugin.state_numbers import StateNumbers
from rredcot_plugin.state_values import step_values
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
    baseline and scaled as GRPO scales. ``segmenter: none`` gives verl's GRPO to rounding, and bit for bit where rewards
    are 0 and 1, unless ``baseline`` has a number per token. Penalties (KL in the reward) join the δ of their own segment, as do rewards before the last token with
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
    earned = Earned.by(rollouts, config, segments)
    past = config.build_calibrator() if calibrator is None else calibrator
    # V̂ of every state, δ of every segment, and what the return of every state is measured from
    found = step_values(earned, config, segments, values, probed, past, states.prefixes)
    values = torch.where(segments.exists & earned.finite[:, None], found.values, 0.0)
    deltas, of_shapers = shape(config.build_shapers(), values, segments, earned.outcomes, rollouts.group_ids)
    measured = Measured.by(config, earned, segments, values, found, states.gradient_norm_proxy)
    # Â = Σ λ^l δ, where penalties and rewards on the way stay on their own segments
    gae = functools.partial(_gae, config, (segments, coarse), earned.finite, whole=measured.whole)
    later = luck_of_later(config.credit_weight, measured.evidence, earned.way if measured.whole else None)
    unscaled = gae(deltas + measured.counted, measured.paid) + (measured.in_values - measured.in_baselines) - later
    owed = gae(owed_by(measured.apart, measured.to_come, segments.num_segments))
    deltas, values = deltas + earned.penalties + measured.paid, values + measured.in_values
    per_segment, tokens, baselines = scaled_advantages(config, measured, earned.everything, deltas, unscaled, owed)
    targets = gae(deltas) + values if config.has_critic else None
    advantages, returns = finished(config, segments, tokens, targets, found.values, earned.everything)
    rewards, total = segment_rewards(deltas, values), earned.everything.total
    report |= {"rredcot/fallback/nonfinite_reward/mean": metric.share(~earned.finite)} | found.notes
    report |= found.fit.remember() | of_shapers
    report |= metric.credit_metrics(segments, values, deltas, rewards, total, per_segment, baselines)
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
