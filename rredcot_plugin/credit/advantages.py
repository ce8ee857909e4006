"""From segment rewards to the advantage of each token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rredcot_plugin.checks import check_num_segments, check_tensor
from rredcot_plugin.groups import Outcomes
from rredcot_plugin.types import Segments

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

EPSILON = 1e-6
"""verl's GRPO epsilon, so that a config moves over unchanged."""

ROUNDING = 1e-6
"""Sums of float32 numbers differ by that part of what was summed and are still the same sum."""

LARGEST_CORRECTION = 5.0
"""How many group standard deviations a value may differ from the group mean before it sets the scale."""


def segment_gae(deltas: Float[Tensor, "B S"], num_segments: Int[Tensor, " B"], lam: float) -> Float[Tensor, "B S"]:
    """Generalised advantage estimation over segments: Â_k = Σ_{l≥0} λ^l δ_{k+l}.

    λ=0: δ itself. λ=1: R − V̂_{k−1}, the return-to-go. What lies in the padding is ignored. ``deltas`` are the changes
    of value δ (`redistribute`, ``Credit.deltas``), not ``Credit.segment_rewards``: those have V̂_0 on the first
    segment, whose advantage at λ=1 would be R then.
    Source: GAE (arXiv 1506.02438, equation 16) with segments as steps and discount 1.

    >>> segment_gae(torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([3]), 0.5)
    tensor([[3., 4., 4.]])

    Raises:
        ValueError: λ outside [0, 1], or shapes that do not fit.
    """
    if not 0.0 <= lam <= 1.0:
        raise ValueError(f"lam={lam!r}: expected a number from 0 to 1")
    check_tensor("deltas", deltas)
    B, S = deltas.shape
    check_num_segments(num_segments, B, S)
    advantages = torch.zeros_like(deltas)
    running = torch.zeros_like(deltas[:, 0])
    for k in reversed(range(S)):
        inside = k < num_segments
        running = torch.where(inside, deltas[:, k] + lam * running, 0.0)
        advantages[:, k] = running
    return advantages


def grpo_advantage(outcomes: Outcomes, scale: str) -> Float[Tensor, " B"]:
    """GRPO's advantage of a trace: (R − mean) / (std + 1e-6), or without the division, as verl computes it."""
    return (outcomes.total - outcomes.stats.mean) / divisor(outcomes, scale)


def whiten(
    advantages: Float[Tensor, "B T"], segments: Segments, counted: Bool[Tensor, " B"]
) -> Float[Tensor, "B T"]:
    """Mean 0 and variance 1 over the unmasked tokens of the batch's ``counted`` rows, as verl's PPO does; 0 elsewhere.

    A ÷ sqrt(variance + 1e-8) with the sample variance; a single token keeps its distance from the mean, 0. The mean is summed
    in float64: large numbers that are all equal would differ from it by its rounding, and the division makes that 1.
    """
    real = (segments.segment_ids >= 0) & counted[:, None]
    count = real.sum().clamp(min=1)
    mean = (torch.where(real, advantages, 0.0).sum(dtype=torch.float64) / count).to(advantages.dtype)
    square = torch.where(real, advantages - mean, 0.0).square().sum()
    scale = (square / (count - 1).clamp(min=1) + 1e-8).rsqrt()
    return torch.where(real, (advantages - mean) * scale, 0.0)


def divisor(outcomes: Outcomes, scale: str) -> Float[Tensor, " B"]:
    """What advantages are divided by: ``group_std`` (GRPO), ``batch_std``, or 1 (``none``: Dr. GRPO; ``whiten``,
    which works on tokens)."""
    if scale == "group_std":
        return outcomes.stats.std + EPSILON
    if scale == "batch_std":
        # in float32 equal numbers have a deviation of their rounding
        known = outcomes.total[outcomes.finite].double()
        spread = known.std().float() if known.numel() > 1 else torch.ones((), device=known.device)
        return (spread + EPSILON).expand_as(outcomes.total)
    return torch.ones_like(outcomes.total)


def scale_advantages(
    advantages: Float[Tensor, "B K"],
    baselines: Float[Tensor, "B K"],
    outcomes: Outcomes,
    real: Bool[Tensor, "B K"],
    scale: str,
) -> Float[Tensor, "B K"]:
    """Divide advantages as ``scale`` says, without blowing up where rewards hardly vary. K are segments or tokens.

    GRPO divides by the group's standard deviation, which is safe only because R − mean shrinks with it; another
    baseline b does not. With ``group_std`` a group without variance therefore earns nothing, as in GRPO, and
    in any other the divisor is at least 1/5 of the largest |b − mean| of the group; with ``batch_std`` the same
    holds for the whole batch. What rewards vary by rounding alone is not variance. Where b is the group mean this is GRPO's
    division exactly.
    """
    by, stats = divisor(outcomes, scale), outcomes.stats
    if scale not in ("group_std", "batch_std"):
        return advantages / by[:, None]
    index = stats.index if scale == "group_std" else torch.zeros_like(stats.index)
    distance = torch.where(real, (baselines - stats.mean[:, None]).abs(), 0.0)
    farthest = distance.amax(dim=1) if distance.shape[1] else torch.zeros_like(stats.mean)
    by_rounding = ROUNDING * _largest(outcomes.size, index)
    alone = (stats.count if scale == "group_std" else outcomes.finite.sum()) <= 1  # a deviation of 1 by convention
    varies = alone | (by - EPSILON > by_rounding)
    by = torch.maximum(by, _largest(farthest, index) / LARGEST_CORRECTION)
    return torch.where(varies[:, None], advantages / by[:, None], 0.0)


def _largest(numbers: Float[Tensor, " B"], index: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """The largest number, at least 0, of all rows with the same index."""
    found = torch.zeros(len(numbers), dtype=numbers.dtype, device=numbers.device)
    return found.scatter_reduce(0, index, numbers, reduce="amax")[index]


def weighted_coefficients(
    deltas: Float[Tensor, "B S"], grpo: Float[Tensor, " B"], segments: Segments
) -> Float[Tensor, "B S"]:
    """The multiplicative form: σ ≥ 0 with a token mean of 1 over each trace.

    σ_k ∝ max(sign(A)·δ_k, 0): a good trace strengthens the segments that raised its value, a bad one
    weakens those that lowered it. A trace without such a segment gets σ = 1 everywhere.
    Source: RREDCoT (arXiv 2606.06475), "normalised per-token coefficients"; the formula is our reading.
    """
    weight = (deltas * torch.sign(grpo)[:, None]).clamp(min=0)
    lengths = segments.lengths.to(weight.dtype)
    tokens = lengths.sum(dim=1, keepdim=True)
    mean = (weight * lengths).sum(dim=1, keepdim=True) / tokens.clamp(min=1)
    return torch.where(mean > EPSILON, weight / mean.clamp(min=EPSILON), segments.exists.to(weight.dtype))


def match_token_mean(
    advantages: Float[Tensor, "B T"], target: Float[Tensor, " B"], segments: Segments
) -> Float[Tensor, "B T"]:
    """Shift each trace so that the mean over its unmasked tokens is ``target`` (GRPO's advantage).

    A shift and not a factor: a factor is undefined where the mean is 0 and turns signs where it is negative.
    """
    real = segments.segment_ids >= 0
    mean = advantages.sum(dim=1) / real.sum(dim=1).clamp(min=1)
    return torch.where(real, advantages + (target - mean)[:, None], 0.0)
