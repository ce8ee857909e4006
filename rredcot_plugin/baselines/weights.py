"""How much a segment weighs in a baseline of least variance, and weighted means over the other rollouts of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rredcot_plugin.credit.redistribution import sum_per_segment
from rredcot_plugin.groups import GroupStats
from rredcot_plugin.types import Rollouts, Segments, by_rows

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

FLOOR = 0.01
"""Added to the proxy of a segment, so that a segment of certain tokens still counts."""

PSEUDO = 4.0
"""Rollouts from other groups that join a weighted mean."""


def gradient_norm_proxy(rollouts: Rollouts, segments: Segments) -> Float[Tensor, "B S"]:
    """``FLOOR`` + Σ_t (1 − π(o_t))² of each segment; ``FLOOR`` in the padding.

    A stand-in for ‖∇ log π(segment)‖²: (1 − π)² is the squared length of the softmax's own gradient at the chosen
    tokens, up to a factor of 2 at most.

    Raises:
        ValueError: rollouts without log-probs.
    """
    if rollouts.log_probs is None:
        raise ValueError(
            "log_probs: baseline=least_variance and trace weigh segments by them, and the rollouts have none; give "
            "Rollouts.log_probs, or take baseline=value"
        )
    square = by_rows(lambda log_probs: (1 - log_probs.float().exp()).square(), rollouts.log_probs)
    return sum_per_segment(square, segments) + FLOOR


def weighted_others_mean(
    outcomes: Float[Tensor, " B"], weight: Float[Tensor, " B"], stats: GroupStats, valid: Bool[Tensor, " B"]
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
