"""Statistics over the rollouts of one prompt. Grouped by id, whatever the order of the rows."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


@dataclass(frozen=True)
class GroupStats:
    """Per-rollout statistics of its group, over valid rows only; all of shape (B,).

    ``mean`` and ``std`` follow GRPO's conventions for a group of one: mean 0, std 1. ``others_mean`` leaves
    the rollout itself out; alone in its group a rollout has no others, and the mean is 0 again.
    """

    index: Int[Tensor, " B"]
    count: Float[Tensor, " B"]
    mean: Float[Tensor, " B"]
    std: Float[Tensor, " B"]
    others_mean: Float[Tensor, " B"]


@dataclass(frozen=True)
class Outcomes:
    """What the rollouts earned; all (B,).

    ``total`` is R, the sum of the token rewards; ``score`` is R without ``Rollouts.penalties``, so it is what
    values predict. Both are 0 where ``finite`` is false. ``stats`` are the groups' statistics of ``total``. ``size`` is the
    sum of the absolute token rewards: what R was rounded from.
    """

    total: Float[Tensor, " B"]
    score: Float[Tensor, " B"]
    finite: Bool[Tensor, " B"]
    stats: GroupStats
    size: Float[Tensor, " B"]


def group_index(group_ids: Sequence[Hashable]) -> Int[Tensor, " B"]:
    """Integers 0..G−1 in order of first appearance.

    >>> group_index(["b", "a", "b"]).tolist()
    [0, 1, 0]
    """
    order: dict[Hashable, int] = {}
    return torch.tensor([order.setdefault(gid, len(order)) for gid in group_ids], dtype=torch.int64)


def group_stats(
    outcomes: Float[Tensor, " B"], group_ids: Sequence[Hashable], valid: Bool[Tensor, " B"]
) -> GroupStats:
    """Mean, sample standard deviation and leave-one-out mean of the outcomes of each group.

    Two passes (mean, then squared distances) in float64: the one-pass form loses a standard deviation of
    1e-4 next to a mean of 1e4. Source: GRPO, arXiv 2402.03300, section 4.1.
    """
    index = group_index(group_ids).to(outcomes.device)
    groups = int(index.max()) + 1 if index.numel() else 0
    weight = valid.double()
    x = torch.where(valid, outcomes.double(), 0.0)

    def per_group(values: torch.Tensor) -> torch.Tensor:
        return torch.zeros(groups, dtype=torch.float64, device=values.device).index_add_(0, index, values)[index]

    count, total = per_group(weight), per_group(x)
    mean = total / count.clamp(min=1)
    variance = per_group((x - mean) ** 2 * weight) / (count - 1).clamp(min=1)
    alone = count <= 1
    others = (total - x) / (count - weight).clamp(min=1)
    return GroupStats(
        index=index,
        count=count.float(),
        mean=torch.where(alone, 0.0, mean).float(),
        std=torch.where(alone, 1.0, variance.sqrt()).float(),
        others_mean=torch.where(count - weight <= 0, 0.0, others).float(),
    )
