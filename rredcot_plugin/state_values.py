"""V̂ of every state of a step: as given, or from the prior, the estimator and calibration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import torch

from rredcot_plugin.checks import check_finite, check_shape
from rredcot_plugin.choices import has_groups_mean
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.credit import metrics as metric
from rredcot_plugin.credit.advantages import segment_gae
from rredcot_plugin.earned import Earned
from rredcot_plugin.groups import group_stats
from rredcot_plugin.types import Segments
from rredcot_plugin.values.base import Probed, calibrates, estimate, proposal_limits
from rredcot_plugin.values.calibration import OutcomeCalibrator
from rredcot_plugin.values.fit import StepFit
from rredcot_plugin.values.prefix_numbers import PrefixNumbers


@dataclass(frozen=True)
class StepValues:
    """V̂ (B, S) of every state, the fit that may have made them, and metrics. ``given``: they were not estimated."""

    values: torch.Tensor
    fit: StepFit
    notes: dict[str, float] = field(default_factory=dict)
    given: bool = False


def step_values(
    earned: Earned,
    config: RRedCoTConfig,
    segments: Segments,
    given: torch.Tensor | None,
    probed: Probed | Mapping[str, Probed] | None,
    calibrator: OutcomeCalibrator,
    prefixes: PrefixNumbers | None,
) -> StepValues:
    """V̂ of every state: as given; else the prior at the prompt and the estimator's after it, the prior where it has
    nothing to say, calibrated. A critic's are of rewards on the way too, and so is what its metrics compare them with."""
    rollouts, outcomes = earned.rollouts, earned.outcomes
    stats, finite = outcomes.stats, outcomes.finite
    fit = partial(
        StepFit, rollouts, segments, outcomes=outcomes, calibrator=calibrator, prefixes=prefixes
    )  # of raw values
    if given is not None:
        check_shape("values", given, (rollouts.batch_size, segments.max_segments))
        check_finite("values", given, segments.exists)
        return StepValues(given.float(), fit(given.float()), given=True)
    if has_groups_mean(config, segments):
        return StepValues(stats.mean[:, None], fit(stats.mean[:, None]))
    if rollouts.penalties is not None:  # values are of the score
        stats = group_stats(outcomes.score, rollouts.group_ids, finite)
    prior = stats.others_mean if config.leave_one_out else stats.mean
    estimator = config.build_value_estimator()
    evidence = _by_proposal(probed, estimator, segments, calibrator.lowest)
    found = estimate(estimator, evidence, clip=config.clip, rollouts=rollouts, segments=segments)
    after_prompt = (segments.exists & found.known[:, None])[:, 1:]
    check_finite(f"values of {type(estimator).__name__}", found.values[:, 1:], after_prompt)
    raw = torch.where(found.at_states() & torch.isfinite(found.values), found.values, prior[:, None])
    values, step_fit = raw, fit(raw)
    notes = {"rredcot/fallback/group_mean/mean": metric.share(~found.known)}
    if config.calibrate != "none" and calibrates(estimator):
        values, of_fit = step_fit.values(prior)
        notes |= of_fit
    if config.prior_from_group:
        values = torch.cat([prior[:, None], values[:, 1:]], dim=1)
    followed = outcomes.score[:, None].expand_as(values)
    if earned.way is not None and config.has_critic:
        followed = followed + segment_gae(earned.way.paid, segments.num_segments, 1.0)
    notes |= metric.calibration_metrics(values, followed, segments, finite)
    exists = segments.exists[:, 1:] & found.known[:, None]
    return StepValues(values, step_fit, notes | metric.mean_and_extremes("rredcot/value/raw", raw[:, 1:][exists]))


def _by_proposal(
    probed: Probed | Mapping[str, Probed] | None, estimator: object, segments: Segments, lowest: float | None
) -> Mapping[str, Probed]:
    """The probes by what was proposed, their shapes checked, with the ``lowest`` reward of past steps."""
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
    return {name: dataclasses.replace(found, lowest=lowest) for name, found in (probed or {}).items()}
