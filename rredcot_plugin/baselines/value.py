"""``baseline: value``: V̂ of the state before a segment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rredcot_plugin.baselines.base import Evidence
from rredcot_plugin.registry import register_baseline

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


@register_baseline("value")
@dataclass(frozen=True)
class ValueBaseline:
    """V̂ of the state before the segment."""

    def __call__(self, evidence: Evidence) -> Float[Tensor, "B S"]:
        return evidence.values
