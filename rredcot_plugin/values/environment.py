"""``environment``: what the environment itself says a state is worth. No probe, no model call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from rredcot_plugin.groups import group_stats
from rredcot_plugin.registry import register_value_estimator
from rredcot_plugin.types import LARGEST_OUTCOME, Rollouts, Segments
from rredcot_plugin.values.base import NO_PROBES, Estimate, Probed, latest_number, nothing_known

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

FIELD = "state_values"
"""Where a host finds the numbers: in verl a key of the agent loop's ``extra_fields``."""


def turn_values(mask: Bool[Tensor, "B T"], said: Sequence[Any]) -> Float[Tensor, "B T"]:
    """``token_scores["environment"]`` from ``said[b]``, a number for each turn of the model, about the state in which the turn
    begins, or a mapping from turns (0, 1, …) to such numbers: at the turn's first token, NaN elsewhere. What is not a
    number as large as an outcome may be is NaN too, turns that a list is too short for, and rows without a list; numbers
    beyond the last turn are left out.

    >>> turn_values(torch.tensor([[True, True, False, True]]), [[None, 0.5]]).tolist()
    [[nan, nan, nan, 0.5]]
    >>> turn_values(torch.tensor([[True, True, False, True]]), [{1: 0.5}]).tolist()
    [[nan, nan, nan, 0.5]]
    """
    scores = torch.full(mask.shape, torch.nan)
    row, column = turn_starts(mask).nonzero(as_tuple=True)
    for b, numbers in enumerate(said):
        at = column[row == b]
        found = torch.tensor(list(map(_number, _listed(numbers, len(at)))), dtype=torch.float32)
        scores[b, at[: len(found)]] = torch.where(found.abs() <= LARGEST_OUTCOME, found, torch.nan)
    return scores


def turn_starts(mask: Bool[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """Where the model begins to speak: at tokens of its own after one that is not, or after nothing."""
    mask = mask.cpu().bool()
    return mask & ~torch.nn.functional.pad(mask[:, :-1], (1, 0))


def share_without(scores: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> float:
    """The share of the turns after a trace's first one that have no number."""
    later = turn_starts(mask)
    later &= later.cumsum(dim=1) > 1
    return float((later & ~torch.isfinite(scores)).sum() / later.sum().clamp(min=1))


def _listed(said: Any, turns: int) -> list[Any]:
    """What was said of the turns, at most so many; of a mapping, what it says of their numbers."""
    if isinstance(said, Mapping):
        numbers = {str(turn): number for turn, number in said.items()}
        return [numbers.get(str(turn)) for turn in range(turns)]
    if not isinstance(said, Iterable) or isinstance(said, str | bytes):
        return []
    try:
        return list(islice(said, turns))
    except TypeError:  # an array of no dimension
        return []


def _number(x: Any) -> float:
    try:
        return float(x)
    except (TypeError, ValueError, OverflowError):  # environments say anything
        return float("nan")


@register_value_estimator("environment")
@dataclass(frozen=True)
class EnvironmentEstimator:
    """The environment's own estimate.

    V̂_i is the last number of ``token_scores["environment"]`` (`turn_values`) up to the first token of segment i: that of the
    turn in which the segment begins, or of an earlier one where it has none. States before the first number have the mean
    reward of the group's other rollouts, rows without any number are unknown. In reward units, so ``calibrate`` does not apply.
    With λ = 1 the gradient is exact whatever the numbers are, as long as they were known when the turn began.
    In verl an agent loop, or a tool of verl's own loop, writes ``extra_fields["state_values"]``: a list with a number, or None,
    for each turn of the model in this output, or a mapping from turns to numbers.
    """

    proposes: ClassVar[str] = NO_PROBES
    reads: ClassVar[tuple[str, ...]] = ("environment",)
    calibrates: ClassVar[bool] = False
    max_proposals: ClassVar[int] = 1

    def __call__(self, probed: Probed | None, *, rollouts: Rollouts, segments: Segments, **_: Any) -> Estimate:
        scores = (rollouts.token_scores or {}).get("environment")
        if scores is None:
            return nothing_known(segments)
        given = torch.isfinite(scores) & rollouts.response_mask
        latest, found = latest_number(scores.float(), given)
        told = segments.at_starts(found)
        finite = torch.isfinite(rollouts.outcomes)
        prior = group_stats(rollouts.scores, rollouts.group_ids, finite).others_mean
        values = torch.where(told, segments.at_starts(latest), prior[:, None])
        known = given.any(dim=1)
        return Estimate(torch.where(segments.exists & known[:, None], values, 0.0), known, told)
