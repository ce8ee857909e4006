"""``confidence``: how sure the model was so far. No probe, no model call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from rredcot_plugin.registry import register_value_estimator
from rredcot_plugin.types import Rollouts, Segments
from rredcot_plugin.values.base import NO_PROBES, Estimate, Probed
from rredcot_plugin.values.prefix_numbers import exclusive_sum


@register_value_estimator("confidence")
@dataclass(frozen=True)
class ConfidenceEstimator:
    """Geometric mean probability of the tokens so far; zero extra tokens, meant to be calibrated.

    V̂_i = exp(mean log-prob of the unmasked tokens before segment i), in (0, 1], 1 at the prompt. With
    ``calibrate: outcome`` the fit sees running log-probs anyway; this is the estimator without probes.
    Source: docs/reference/math.md (``confidence``). Rollouts without log-probs have no values.
    """

    proposes: ClassVar[str] = NO_PROBES
    max_proposals: ClassVar[int] = 1

    def __call__(
        self, probed: Probed | None, *, rollouts: Rollouts, segments: Segments, clip: float | None = None, **_: Any
    ) -> Estimate:
        B, S = segments.exists.shape
        if rollouts.log_probs is None:
            return Estimate(torch.zeros(B, S), torch.zeros(B, dtype=torch.bool))
        real = rollouts.response_mask
        summed = exclusive_sum(torch.where(real, rollouts.log_probs.float(), 0.0), segments.starts)
        tokens = exclusive_sum(real.float(), segments.starts)
        values = (summed / tokens.clamp(min=1)).exp()
        return Estimate(values if clip is None else values.clamp(max=clip), segments.num_segments > 0)
