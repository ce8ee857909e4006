"""Logistic regressions with row weights, many at a time, by Newton's method."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

NEWTON_STEPS, HALVINGS, TOLERANCE = 50, 30, 1e-7
"""Of the fit: most steps, most halvings of one, and the largest slope of a solution."""

BLOCK = 1024
"""Rows whose products a Hessian sums at a time."""


def fit_logistic(
    features: Float[Tensor, "M F"],
    outcome: Float[Tensor, " M"],
    weights: Float[Tensor, "M K"],
    l2: float,
    offset: Float[Tensor, " M"] | None = None,
    start: Float[Tensor, "1 F_plus_1"] | None = None,
) -> Float[Tensor, "K F_plus_1"]:
    """K logistic regressions on the same rows, each with its own row weights, solved side by side.

    Minimises Σ_m w_mk·BCE(σ(z_mk·β_k + c_k + o_m), y_m) + l2/2·|β_k|² for every k (the intercept is free),
    where z are the features standardised with problem k's own weights: rows of weight 0 have no influence at
    all; o is the offset, 0 unless given. ``start`` are raw coefficients near the solution. Newton's method, each
    problem's step halved while it would climb: with two dozen parameters half a dozen passes over the rows solve
    it, where a quasi-Newton method takes several times as many (torch's L-BFGS, four times the seconds). Returns
    coefficients of the raw features, intercept last.
    """
    rows = torch.nn.functional.pad(features, (0, 1), value=1.0)
    to_raw = from_standardised(features, weights)
    ridge = torch.full((rows.shape[1],), float(l2), dtype=rows.dtype)
    ridge[-1] = 0.0
    at = torch.zeros(weights.shape[1], rows.shape[1], dtype=rows.dtype)
    if start is not None:
        at = torch.linalg.solve(to_raw, start.expand_as(at)[:, None], left=False)[:, 0]

    def look(at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss of every problem (K,), and the probability of every row (M, K)."""
        logits = rows @ (at[:, None] @ to_raw)[:, 0].T
        if offset is not None:
            logits += offset[:, None]
        # torch's own softplus takes four times as long
        losses = torch.exp(-logits.abs()).log1p_().add_(logits.clamp(min=0)).sub_(outcome[:, None] * logits)
        return losses.mul_(weights).sum(0) + 0.5 * (ridge * at**2).sum(1), logits.sigmoid_()

    loss, probability = look(at)
    curvature, before = torch.empty(0), 0.0
    for _ in range(NEWTON_STEPS):
        slope = ((probability - outcome[:, None]) * weights).T @ rows
        slope = (to_raw @ slope[:, :, None])[:, :, 0] + ridge * at
        steepest = float(slope.abs().max())
        if not steepest >= TOLERANCE:  # a NaN too
            break
        if steepest > before / 10:  # else steps are good enough with the curvature at hand: it costs most
            curvature = curvature_of(rows, weights * probability * (1 - probability), to_raw, ridge)
        before = steepest
        step = torch.linalg.solve(curvature, slope)
        expected = (slope * step).sum(1)
        length = torch.ones_like(loss)
        for _ in range(HALVINGS):
            further = at - length[:, None] * step
            lower, probability = look(further)
            climbs = lower > loss - 1e-4 * length * expected + 1e-12 * loss.abs()
            if not climbs.any():
                break
            length = torch.where(climbs, length / 2, length)
        at, loss = further, lower
    return (at[:, None] @ to_raw)[:, 0]


def from_standardised(
    features: Float[Tensor, "M F"], weights: Float[Tensor, "M K"]
) -> Float[Tensor, "K F_plus_1 F_plus_1"]:
    """For every problem the matrix that makes raw coefficients of those of its standardised features, as rows.

    A feature whose variance is no more than what rounding leaves of its square is constant, and stays as it is.
    """
    share = weights / weights.sum(0).clamp(min=1e-12)
    center = share.T @ features
    variance = share.T @ features**2 - center**2
    scale = torch.where(variance > 1e-12 * (1 + center**2), variance.clamp(min=0).sqrt(), 1.0)
    to_raw = torch.diag_embed(torch.nn.functional.pad(1 / scale, (0, 1), value=1.0))
    to_raw[:, :-1, -1] = -center / scale
    return to_raw


def curvature_of(
    rows: Float[Tensor, "M F_plus_1"],
    weights: Float[Tensor, "M K"],
    to_raw: Float[Tensor, "K F_plus_1 F_plus_1"],
    ridge: Float[Tensor, " F_plus_1"],
) -> Float[Tensor, "K F_plus_1 F_plus_1"]:
    """Hessians in standardised coordinates; a little more on the diagonal, where nothing in the rows tells."""
    problems, width = weights.shape[1], rows.shape[1]
    products = rows.new_zeros(problems * width, width)
    for part, own in zip(
        rows.split(BLOCK), weights.split(BLOCK), strict=True
    ):  # so that temporaries stay in the cache
        products.addmm_((own[:, :, None] * part[:, None, :]).flatten(1).T, part)
    found = to_raw @ products.view(problems, width, width) @ to_raw.mT
    found.diagonal(dim1=1, dim2=2).add_(ridge + 1e-9)
    return found
