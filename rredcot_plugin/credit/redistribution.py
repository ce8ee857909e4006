"""From state values to the reward of each segment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rredcot_plugin.checks import check_integers, check_num_segments, check_shape, check_tensor
from rredcot_plugin.types import MASKED, Segments, add_per_segment, by_rows

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


def _exists(num_segments: Int[Tensor, " B"], width: int) -> Bool[Tensor, "B S"]:
    return torch.arange(width, device=num_segments.device)[None, :] < num_segments[:, None]


def redistribute(
    values: Float[Tensor, "B S"], outcome: Float[Tensor, " B"], num_segments: Int[Tensor, " B"]
) -> Float[Tensor, "B S"]:
    """The change of value over each segment: δ_i = V̂_{i+1} − V̂_i, and δ_last = R − V̂_last.

    The sum over a trace telescopes to R − V̂_0 for any values. 0 in the padding.
    Source: docs/reference/math.md, "redistributed reward";
    return equivalence after RUDDER (arXiv 1806.07857, section 2).

    >>> redistribute(torch.tensor([[0.5, 0.8, 0.2]]), torch.tensor([1.0]), torch.tensor([3])).round(decimals=1)
    tensor([[ 0.3000, -0.6000,  0.8000]])
    """
    check_tensor("values", values)
    B, S = values.shape
    check_shape("outcome", outcome, (B,))
    check_num_segments(num_segments, B, S)
    exists = _exists(num_segments, S)
    following = torch.cat([values[:, 1:], values[:, -1:]], dim=1)
    is_last = torch.arange(S, device=values.device)[None, :] == num_segments[:, None] - 1
    following = torch.where(is_last, outcome[:, None], following)
    return torch.where(exists, following - values, 0.0)


def segment_rewards(deltas: Float[Tensor, "B S"], values: Float[Tensor, "B S"]) -> Float[Tensor, "B S"]:
    """The redistributed reward r: δ with V̂_0 added to the first segment, so that it sums to R."""
    first = torch.zeros_like(deltas)
    first[:, 0] = values[:, 0]
    return deltas + first


def sum_per_segment(per_token: Float[Tensor, "B T"], segments: Segments) -> Float[Tensor, "B S"]:
    """Sum of a number per token over each segment; masked tokens do not count.

    >>> ids = torch.tensor([[0, 0, -1, 1]])
    >>> sum_per_segment(torch.tensor([[1.0, 2.0, 4.0, 8.0]]), Segments(ids, torch.tensor([2])))
    tensor([[3., 8.]])
    """
    width = segments.max_segments
    return by_rows(lambda x, ids: add_per_segment(x.float(), ids, width), per_token, segments.segment_ids)


def mean_per_segment(per_token: Float[Tensor, "B T"], segments: Segments) -> Float[Tensor, "B S"]:
    """Mean of a number per token over each segment; 0 in the padding.

    >>> ids = torch.tensor([[0, 0, -1, 1]])
    >>> mean_per_segment(torch.tensor([[1.0, 2.0, 4.0, 8.0]]), Segments(ids, torch.tensor([2])))
    tensor([[1.5000, 8.0000]])
    """
    return sum_per_segment(per_token, segments) / segments.lengths.clamp(min=1)


def spread_to_tokens(per_segment: Float[Tensor, "B S"], segment_ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Give every token its segment's number; masked tokens get exactly 0.

    >>> spread_to_tokens(torch.tensor([[1.0, 2.0]]), torch.tensor([[0, -1, 1]]))
    tensor([[1., 0., 2.]])
    """
    check_tensor("per_segment", per_segment)
    check_integers("segment_ids", segment_ids)
    check_shape("segment_ids", segment_ids, (per_segment.shape[0], segment_ids.shape[-1]))
    highest = int(segment_ids.max()) if segment_ids.numel() else MASKED
    if highest >= per_segment.shape[1]:
        raise ValueError(f"segment_ids: expected ids under {per_segment.shape[1]}, got {highest}")
    with_zero = torch.nn.functional.pad(per_segment, (1, 0))  # what masked tokens get
    return by_rows(lambda numbers, ids: numbers.gather(1, ids - MASKED), with_zero, segment_ids)
