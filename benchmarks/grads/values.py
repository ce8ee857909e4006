"""How wrong values are, and how much of it is the same whenever a state comes back: λ < 1 is biased by that part only."""

from __future__ import annotations

import numpy as np

RARE, SURE = 0.1, 0.9


def value_errors(places: np.ndarray) -> dict[str, dict[str, float]]:
    """Of rows (step, state, V̂, V by Monte Carlo, V̂ from siblings, R, V̂ with trees); numbers without intervals.

    ``systematic``: root mean square of E[V̂ | state] − V over the states that came at least 4 times, weighted by how
    often; ``error_if_lost``/``open``/``sure``: mean of V̂ − V where V is under .1, between, above .9. Empty without rows.
    """
    if not len(places):
        return {}
    _, state, fitted, truth, siblings, _, trees = places.T
    found: dict[str, float] = {}
    for name, values in (("default", fitted), ("trees", trees), ("siblings", siblings)):
        error = values - truth
        number = np.bincount(state.astype(int))
        mean = np.bincount(state.astype(int), error) / np.maximum(number, 1)
        often = number >= 4
        found |= {
            f"value_pearson_{name}": float(np.corrcoef(values, truth)[0, 1]),
            f"value_rmse_{name}": float(np.sqrt(np.mean(error**2))),
            f"value_systematic_{name}": float(np.sqrt((number * mean**2)[often].sum() / number[often].sum())),
            f"value_error_if_lost_{name}": _mean(error[truth < RARE]),
            f"value_error_open_{name}": _mean(error[(truth >= RARE) & (truth <= SURE)]),
            f"value_error_if_sure_{name}": _mean(error[truth > SURE]),
        }
    return {name: {"value": x, "low": x, "high": x} for name, x in found.items()}


def _mean(numbers: np.ndarray) -> float:
    return float(numbers.mean()) if len(numbers) else 0.0
