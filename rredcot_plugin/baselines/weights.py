"""How much a segment weighs in a baseline of least variance, and weighted means over the other rollouts of a group."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from rredcot_plugin.credit.redistribution import sum_per_segment
from rredcot_plugin.groups import GroupStats
from rredcot_plugin.types import Rollouts, Segments, by_rows

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

FLOOR = 0.01
"""Added to the proxy of a segment unless ``floor`` says otherwise, so that a segment of certain tokens still counts."""

PSEUDO = 4.0
"""Rollouts from other groups that join a weighted mean, unless ``pseudo_rollouts`` says otherwise."""

TINY = 1e-12
"""Of a sum of weights: below it there are none."""


def gradient_norm_proxy(rollouts: Rollouts, segments: Segments) -> Float[Tensor, "B S"]:
    """Σ_t (1 − π(o_t))² of each segment; 0 in the padding.

    A stand-in for ‖∇ log π(segment)‖²: (1 − π)² is the squared length of the softmax's own gradient at the chosen
    tokens, up to a factor of 2 at most.

    Raises:
        ValueError: rollouts without log-probs.
    """
    if rollouts.log_probs is None:
        raise ValueError(
            "log_probs: baseline=least_variance and trace weigh segments by them, but the rollouts have none; give "
            "Rollouts.log_probs, or use baseline=value"
        )
    square = by_rows(lambda log_probs: (1 - log_probs.float().exp()).square(), rollouts.log_probs)
    return sum_per_segment(square, segments)


def check_weighing(floor: float, pseudo_rollouts: float) -> None:
    """Both options of a baseline that weighs by gradient length.

    Raises:
        ValueError: a floor that is not above 0, or fewer than 0 rollouts; either is not a finite number.
    """
    if not _is_number(floor) or floor <= 0:
        raise ValueError(f"floor={floor!r}: expected a number above 0, such as {FLOOR}")
    if not _is_number(pseudo_rollouts) or pseudo_rollouts < 0:
        raise ValueError(f"pseudo_rollouts={pseudo_rollouts!r}: expected a number from 0, such as {PSEUDO:g}")


def _is_number(given: object) -> bool:
    return isinstance(given, int | float) and math.isfinite(given)


def weighted_others_mean(
    outcomes: Float[Tensor, " B"],
    weight: Float[Tensor, " B"],
    stats: GroupStats,
    valid: Bool[Tensor, " B"],
    pseudo_rollouts: float = PSEUDO,
) -> Float[Tensor, " B"]:
    """Σ w_j R_j / Σ w_j over the *other* rollouts of the group, and ``pseudo_rollouts`` more that are like those of all
    other groups: in a group of 8 most of the weight may stand on one rollout. Rows not ``valid`` count for nobody; 0
    where nobody else is."""
    weight = torch.where(valid, weight, 0.0).double()
    rewarded = weight * torch.where(valid, outcomes, 0.0).double()
    groups = int(stats.index.max()) + 1 if stats.index.numel() else 0

    def per_group(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(groups, dtype=x.dtype, device=x.device).index_add_(0, stats.index, x)[stats.index]

    number = (valid.sum() - stats.count).clamp(min=1)
    total = per_group(weight) - weight + pseudo_rollouts * (weight.sum() - per_group(weight)) / number
    mean = per_group(rewarded) - rewarded + pseudo_rollouts * (rewarded.sum() - per_group(rewarded)) / number
    return torch.where(total > 0, mean / total.clamp(min=TINY), 0.0).float()
