"""Numbers that say what the credit did. Pure functions; names as in docs/reference/metrics.md.

Every name ends in /mean, /max or /min: verl's aggregator reduces by substring, and the rest of a name
must not contain "min", "max", "sum" or "total".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rredcot_plugin.types import Segments

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


def mean_and_extremes(name: str, x: torch.Tensor, *, low: bool = True) -> dict[str, float]:
    """name/mean, name/max and, where ``low``, name/min of a vector; nothing for an empty one."""
    if x.numel() == 0:
        return {}
    x = x.float()
    numbers = {f"{name}/mean": float(x.mean()), f"{name}/max": float(x.max())}
    return {**numbers, f"{name}/min": float(x.min())} if low else numbers


def share(condition: torch.Tensor) -> float:
    """Fraction of true entries, 0 for an empty tensor."""
    return float(condition.float().mean()) if condition.numel() else 0.0


def credit_metrics(
    segments: Segments,
    values: Float[Tensor, "B S"],
    deltas: Float[Tensor, "B S"],
    rewards: Float[Tensor, "B S"],
    outcome: Float[Tensor, " B"],
    segment_advantages: Float[Tensor, "B S"],
    baselines: Float[Tensor, "B S"],
) -> dict[str, float]:
    """Sizes of segments, values and credit over the batch, in reward units and tokens."""
    exists = segments.exists
    real = segments.num_segments > 0
    last = (segments.num_segments - 1).clamp(min=0)[:, None]
    size = deltas.abs()
    answer_share = size.gather(1, last)[:, 0] / size.sum(dim=1).clamp(min=1e-12)
    moved = size.sum(dim=1) > 1e-12
    return {
        **mean_and_extremes("rredcot/segments/per_trace", segments.num_segments),
        **mean_and_extremes("rredcot/segments/tokens", segments.lengths[exists]),
        **mean_and_extremes("rredcot/value/prompt", values[:, 0][real]),
        **mean_and_extremes("rredcot/value/boundary", values[:, 1:][exists[:, 1:]]),
        **mean_and_extremes("rredcot/value/before_answer", values.gather(1, last)[:, 0][real], low=False),
        **mean_and_extremes("rredcot/credit/segment_reward", rewards[exists]),
        **mean_and_extremes("rredcot/credit/abs_delta", size[exists], low=False),
        **mean_and_extremes("rredcot/credit/segment_advantage", segment_advantages[exists]),
        **mean_and_extremes("rredcot/credit/baseline", baselines[exists]),
        "rredcot/credit/negative_share/mean": share(deltas[exists] < 0),
        "rredcot/credit/answer_share/mean": float(answer_share[moved].mean()) if bool(moved.any()) else 0.0,
        "rredcot/credit/return_error/max": float((rewards.sum(1) - outcome)[real].abs().max())
        if bool(real.any())
        else 0.0,
    }


def calibration_metrics(
    values: Float[Tensor, "B S"], outcome: Float[Tensor, "B S"], segments: Segments, finite: Bool[Tensor, " B"]
) -> dict[str, float]:
    """How well the values of the boundaries predict the outcome from there on, both put on [0, 1].

    ``brier``: mean squared error; ``ece``: expected calibration error over ten bins of equal width;
    ``explained_variance``: 1 − var(R − V̂) / var(R), 0 where R does not vary.
    """
    at = segments.exists & finite[:, None]
    at[:, 0] = False
    if not bool(at.any()):
        return {}
    low, high = float(outcome[at].min()), float(outcome[at].max())
    if high - low < 1e-6:
        return {}
    p = ((values.double() - low) / (high - low))[at]
    y = ((outcome.double() - low) / (high - low))[at]
    bins = (p * 10).nan_to_num(0.0).clamp(0, 9).long()
    counts = p.new_zeros(10).index_add_(0, bins, torch.ones_like(p))
    gap = p.new_zeros(10).index_add_(0, bins, p - y).abs()
    variance = float(y.var(unbiased=False))
    return {
        "rredcot/value/brier/mean": float(((p - y) ** 2).mean()),
        "rredcot/value/ece/mean": float(gap.sum() / counts.sum()),
        "rredcot/value/explained_variance/mean": 1 - float((y - p).var(unbiased=False)) / variance
        if variance > 1e-9
        else 0.0,
    }
