"""``error_penalty``: in a trace that fared worse than its group, steps that lost value lose more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rredcot_plugin.groups import GroupStats
from rredcot_plugin.registry import check_number, register_shaper
from rredcot_plugin.types import Segments

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


@register_shaper("error_penalty")
@dataclass(frozen=True)
class ErrorPenalty:
    """Where R is below the group's mean, negative δ are multiplied by 1 + beta and the gains grow to match.

    With P the gains and N the losses of the trace, gains are multiplied by (P + beta·N) / P, which keeps P − N. A
    trace without gains has nothing to balance with and stays as it is. Source: docs/reference/math.md, "shapers".

    Raises:
        ValueError: a negative beta.
    """

    beta: float = 0.5

    def __post_init__(self) -> None:
        check_number("beta", self.beta, 0.0)

    def __call__(
        self, deltas: Float[Tensor, "B S"], segments: Segments, outcome: Float[Tensor, " B"], stats: GroupStats
    ) -> Float[Tensor, "B S"]:
        gains, losses = deltas.clamp(min=0), (-deltas).clamp(min=0)
        gained, lost = gains.sum(dim=1), losses.sum(dim=1)
        applies = (outcome < stats.mean) & (gained > 1e-6)
        more = torch.where(applies, (gained + self.beta * lost) / gained.clamp(min=1e-6), 1.0)
        worse = torch.where(applies, 1 + self.beta, 1.0)
        return gains * more[:, None] - losses * worse[:, None]
