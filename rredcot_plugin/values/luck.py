"""How much of the luck of later segments to take out of an advantage (``credit_weight: auto``), by what past steps tell.

With T = Σ_{l≥i} h_l from a state s_i on, Â = R − b − c·T has less variance and, where T can be foreseen from s_i, a bias.
Over N rollouts variance averages out and bias does not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from rredcot_plugin.values.ridge import fit_ridge

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from rredcot_plugin.values.labelled_states import LabelledStates

DOUBT = 1.64
"""Standard errors that are added to B as measured, which is then larger than the true one with a probability of 95 %."""


def foreseen_luck(
    past: LabelledStates, features: Float[Tensor, "M F"], span: float, l2: float
) -> Float[Tensor, " M"]:
    """T̂ of states with these features, in reward units: a ridge regression of T on the past states of which it is known, at
    most ``span`` in size; NaN without any."""
    told = past.luck.isfinite()
    if not bool(told.any()):
        return torch.full_like(features[:, 0].double(), torch.nan)
    weights = past.weight.double()[told][:, None]
    beta = fit_ridge(past.features.double()[told], past.luck.double()[told], weights, l2)[0]
    return (features.double() @ beta[:-1] + beta[-1]).clamp(-span, span)


def least_error_weight(past: LabelledStates, rollouts: float) -> float:
    """c in [0, 1] of least squared error of a mean over so many ``rollouts``; 0 where past steps do not tell.

    c = E[D·T] / (E[T²] + N·B), D = R − V̂ being what a state left open and B the mean square of what can be foreseen of T. B is
    estimated as E[T̂·T] with T̂ from steps before the state's own, so that noise of T̂ does not count, plus 1.64 standard
    errors that take the states of a rollout for one. All errors are taken to point in one direction, the worst for a
    gradient. Source: control variates with a bias, docs/reference/math.md.
    """
    told = past.foreseen.isfinite() & past.luck.isfinite()
    weight = past.weight.double()[told]
    size = float(weight.sum())
    if size == 0:
        return 0.0
    rest, luck, foreseen = (x.double()[told] for x in (past.rest, past.luck, past.foreseen))

    def mean(x: Float[Tensor, " M"]) -> float:
        return float((weight * x).sum()) / size

    product = foreseen * luck
    bias = mean(product)
    doubt = math.sqrt(max(0.0, mean(product**2) - bias**2) / size)
    error = mean(luck**2) + rollouts * max(0.0, bias + DOUBT * doubt)
    return min(1.0, max(0.0, mean(rest * luck) / error)) if error > 0 else 0.0
