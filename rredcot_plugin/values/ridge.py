"""Ridge regressions with row weights, many at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rredcot_plugin.values.logistic import curvature_of, from_standardised

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def fit_ridge(
    features: Float[Tensor, "M F"], target: Float[Tensor, " M"], weights: Float[Tensor, "M K"], l2: float
) -> Float[Tensor, "K F_plus_1"]:
    """K ridge regressions on the same rows, each with its own row weights.

    Minimises Σ_m w_mk·(z_mk·β_k + c_k − y_m)²/2 + l2/2·|β_k|² for every k (the intercept is free), where z are the
    features standardised with problem k's own weights: rows of weight 0 have no influence. Returns coefficients of the
    raw features, intercept last.
    """
    rows = torch.nn.functional.pad(features, (0, 1), value=1.0)
    to_raw = from_standardised(features, weights)
    ridge = torch.full((rows.shape[1],), float(l2), dtype=rows.dtype)
    ridge[-1] = 0.0
    slope = (to_raw @ ((weights * target[:, None]).T @ rows)[:, :, None])[:, :, 0]
    at = torch.linalg.solve(curvature_of(rows, weights, to_raw, ridge), slope)
    found: torch.Tensor = (at[:, None] @ to_raw)[:, 0]
    return found
