"""Credit on several levels at once (turn, step, token): whatever level is read, a trace sums to its reward.

A level is a ``Segments``; levels nest when no fine segment crosses a coarse boundary, as those of the segmenter
``nested`` do. Sums go up (`roll_up`), and `hierarchical_gae` looks ahead by steps inside a turn and by turns after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rredcot_plugin.checks import check_shape
from rredcot_plugin.credit.advantages import segment_gae
from rredcot_plugin.registry import check_number
from rredcot_plugin.types import MASKED, Segments

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


def parents(fine: Segments, coarse: Segments) -> Int[Tensor, "B F"]:
    """Which coarse segment each fine one lies in; −1 in the padding.

    >>> steps = Segments(torch.tensor([[0, 0, 1, -1, 2]]), torch.tensor([3]))
    >>> turns = Segments(torch.tensor([[0, 0, 0, -1, 1]]), torch.tensor([2]))
    >>> parents(steps, turns)
    tensor([[0, 0, 1]])

    Raises:
        ValueError: partitions of different tokens; a fine segment that crosses a coarse boundary, naming both.
    """
    _check_same_tokens(fine, coarse)
    lowest = _over_segments(coarse.segment_ids, fine, "amin", MASKED)
    highest = _over_segments(coarse.segment_ids, fine, "amax", MASKED)
    crossing = (lowest != highest).nonzero()
    if len(crossing):
        row, segment = crossing[0].tolist()
        raise ValueError(
            f"row {row}: expected fine segments that lie in one coarse segment each, got fine segment {segment} in "
            f"coarse segments {int(lowest[row, segment])} to {int(highest[row, segment])}"
        )
    return lowest


def roll_up(per_segment: Float[Tensor, "B F"], fine: Segments, coarse: Segments) -> Float[Tensor, "B C"]:
    """The sum over the fine segments of each coarse one: c_j = Σ_{i in j} f_i. Padding is ignored, and 0.

    >>> steps = Segments(torch.tensor([[0, 0, 1, -1, 2]]), torch.tensor([3]))
    >>> turns = Segments(torch.tensor([[0, 0, 0, -1, 1]]), torch.tensor([2]))
    >>> roll_up(torch.tensor([[0.5, -0.25, 1.0]]), steps, turns)
    tensor([[0.2500, 1.0000]])

    Raises:
        ValueError: levels that do not nest, or a shape that does not fit.
    """
    check_shape("per_segment", per_segment, fine.exists.shape)
    parent = parents(fine, coarse)
    sums = per_segment.new_zeros(len(per_segment), coarse.max_segments)
    return sums.scatter_add(1, parent.clamp(min=0), torch.where(parent > MASKED, per_segment, 0.0))


def hierarchical_gae(
    deltas: Float[Tensor, "B F"], fine: Segments, coarse: Segments, lam_fine: float, lam_coarse: float
) -> Float[Tensor, "B F"]:
    """GAE that looks ahead by fine segments inside its coarse one, and by coarse segments after it.

    Â_i = Σ_{l≥0, i+l in j} λ_f^l δ_{i+l} + Σ_{m≥1} λ_c^m Δ_{j+m}, with j the coarse segment of i and Δ = roll_up(δ).

    A long turn so costs what follows it one factor λ_c, not λ_f once a step: with λ_f = 0.9 a step twenty steps before
    the end of its turn would hear 12 % of what the next turn earned. It is `segment_gae` with λ_f where there is one
    coarse segment, with λ_c where the levels are equal, and R − V̂_i where both are 1. λ_c = 1 with λ_f < 1 trusts
    values inside the own coarse segment only, up to its end; only λ_f = λ_c = 1 is unbiased for any V̂ (docs/reference/math.md).

    Source: GAE (arXiv 1506.02438, equation 16) at two levels. Turns over tokens as two decision processes: ArCHer
    (arXiv 2402.19446); the bi-level GAE in RAGEN's code (arXiv 2504.20073) shares the idea, not the formula.

    >>> steps = Segments(torch.tensor([[0, 1, 2, 3]]), torch.tensor([4]))
    >>> turns = Segments(torch.tensor([[0, 0, 1, 1]]), torch.tensor([2]))
    >>> hierarchical_gae(torch.tensor([[1.0, 2.0, 4.0, 8.0]]), steps, turns, lam_fine=0.5, lam_coarse=1.0)
    tensor([[14., 14.,  8.,  8.]])

    Raises:
        ValueError: a λ outside [0, 1], levels that do not nest, or a shape that does not fit.
    """
    check_number("lam_fine", lam_fine, 0.0, 1.0)
    check_number("lam_coarse", lam_coarse, 0.0, 1.0)
    check_shape("deltas", deltas, fine.exists.shape)
    parent = parents(fine, coarse)
    ahead = segment_gae(roll_up(deltas, fine, coarse), coarse.num_segments, lam_coarse)
    following = torch.cat([lam_coarse * ahead[:, 1:], torch.zeros_like(ahead[:, :1])], dim=1)
    return _gae_inside(deltas, parent, lam_fine) + _of_parent(following, parent)


def gae_over(
    deltas: Float[Tensor, "B F"],
    fine: Segments,
    coarse: Segments | None,
    lam_fine: float,
    lam_coarse: float | None,
) -> Float[Tensor, "B F"]:
    """`segment_gae`, or `hierarchical_gae` where there is a ``lam_coarse``.

    Raises:
        ValueError: a ``lam_coarse`` without coarse segments, and as those do.
    """
    if lam_coarse is None:
        return segment_gae(deltas, fine.num_segments, lam_fine)
    if coarse is None:
        raise ValueError(f"coarse: lam_coarse={lam_coarse} needs the segments that these are parts of, got None")
    return hierarchical_gae(deltas, fine, coarse, lam_fine, lam_coarse)


def _gae_inside(deltas: torch.Tensor, parent: torch.Tensor, lam: float) -> torch.Tensor:
    """Segment GAE that starts anew at every coarse boundary; 0 in the padding."""
    advantages = torch.zeros_like(deltas)
    running, before = torch.zeros_like(deltas[:, 0]), torch.full_like(parent[:, 0], MASKED)
    for k in reversed(range(deltas.shape[1])):
        carried = torch.where(parent[:, k] == before, lam * running, 0.0)
        running, before = torch.where(parent[:, k] > MASKED, deltas[:, k] + carried, 0.0), parent[:, k]
        advantages[:, k] = running
    return advantages


def _of_parent(per_coarse: torch.Tensor, parent: torch.Tensor) -> torch.Tensor:
    """(B, C) numbers at each fine segment's parent, (B, F); 0 in the padding."""
    return torch.where(parent > MASKED, per_coarse.gather(1, parent.clamp(min=0)), 0)


def _over_segments(per_token: torch.Tensor, segments: Segments, how: str, empty: int) -> torch.Tensor:
    """(B, T) numbers reduced over each segment (``amin``, ``amax``, ``sum``), ``empty`` in the padding."""
    S = segments.max_segments
    # masked tokens are reduced into an extra last column, which is cut off
    target = torch.where(segments.segment_ids > MASKED, segments.segment_ids, S)
    start = per_token.new_full((len(per_token), S + 1), empty)
    return start.scatter_reduce(1, target, per_token, how, include_self=False)[:, :-1]


def _check_same_tokens(fine: Segments, coarse: Segments) -> None:
    check_shape("coarse.segment_ids", coarse.segment_ids, fine.segment_ids.shape)
    differs = ((fine.segment_ids > MASKED) != (coarse.segment_ids > MASKED)).nonzero()
    if len(differs):
        row, column = differs[0].tolist()
        found = "fine" if int(fine.segment_ids[row, column]) > MASKED else "coarse"
        raise ValueError(
            f"row {row}, column {column}: expected partitions of the same tokens, got one in a {found} segment only"
        )
