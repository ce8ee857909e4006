"""``baseline: trace``: one baseline per trace, without a fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rredcot_plugin.baselines.base import Evidence
from rredcot_plugin.baselines.weights import FLOOR, PSEUDO, check_weighing, weighted_others_mean
from rredcot_plugin.registry import register_baseline

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


@register_baseline("trace")
@dataclass(frozen=True)
class TraceBaseline:
    """One number per trace: the mean outcome of the group's other rollouts, weighted by gradient length.

    b = Σ_{j≠i} w_j R_j / Σ_{j≠i} w_j with w_j the sum of ``gradient_norm_proxy`` + ``floor`` over the segments of trace
    j; ``pseudo_rollouts`` like those of the other groups join the mean (``weighted_others_mean``).

    Raises:
        ValueError: ``floor`` or ``pseudo_rollouts`` out of range.
    """

    floor: float = FLOOR
    pseudo_rollouts: float = PSEUDO

    def __post_init__(self) -> None:
        check_weighing(self.floor, self.pseudo_rollouts)

    def __call__(self, evidence: Evidence) -> Float[Tensor, "B S"]:
        exists, outcomes = evidence.segments.exists, evidence.outcomes
        weight = torch.where(exists, evidence.state_weight() + self.floor, 0.0).sum(1)
        mean = weighted_others_mean(outcomes.total, weight, outcomes.stats, outcomes.finite, self.pseudo_rollouts)
        return mean[:, None].expand(exists.shape)
