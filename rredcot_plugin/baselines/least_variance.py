"""``baseline: least_variance``: the baseline that leaves the gradient the least variance, which is not the value."""

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


@register_baseline("least_variance")
@dataclass(frozen=True)
class LeastVarianceBaseline:
    """Outcomes regressed on what is known of a state, weighted by the gradient length of the segment that follows.

    At λ = 1 a state's baseline b adds (R − b)·∇ log π(segment) to the gradient. Its variance is least not at b = E[R]
    but at b = E[R·‖∇ log π‖²] / E[‖∇ log π‖²]: where what the actor finds improbable mostly fails, that lies below V.
    Any function of the state and of other rollouts leaves the expectation alone (Weaver and Tao, "The optimal reward
    baseline for gradient-based reinforcement learning", 2001), so at λ < 1 too it takes V̂'s place as what Â is
    measured from. ``gradient_norm_proxy`` + ``floor`` stands in for ‖∇ log π‖². The baseline of the first segment is the
    mean of the other rollouts, weighted in the same way, and of ``pseudo_rollouts`` more like those of other groups.

    Raises:
        ValueError: ``floor`` or ``pseudo_rollouts`` out of range.
    """

    floor: float = FLOOR
    pseudo_rollouts: float = PSEUDO

    def __post_init__(self) -> None:
        check_weighing(self.floor, self.pseudo_rollouts)

    def __call__(self, evidence: Evidence) -> Float[Tensor, "B S"]:
        outcomes, weight = evidence.outcomes, evidence.state_weight() + self.floor
        nothing = torch.zeros_like(evidence.values)
        paid = nothing if evidence.paid is None else evidence.paid
        expected = nothing if evidence.expected is None else evidence.expected

        def others_mean(total: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
            return weighted_others_mean(total, weight[:, 0], outcomes.stats, outcomes.finite, self.pseudo_rollouts)

        of_outcome = others_mean(outcomes.total)[:, None] + expected
        fitted = evidence.fit.baselines(weight, of_outcome, paid)
        first = others_mean(outcomes.total + paid[:, 0])
        return torch.cat([first[:, None], fitted[:, 1:]], dim=1) - expected
