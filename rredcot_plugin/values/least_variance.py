"""``baseline: least_variance``: the baseline that leaves the gradient the least variance, which is not the value.

At λ = 1 a state's baseline b adds (R − b)·∇ log π(segment) to the gradient. Its variance is least not at
b = E[R] but at b = E[R·‖∇ log π‖²] / E[‖∇ log π‖²]: where what the actor finds improbable mostly fails, that lies below V.
Any function of the state and of other rollouts leaves the expectation alone (Weaver and Tao, "The optimal reward
baseline for gradient-based reinforcement learning", 2001), so at λ < 1 too it takes V̂'s place as what Â is measured
from. ‖∇ log π‖² is stood in for by Σ_t (1 − π(o_t))² over the segment behind the state, the squared length of the
softmax's own gradient at the chosen tokens, up to a factor of 2 at most.

``baseline: auto``, the default, takes it where λ = 1 and the estimator calibrates. ``baseline: trace`` has the same of the prompt
alone, weighed by whole traces: one number a trace, without a fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rredcot_plugin.groups import GroupStats
from rredcot_plugin.redistribution import sum_per_segment
from rredcot_plugin.types import Rollouts, Segments, by_rows

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

FLOOR = 0.01
"""Added to the stand-in, so that a segment of sure tokens still counts."""

PSEUDO = 4.0
"""Rollouts from other groups that join a weighted mean."""


def surprise(rollouts: Rollouts, segments: Segments) -> Float[Tensor, "B S"]:
    """``FLOOR`` + Σ_t (1 − π(o_t))² of each segment; ``FLOOR`` in the padding.

    Raises:
        ValueError: rollouts without log-probs.
    """
    if rollouts.log_probs is None:
        raise ValueError(
            "log_probs: baseline=least_variance and trace weigh segments by them, and the rollouts have none"
        )
    square = by_rows(lambda log_probs: (1 - log_probs.float().exp()).square(), rollouts.log_probs)
    return sum_per_segment(square, segments) + FLOOR


def trace_baseline(
    importance: Float[Tensor, "B S"],
    segments: Segments,
    outcomes: Float[Tensor, " B"],
    stats: GroupStats,
    valid: Tensor,
) -> Float[Tensor, "B S"]:
    """The mean outcome of the group's other rollouts, each weighed by the ``surprise`` of the whole trace, at every state;
    ``importance`` is that of its segments."""
    weight = torch.where(segments.exists, importance, 0.0).sum(1)
    return weighted_others_mean(outcomes, weight, stats, valid)[:, None].expand(segments.exists.shape)


def weighted_others_mean(
    outcomes: Float[Tensor, " B"], weight: Float[Tensor, " B"], stats: GroupStats, valid: Tensor
) -> Float[Tensor, " B"]:
    """Σ w_j R_j / Σ w_j over the *other* rollouts of the group, and ``PSEUDO`` more that are like those of all other
    groups: in a group of 8 most of the weight may stand on one rollout. Rows not ``valid`` count for nobody; 0
    where nobody else is."""
    weight = torch.where(valid, weight, 0.0).double()
    rewarded = weight * torch.where(valid, outcomes, 0.0).double()
    groups = int(stats.index.max()) + 1 if stats.index.numel() else 0

    def per_group(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(groups, dtype=x.dtype, device=x.device).index_add_(0, stats.index, x)[stats.index]

    number = (valid.sum() - stats.count).clamp(min=1)
    total = per_group(weight) - weight + PSEUDO * (weight.sum() - per_group(weight)) / number
    mean = per_group(rewarded) - rewarded + PSEUDO * (rewarded.sum() - per_group(rewarded)) / number
    return torch.where(total > 0, mean / total.clamp(min=FLOOR**2), 0.0).float()
