"""Baselines that weigh by the length of the gradient, and so are not values.

At λ = 1 a state's baseline b adds (R − b)·∇ log π(segment). Its variance is least not at E[R] but at
E[R·‖∇ log π‖²] / E[‖∇ log π‖²]: where what is improbable is mostly wrong, that lies below V. Any function of the state and of
other rollouts keeps the gradient unbiased (Weaver and Tao, "The optimal reward baseline", 2001). ‖∇ log π‖² is stood in
for by Σ_t (1 − π(o_t))², which the log-probs of the step give.
"""

from __future__ import annotations

import dataclasses

import torch

from rredcot_plugin.groups import GroupStats
from rredcot_plugin.redistribution import sum_per_segment
from rredcot_plugin.types import Rollouts, Segments
from rredcot_plugin.values.calibration import LabelledStates, OutcomeCalibrator

FLOOR = 0.01
"""Added to the stand-in, so that a segment of sure tokens still counts."""

PSEUDO = 4.0
"""Rollouts from other groups that join a weighted mean."""


def surprise(rollouts: Rollouts, segments: Segments) -> torch.Tensor:
    """Σ_t (1 − π(o_t))² of each segment (B, S), 0 in the padding."""
    assert rollouts.log_probs is not None
    return sum_per_segment(
        torch.where(rollouts.response_mask, (1 - rollouts.log_probs.exp()).square(), 0.0), segments
    )


class NormWeighted(OutcomeCalibrator):
    """The package's fit, a state counting by the surprise of the segment that follows it.

    ``importance`` (M,) is set before every call, in the order of the states; its mean becomes 1, so that the
    regularisation keeps its strength.
    """

    importance: torch.Tensor

    def calibrate(self, states: LabelledStates, fold: torch.Tensor) -> torch.Tensor | None:
        weight = self.importance + FLOOR
        weight = states.weight * (weight / weight.mean())
        return super().calibrate(dataclasses.replace(states, weight=weight), fold)

    def prepare(self, rollouts: Rollouts, segments: Segments) -> None:
        behind_prompt = segments.exists.clone()
        behind_prompt[:, :1] = False
        self.importance = surprise(rollouts, segments)[behind_prompt].double()


def weighted_others_mean(outcomes: torch.Tensor, weight: torch.Tensor, stats: GroupStats) -> torch.Tensor:
    """Σ w_j R_j / Σ w_j over the other rollouts of the group (B,), and ``PSEUDO`` more that are like those of all
    other groups: in a group of 8 most of the weight may stand on one rollout."""
    weight = weight + FLOOR
    groups = int(stats.index.max()) + 1

    def others(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(groups).index_add_(0, stats.index, x)[stats.index] - x

    def elsewhere(x: torch.Tensor) -> torch.Tensor:
        return x.sum() - torch.zeros(groups).index_add_(0, stats.index, x)[stats.index]

    number = (len(outcomes) - stats.count).clamp(min=1)
    typical, rewarded = elsewhere(weight) / number, elsewhere(weight * outcomes) / number
    return (others(weight * outcomes) + PSEUDO * rewarded) / (others(weight) + PSEUDO * typical).clamp(min=FLOOR)
