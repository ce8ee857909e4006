"""``smoothing``: neighbouring segments share their credit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rredcot_plugin.groups import GroupStats
from rredcot_plugin.registry import check_count, check_number, register_shaper
from rredcot_plugin.types import Segments

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


@register_shaper("smoothing")
@dataclass(frozen=True)
class Smoothing:
    """Each segment hands the share ``weight`` of its δ to either neighbour, ``sweeps`` times.

    A segment without a neighbour on one side keeps that share, so the sum stays. Source: docs/reference/math.md,
    "shapers" (a symmetric kernel over neighbouring segments).

    Raises:
        ValueError: a weight outside [0, 0.5], or fewer than one sweep.
    """

    weight: float = 0.25
    sweeps: int = 1

    def __post_init__(self) -> None:
        check_number("weight", self.weight, 0.0, 0.5)
        check_count("sweeps", self.sweeps)

    def __call__(
        self, deltas: Float[Tensor, "B S"], segments: Segments, outcome: Float[Tensor, " B"], stats: GroupStats
    ) -> Float[Tensor, "B S"]:
        exists = segments.exists
        both = exists[:, 1:] & exists[:, :-1]
        for _ in range(self.sweeps):
            forward = torch.where(both, self.weight * deltas[:, :-1], 0.0)
            backward = torch.where(both, self.weight * deltas[:, 1:], 0.0)
            deltas = deltas + _pad(backward - forward, right=1) + _pad(forward - backward, left=1)
        return deltas


def _pad(x: torch.Tensor, left: int = 0, right: int = 0) -> torch.Tensor:
    return torch.nn.functional.pad(x, (left, right))
