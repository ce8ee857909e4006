"""What rollouts earned, by how it is credited: redistributed over all segments, or left on its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rredcot_plugin.choices import has_groups_mean
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.credit.redistribution import sum_per_segment
from rredcot_plugin.credit.turn_rewards import TurnRewards
from rredcot_plugin.groups import Outcomes, group_stats
from rredcot_plugin.types import Rollouts, Segments

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


@dataclass(frozen=True)
class Earned:
    """The rewards of a batch in three parts.

    ``penalties`` stay on their own segments, and so do rewards on the ``way``: None where there are none, or where they are
    redistributed with the rest. ``rollouts`` are without rewards on the way; the score of their ``outcomes`` is redistributed.
    ``everything`` holds the outcomes with all rewards.
    """

    rollouts: Rollouts
    outcomes: Outcomes
    everything: Outcomes
    penalties: Float[Tensor, "B S"]
    way: TurnRewards | None

    @property
    def finite(self) -> Bool[Tensor, " B"]:
        """Which rollouts have a finite outcome."""
        return self.everything.finite

    @classmethod
    def by(cls, rollouts: Rollouts, config: RRedCoTConfig, segments: Segments) -> Earned:
        """The parts, as ``turn_rewards`` says; GRPO's mean is of the whole sum, so ``segmenter: none`` leaves it whole."""
        everything = _outcomes(rollouts)
        penalties = everything.total.new_zeros(segments.exists.shape)
        if rollouts.penalties is not None:
            of_segments = sum_per_segment(rollouts.penalties, segments)
            penalties = torch.where(everything.finite[:, None], of_segments, 0.0)
        if not config.keeps_turn_rewards or has_groups_mean(config, segments):
            return cls(rollouts, everything, everything, penalties, None)
        rest, way = TurnRewards.taken_from(rollouts, segments, everything)
        return cls(rest, everything if way is None else _outcomes(rest), everything, penalties, way)


def _outcomes(rollouts: Rollouts) -> Outcomes:
    total = rollouts.outcomes
    finite = torch.isfinite(total)
    total = torch.where(finite, total, 0.0)
    score = total if rollouts.penalties is None else torch.where(finite, rollouts.scores, 0.0)
    size = torch.where(rollouts.response_mask & finite[:, None], rollouts.rewards.float(), 0.0).abs().sum(dim=1)
    return Outcomes(total, score, finite, group_stats(total, rollouts.group_ids, finite), size)
