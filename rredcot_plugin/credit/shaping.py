"""δ after the configured shapers, with what they change of a trace's sum put right."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import torch

from rredcot_plugin.checks import check_finite, check_shape
from rredcot_plugin.credit.redistribution import redistribute
from rredcot_plugin.groups import Outcomes, group_stats
from rredcot_plugin.types import Segments

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

RESIDUAL = "rredcot/credit/shaping_residual/max"


def shape(
    shapers: Sequence[Callable[..., Tensor]],
    values: Float[Tensor, "B S"],
    segments: Segments,
    outcomes: Outcomes,
    group_ids: Sequence[Hashable],
) -> tuple[Float[Tensor, "B S"], dict[str, float]]:
    """δ of the values after all shapers, which see scores and their groups' statistics, as values do. What one changed of a
    trace's sum goes to the answer segment, and into a metric.

    Raises:
        ValueError: a shaper's δ of another shape, or not finite.
    """
    notes: dict[str, float] = {}
    deltas = redistribute(values, outcomes.score, segments.num_segments)
    last = (segments.num_segments - 1).clamp(min=0)[:, None]
    stats = group_stats(outcomes.score, group_ids, outcomes.finite) if shapers else None
    for shaper in shapers:
        shaped = shaper(deltas, segments, outcomes.score, stats)
        check_shape(f"deltas of shaper {type(shaper).__name__}", shaped, deltas.shape)
        check_finite(f"deltas of shaper {type(shaper).__name__}", shaped, segments.exists)
        shaped = torch.where(segments.exists, shaped, 0.0)
        missing = torch.where(segments.num_segments > 0, deltas.sum(dim=1) - shaped.sum(dim=1), 0.0)
        deltas = shaped.scatter_add(1, last, missing[:, None])
        notes[RESIDUAL] = max([notes.get(RESIDUAL, 0.0), *missing.abs().tolist()])
    return deltas, notes
