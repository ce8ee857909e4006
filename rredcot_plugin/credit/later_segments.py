"""``credit_weight``: take the luck of later segments out of the advantage of earlier ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rredcot_plugin.credit.redistribution import redistribute

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from rredcot_plugin.baselines.base import Evidence
    from rredcot_plugin.credit.turn_rewards import TurnRewards


def luck_of_later(weight: float | str, evidence: Evidence, in_values: TurnRewards | None) -> Float[Tensor, "B S"]:
    """``weight`` · Σ_{l>k} h_l of every segment k, h being what a segment changed beyond what was to be expected, by V̂ alone;
    the weight of ``auto`` is the fit's.

    A reward on the way that V̂ counts (``in_values``) is not a loss once it is paid. Without a weight nothing is fitted.
    """
    segments, outcomes = evidence.segments, evidence.outcomes
    if not weight:
        return torch.zeros_like(evidence.values)
    changes = redistribute(evidence.values, outcomes.score, segments.num_segments)
    if in_values is not None:
        changes = changes + in_values.paid
    surprises = evidence.fit.surprises(changes)
    if isinstance(weight, str):
        weight = evidence.fit.weigh_luck(_from_here_on(changes), _from_here_on(surprises))
    return weight * torch.where(segments.exists, later_surprises(surprises), 0.0)


def later_surprises(surprises: Float[Tensor, "B S"]) -> Float[Tensor, "B S"]:
    """Σ_{l>k} h_l of every segment k, of surprises h in reward units that are 0 in the padding.

    Â_k = R − b − c·Σ_{l>k} h_l has the expectation of R − b for every c where E[h_l | s_l] = 0, s_l being the state where
    segment l starts: each h_l is a control variate of what happens after segment k.
    Source: trajectory-wise control variates (arXiv 1908.03263).

    >>> import torch
    >>> later_surprises(torch.tensor([[1.0, 2.0, 4.0, 0.0]]))
    tensor([[6., 4., 0., 0.]])
    """
    return _from_here_on(surprises) - surprises


def _from_here_on(numbers: Float[Tensor, "B S"]) -> Float[Tensor, "B S"]:
    """Σ_{l≥k} of every segment k."""
    return numbers.flip(1).cumsum(1).flip(1)
