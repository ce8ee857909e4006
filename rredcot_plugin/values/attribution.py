"""``attention`` and ``gradient``: the outcome shared out by how much the answer depends on each segment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from rredcot_plugin.checks import check_shape
from rredcot_plugin.groups import group_stats
from rredcot_plugin.registry import register_value_estimator
from rredcot_plugin.types import Rollouts, Segments
from rredcot_plugin.values.base import NO_PROBES, Estimate, Probed, nothing_known

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


def segment_shares(
    scores: Float[Tensor, "B T"], segments: Segments
) -> tuple[Float[Tensor, "B S"], Bool[Tensor, " B"]]:
    """a_i = Σ of the scores of segment i / Σ over all segments but the last, the answer's own, which gets 0.

    The second result says which rows have shares: those whose scores (outside the answer) are all finite, none
    negative, not all 0. The others, traces of one segment among them, get 0 everywhere.

    >>> ids = torch.tensor([[0, 0, 1, -1, 2]])
    >>> shares, known = segment_shares(torch.tensor([[0.5, 1.0, 0.5, 9.0, 7.0]]), Segments(ids, torch.tensor([3])))
    >>> shares.tolist(), known.tolist()
    ([[0.75, 0.25, 0.0]], [True])

    Raises:
        ValueError: scores that do not fit the segments.
    """
    ids = segments.segment_ids
    check_shape("scores", scores, ids.shape)
    counted = (ids >= 0) & (ids < segments.num_segments[:, None] - 1)
    usable = (torch.isfinite(scores) & (scores >= 0)) | ~counted
    weight = torch.where(counted & usable, scores.double(), 0.0)
    sums = torch.zeros(segments.exists.shape, dtype=torch.float64, device=ids.device)
    sums.scatter_add_(1, ids.clamp(min=0), weight)
    total = sums.sum(dim=1)
    known = usable.all(dim=1) & (total > 0)
    shares = sums / torch.where(known, total, 1.0)[:, None]
    return torch.where(known[:, None], shares, 0.0), known


class AttributionEstimator:
    """Values that hand the whole outcome to the segments by their shares.

    V̂_i = V̂_0 + (R − V̂_0)·Σ_{j<i} a_j, with a the shares of ``segment_shares`` and V̂_0 the mean reward of the
    *other* rollouts of the group, so δ_i = (R − V̂_0)·a_i and the answer segment gets 0. R is the outcome without
    ``Rollouts.penalties``, which stay on their own segments.

    The values look at the trace's own outcome and at its future (a is read from the answer), so λ=1 is not
    unbiased here, whatever ``leave_one_out`` says. In reward units, so ``calibrate`` does not apply, nor does
    ``clip``, which would break the shares. A row is unknown without scores, without shares, or with a reward
    that is not finite.
    Source: the attribution baselines that RREDCoT (arXiv 2606.06475) compares with, return decomposition after
    RUDDER (arXiv 1806.07857); the formula is ours.
    """

    proposes: ClassVar[str] = NO_PROBES
    reads: ClassVar[tuple[str, ...]]
    calibrates: ClassVar[bool] = False
    sees_outcome: ClassVar[bool] = True
    max_proposals: ClassVar[int] = 1

    def __call__(self, probed: Probed | None, *, rollouts: Rollouts, segments: Segments, **_: Any) -> Estimate:
        scores = (rollouts.token_scores or {}).get(self.reads[0])
        if scores is None:
            return nothing_known(segments)
        shares, known = segment_shares(scores, segments)
        finite = torch.isfinite(rollouts.outcomes)
        known = known & finite
        score = torch.where(finite, rollouts.scores, 0.0)
        prior = group_stats(score, rollouts.group_ids, finite).others_mean.double()
        score = score.double()
        before = shares.cumsum(dim=1) - shares  # Σ_{j<i}
        values = prior[:, None] + (score - prior)[:, None] * before
        return Estimate(torch.where(segments.exists & known[:, None], values, 0.0).float(), known)


@register_value_estimator("attention")
@dataclass(frozen=True)
class AttentionEstimator(AttributionEstimator):
    """The outcome, split among segments by how much the answer's tokens attend to each.

    Shares from ``token_scores["attention"]``.
    """

    reads: ClassVar[tuple[str, ...]] = ("attention",)


@register_value_estimator("gradient")
@dataclass(frozen=True)
class GradientEstimator(AttributionEstimator):
    """The outcome, split among segments by how much the answer's log-probability depends on each.

    Shares from ``token_scores["gradient"]``: |input × gradient|.
    """

    reads: ClassVar[tuple[str, ...]] = ("gradient",)
