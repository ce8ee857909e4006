"""``none``: the whole trace is one segment, so credit assignment is verl's own GRPO."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rredcot_plugin.registry import register_segmenter
from rredcot_plugin.types import MASKED, Rollouts, Segments


@register_segmenter("none")
@dataclass(frozen=True)
class NoSegmenter:
    """K = 0: one segment per trace; the answer is not split off either."""

    def __call__(self, rollouts: Rollouts) -> Segments:
        mask = rollouts.response_mask
        return Segments(torch.where(mask, 0, MASKED), mask.any(dim=1).long())
