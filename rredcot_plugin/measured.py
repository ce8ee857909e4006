"""What returns are measured from: the configured baseline, and what rewards that stay on their own segment are expected to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rredcot_plugin.baselines.base import Evidence, is_per_token
from rredcot_plugin.baselines.value import ValueBaseline
from rredcot_plugin.checks import check_finite, check_shape
from rredcot_plugin.choices import has_groups_mean, measures_from_groups_mean
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.credit.penalties import with_penalties
from rredcot_plugin.credit.turn_rewards import known_to_baselines, terms
from rredcot_plugin.earned import Earned
from rredcot_plugin.state_values import StepValues
from rredcot_plugin.types import Segments

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


@dataclass(frozen=True)
class Measured:
    """``numbers`` of a ``baseline``, (B, S), or (B, T) if it is one per token; ``evidence`` is what it saw. All others: (B, S).

    ``whole``: values are of penalties and rewards on the way, too. Penalties are ``counted`` among what the baseline is for,
    or are ``apart``, with what they are expected to be from each state on, ``to_come``; the other is 0. Rewards on the way
    add ``paid`` to δ, ``in_values`` to V̂ and ``in_baselines`` to the baseline (`turn_rewards.terms`).
    """

    baseline: Any
    evidence: Evidence
    numbers: Float[Tensor, "B S"] | Float[Tensor, "B T"]
    whole: bool
    counted: Float[Tensor, "B S"]
    apart: Float[Tensor, "B S"]
    to_come: Float[Tensor, "B S"]
    paid: Float[Tensor, "B S"]
    in_values: Float[Tensor, "B S"]
    in_baselines: Float[Tensor, "B S"]

    @classmethod
    def by(
        cls,
        config: RRedCoTConfig,
        earned: Earned,
        segments: Segments,
        values: torch.Tensor,
        found: StepValues,
        gradient_norm_proxy: torch.Tensor | None,
    ) -> Measured:
        """By the configured baseline; ``values`` are those of ``found``, 0 where nothing was earned.

        Penalties are counted by values of all that is still to come, by GRPO's mean and by a baseline per token.

        Raises:
            ValueError: numbers of the baseline that have another shape or are not finite.
        """
        whole = found.given or config.has_critic
        known = known_to_baselines(
            earned.way, segments.num_segments, config.lam if whole else config.lam_on_the_way
        )
        evidence = Evidence(
            earned.rollouts, segments, earned.outcomes, values, found.fit, gradient_norm_proxy, *known
        )
        baseline = _baseline(config, evidence, given=found.given)
        of_values, penalties = isinstance(baseline, ValueBaseline), earned.penalties
        of_way = terms(earned.way, values, segments.num_segments, whole=whole, of_values=of_values)
        counted, apart = penalties, torch.zeros_like(penalties)
        if not (is_per_token(baseline) or has_groups_mean(config, segments) or (whole and of_values)):
            counted, apart = apart, penalties
        evidence, to_come = with_penalties(evidence, apart)
        numbers = _numbers(baseline, evidence)
        return cls(baseline, evidence, numbers, whole, counted, apart, to_come, *of_way)


def _baseline(config: RRedCoTConfig, evidence: Evidence, *, given: bool) -> Any:
    """The configured baseline; GRPO's mean where a trace is one segment by configuration."""
    log_probs = evidence.rollouts.log_probs is not None or evidence.gradient_norm_proxy is not None
    baseline = config.build_baseline(log_probs=log_probs, given=given)
    grpo = evidence.segments.max_segments == 1 and measures_from_groups_mean(config, baseline)
    return ValueBaseline() if grpo else baseline


def _numbers(baseline: Any, evidence: Evidence) -> torch.Tensor:
    """What the baseline returns, checked; 0 in the padding, on masked tokens and in rows without a finite reward."""
    found, segments, name = baseline(evidence), evidence.segments, type(baseline).__name__
    real = evidence.rollouts.response_mask if is_per_token(baseline) else segments.exists
    real = real & evidence.outcomes.finite[:, None]
    check_shape(f"baselines of {name}", found, real.shape)
    check_finite(f"baselines of {name}", found, real)
    return torch.where(real, found, 0.0)
