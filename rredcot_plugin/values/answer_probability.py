"""State values from the model's own log-probabilities of answers (the paper's estimator).

π(y|s) is the probability that the actor, asked to answer at state s, gives exactly the answer y. Answers
that the group's rollouts already produced serve as proposals; nothing is generated.
Source: RREDCoT (arXiv 2606.06475); docs/reference/math.md, "support".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from rredcot_plugin.checks import check_finite, check_flags, check_shape, check_tensor
from rredcot_plugin.registry import check_count, nearest, register_value_estimator
from rredcot_plugin.types import Rollouts
from rredcot_plugin.values.base import OWN, TRUTH, Estimate, Probed
from rredcot_plugin.values.proposals import floor_of

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

KINDS = ("support", "self_normalized", "own_ratio")

OWN_RATIO_CLIP = 1.0
"""Of the estimator ``own_ratio``, where ``clip`` is not given: an answer that was 10^30 times as probable earlier on must
not have a value of 10^30 rewards."""


def importance_values(
    log_pi: Float[Tensor, "B S N"],
    utility: Float[Tensor, "B N"],
    valid: Bool[Tensor, "B N"],
    kind: str = "support",
    *,
    clip: float | None = None,
    last: Int[Tensor, " B"] | None = None,
) -> Float[Tensor, "B S"]:
    """V̂ of every state, in reward units.

    ``support``: Σ_y π(y|s)·U(y) over the proposals. Bias ≤ 0 for U ≥ 0, zero where the proposals hold
    every rewarded answer; at most max U where they are disjoint events.
    ``self_normalized``: Σ_y π(y|s)·U(y) / Σ_y π(y|s); between min U and max U.
    ``own_ratio``: Σ_y U(y)·min(clip, π(y|s) / π(y|s_last)), meant for the trace's own answer alone, with
    ``last`` (B,) the index of the state before the answer (default: the last column). Exact there; it
    looks at its own future.
    A row without a valid proposal gets 0. ``support`` counts answers that nobody proposed as worth 0, so it
    needs U ≥ 0; the estimator of that name shifts utilities by the lowest reward and back.

    >>> importance_values(torch.tensor([[[0.25, 0.5]]]).log(), torch.tensor([[1.0, 0.0]]),
    ...                   torch.tensor([[True, True]])).tolist()
    [[0.25]]

    Raises:
        ValueError: an unknown kind, shapes that do not fit, NaN or positive log-probs of valid proposals,
            utilities that are not finite, or negative ones with ``support``.
    """
    check_tensor("log_pi", log_pi)
    B, S, N = log_pi.shape
    check_shape("utility", utility, (B, N))
    check_shape("valid", valid, (B, N))
    check_flags("valid", valid)
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r}:{nearest(kind, list(KINDS))} Allowed: {', '.join(KINDS)}")
    counted = valid[:, None, :].expand(B, S, N)
    bad = counted & ~(log_pi <= 1e-4)
    if bool(bad.any()):
        raise ValueError(f"log_pi: expected log-probs up to 0, got {int(bad.sum())} that are NaN or positive")
    check_finite("utility", utility, valid)
    if kind == "support" and bool((valid & (utility < 0)).any()):
        lowest = float(utility[valid].min())
        raise ValueError(
            f"utility: expected numbers from 0 with kind='support', got {lowest:g}; subtract the lowest"
        )
    log_pi = torch.where(counted, log_pi, -torch.inf)
    weight = torch.where(valid, utility, 0.0)[:, None, :]
    if kind == "support":
        return (log_pi.exp() * weight).sum(dim=2)
    if kind == "self_normalized":
        share = torch.softmax(log_pi, dim=2)  # all −inf gives NaN: no proposal has any probability
        return (torch.nan_to_num(share, nan=0.0) * weight).sum(dim=2)
    column = torch.full((B,), S - 1, device=log_pi.device) if last is None else last
    reference = log_pi.gather(1, column[:, None, None].expand(B, 1, N))
    ratio = torch.nan_to_num(log_pi - reference, nan=-torch.inf, posinf=60.0).clamp(max=60.0).exp()
    if clip is not None:
        ratio = ratio.clamp(max=clip)
    return (ratio * weight).sum(dim=2)


@dataclass(frozen=True)
class ImportanceEstimator:
    """Shared by the estimators of this file: ask for probes, apply ``importance_values``."""

    max_proposals: int = 8
    kind: ClassVar[str]
    proposes: ClassVar[str] = "group"

    def __post_init__(self) -> None:
        check_count("max_proposals", self.max_proposals)

    def __call__(
        self, probed: Probed, *, clip: float | None = None, rollouts: Rollouts | None = None, **_: Any
    ) -> Estimate:
        check_finite("probed.utility", probed.utility, probed.valid)
        last = (probed.num_segments - 1).clamp(min=0)
        floor = torch.zeros(len(last))
        if rollouts is not None and self.kind == "support":
            floor = floor_of(rollouts.scores, probed.lowest)
        utility = (probed.utility - floor[:, None]).clamp(min=0) if self.kind == "support" else probed.utility
        if clip is None and self.kind == "own_ratio":
            clip = OWN_RATIO_CLIP
        values = importance_values(probed.log_pi, utility, probed.valid, self.kind, clip=clip, last=last)
        values = values + floor[:, None]
        if clip is not None and self.kind != "own_ratio":
            values = values.clamp(-clip, clip)
        return Estimate(values, probed.valid.any(dim=1))


@register_value_estimator("support")
class SupportEstimator(ImportanceEstimator):
    """How probable would the rewarded answers be if the model had to answer here?"""

    kind = "support"


@register_value_estimator("self_normalized")
class SelfNormalizedEstimator(ImportanceEstimator):
    """As support, but relative to all answers of the group; robust where the bridge makes all of them improbable."""

    kind = "self_normalized"
    proposes = "group_all"


@register_value_estimator("ground_truth")
class GroundTruthEstimator(ImportanceEstimator):
    """How probable would the data set's answer be if the model had to answer here? Reads no siblings."""

    kind = "support"
    proposes = TRUTH


@register_value_estimator("own_ratio")
class OwnRatioEstimator(ImportanceEstimator):
    """The trace's own answer alone: R times how much of its final probability it already has, at most ``clip`` (1)."""

    kind = "own_ratio"
    proposes = OWN
    sees_outcome: ClassVar[bool] = True
