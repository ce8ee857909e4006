"""``contribution``: more to the segments that changed much, less to those that changed little."""

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


@register_shaper("contribution")
@dataclass(frozen=True)
class Contribution:
    """Weight each δ by |δ|^power, gains and losses of a trace separately; their two sums stay.

    δ_k > 0 becomes P·δ_k^(1+p) / Σ_{δ>0} δ^(1+p) with P the sum of the gains; losses alike. power 0 changes
    nothing, a large one leaves the largest gain and the largest loss. Source: docs/reference/math.md, "shapers";
    keeping the two sums apart is our reading, since a common factor is undefined where they cancel.

    Raises:
        ValueError: a negative power.
    """

    power: float = 1.0

    def __post_init__(self) -> None:
        check_number("power", self.power, 0.0)

    def __call__(
        self, deltas: Float[Tensor, "B S"], segments: Segments, outcome: Float[Tensor, " B"], stats: GroupStats
    ) -> Float[Tensor, "B S"]:
        gains, losses = deltas.clamp(min=0), (-deltas).clamp(min=0)
        return _sharpened(gains, self.power) - _sharpened(losses, self.power)


def _sharpened(amounts: torch.Tensor, power: float) -> torch.Tensor:
    """Amounts ≥ 0 to the power 1 + p, with the row's sum as before."""
    largest = amounts.amax(dim=1, keepdim=True).clamp(min=torch.finfo(amounts.dtype).tiny)
    weight = (amounts / largest) ** (1 + power)
    total = weight.sum(dim=1, keepdim=True)
    return torch.where(total > 0, weight / total.clamp(min=1e-12), 0.0) * amounts.sum(dim=1, keepdim=True)
