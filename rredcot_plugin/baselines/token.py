"""``baseline: token``: the optimal token baseline, without the rollout's own sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from rredcot_plugin.baselines.base import Evidence
from rredcot_plugin.baselines.weights import FLOOR
from rredcot_plugin.registry import register_baseline
from rredcot_plugin.types import Rollouts, by_rows

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


def _prefix(norms: Tensor) -> Tensor:
    return norms.cumsum(dim=1)


def _rest(norms: Tensor) -> Tensor:
    return norms.flip(1).cumsum(dim=1).flip(1)


def _trace(norms: Tensor) -> Tensor:
    return norms.sum(dim=1, keepdim=True).expand_as(norms)


WEIGHTS: dict[str, Callable[[Tensor], Tensor]] = {
    "prefix": _prefix,
    "token": lambda norms: norms,
    "rest": _rest,
    "trace": _trace,
}
"""Name → how the squared gradient lengths w of a trace's tokens (N, T) make the weights W."""


@register_baseline("token")
@dataclass(frozen=True)
class TokenBaseline:
    """One number per token: the mean return of the siblings still alive there, weighted by gradient length.

    Token t of rollout i, t counted over unmasked tokens, is measured from

        B_t = Σ_j W_t^j G_t^j / Σ_j W_t^j,   j over the other rollouts of the group with more than t tokens,

    where w_t = 1 − 2π(o_t) + Σ_v π_v² is the squared length of the gradient of log π(o_t) with respect to the logits,
    W_t = Σ_{s≤t} w_s + ``FLOOR``, and G_t^j is the reward of j without the penalties on its tokens before t. B_t is a
    function of t and of other rollouts, so at λ = 1 and ``scale: none`` the expected gradient is exact.

    Where every sibling has ended, the last W of each takes its place; without siblings B_t = 0. A rollout whose
    reward is not finite counts for nobody. Source: the optimal token baseline (arXiv 2602.07078), whose mean includes
    the rollout's own sample, which biases the gradient.

    Raises:
        ValueError: rollouts without ``log_probs`` or ``sum_pi_squared``; an unknown ``weight``.
    """

    weight: str = "prefix"
    per_token: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("log_probs", "sum_pi_squared")

    def __post_init__(self) -> None:
        if self.weight not in WEIGHTS:
            raise ValueError(f"weight={self.weight!r}: expected one of {', '.join(WEIGHTS)}")

    def __call__(self, evidence: Evidence) -> Float[Tensor, "B T"]:
        rollouts, outcomes = evidence.rollouts, evidence.outcomes
        norms, mask = token_gradient_norms(rollouts), rollouts.response_mask
        found = torch.zeros_like(norms)
        for members in _groups(outcomes.stats.index):
            index, lengths = _positions(mask[members])
            packed = _pack(norms[members], index, lengths).double()
            returns = outcomes.score[members, None].double()
            if rollouts.penalties is not None:
                penalties = torch.where(mask[members], rollouts.penalties[members], 0.0)
                returns = returns + _rest(_pack(penalties, index, lengths).double())
            alive = torch.arange(packed.shape[1], device=mask.device) < lengths[:, None]
            weight = WEIGHTS[self.weight](packed) + FLOOR
            of_group = _leave_one_out(weight, packed.sum(1) + FLOOR, returns, alive, outcomes.finite[members])
            found[members] = torch.where(mask[members], of_group.float().gather(1, index), 0.0)
        return found


def token_gradient_norms(rollouts: Rollouts) -> Float[Tensor, "B T"]:
    """w_t = 1 − 2π(o_t) + Σ_v π_v² of each token, 0 where masked: ‖∂ log π(o_t) / ∂ logits‖², from 0 to 2.

    Raises:
        ValueError: rollouts without ``log_probs`` or ``sum_pi_squared``.
    """
    for name in TokenBaseline.needs:
        if getattr(rollouts, name) is None:
            raise ValueError(
                f"{name}: baseline=token weighs tokens by it, but the rollouts have none; give Rollouts.{name}, or "
                "use baseline=least_variance, trace or value"
            )

    def norms(log_probs: Tensor, squares: Tensor, mask: Tensor) -> Tensor:
        found = (1 - 2 * log_probs.float().exp() + squares.float()).clamp(min=0)
        return torch.where(mask, found, 0.0)

    return by_rows(norms, rollouts.log_probs, rollouts.sum_pi_squared, rollouts.response_mask)  # type: ignore[arg-type]


def _groups(index: Int[Tensor, " B"]) -> list[Int[Tensor, " N"]]:
    """The rows of each group."""
    order = index.argsort(stable=True)
    return list(order.split(index.bincount().tolist())) if len(index) else []


def _positions(mask: Bool[Tensor, "N T"]) -> tuple[Int[Tensor, "N T"], Int[Tensor, " N"]]:
    """Number of each unmasked token within its trace, from 0 (0 elsewhere), and the tokens of each trace."""
    counted = mask.cumsum(dim=1)
    return torch.where(mask, counted - 1, 0), mask.sum(dim=1)


def _pack(numbers: Float[Tensor, "N T"], index: Int[Tensor, "N T"], lengths: Int[Tensor, " N"]) -> Tensor:
    """Numbers of the unmasked tokens moved together, (N, longest); what stands on masked tokens must be 0."""
    width = max(1, int(lengths.max()))
    return numbers.new_zeros(len(numbers), width).scatter_add_(1, index, numbers)


def _leave_one_out(
    weight: Float[Tensor, "N T"],
    last: Float[Tensor, " N"],
    returns: Float[Tensor, "N T"],
    alive: Bool[Tensor, "N T"],
    valid: Bool[Tensor, " N"],
) -> Float[Tensor, "N T"]:
    """Weighted mean return of the other rollouts that are alive; where none is, of all others by their ``last`` weight.

    Weights are at least ``FLOOR`` and below 2T + ``FLOOR``, so that taking a rollout's own weight off the sum of its
    group leaves no more than rounding of float64.
    """
    counts = alive & valid[:, None]
    weight, ended = torch.where(counts, weight, 0.0), torch.where(valid, last, 0.0)[:, None]
    rewarded, rewarded_ended = weight * returns, ended * returns
    others = counts.sum(0) - counts.long()
    mean = _others(rewarded) / torch.where(others > 0, _others(weight), 1.0)
    of_ended = _others(rewarded_ended) / _others(ended).clamp(min=FLOOR)
    return torch.where(others > 0, mean, of_ended)


def _others(numbers: Float[Tensor, "N T"]) -> Float[Tensor, "N T"]:
    return numbers.sum(0) - numbers
