"""How well estimates agree with references, with bootstrap intervals over prompts. NumPy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from scipy.stats import rankdata

RESAMPLES = 1000
Interval = dict[str, float]


@dataclass(frozen=True)
class Pairs:
    """Estimates and references of M places, with the prompt of each; one entry a place."""

    estimate: np.ndarray
    reference: np.ndarray
    prompt: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[Pairs]) -> Pairs:
        """All places of the parts, whose prompts must be named apart."""
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)))

    def where(self, chosen: np.ndarray) -> Pairs:
        return Pairs(self.estimate[chosen], self.reference[chosen], self.prompt[chosen])

    @property
    def ranked(self) -> Pairs:
        """Ranks instead of numbers. Resamples keep the ranks of the whole, which hardly differ from their own."""
        return Pairs(rankdata(self.estimate), rankdata(self.reference), self.prompt)


def draws(prompts: int, seed: int = 0) -> np.ndarray:
    """How often each prompt occurs, (RESAMPLES + 1, prompts); the first row is the sample itself."""
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(prompts, np.full(prompts, 1 / prompts), size=RESAMPLES)
    return np.concatenate([np.ones((1, prompts), dtype=np.int64), counts])


def _interval(numbers: np.ndarray) -> Interval:
    """Value of the sample and the 95% interval of the resamples; NaN where the sample has no number.

    Resamples without a number (no variance in them) are left out of the interval; ``value`` never is.
    """
    known = numbers[1:][np.isfinite(numbers[1:])]
    low, high = np.quantile(known, [0.025, 0.975]) if len(known) else (np.nan, np.nan)
    return {"value": float(numbers[0]), "low": float(low), "high": float(high)}


def _per_prompt(prompt: np.ndarray, columns: list[np.ndarray]) -> np.ndarray:
    """Sums of the columns over each prompt, (prompts, columns)."""
    _, index = np.unique(prompt, return_inverse=True)
    return np.stack([np.bincount(index, weights=column) for column in columns], axis=1)


def pearson(pairs: Pairs) -> Interval:
    """Correlation; 0 for a constant estimate, which explains nothing.

    >>> x = np.arange(6.0)
    >>> round(pearson(Pairs(2 * x, x, np.array([0, 0, 1, 1, 2, 2])))["value"], 6)
    1.0
    """
    x, y = (v - v.mean() if len(v) else v for v in (pairs.estimate.astype(float), pairs.reference.astype(float)))
    if len(x) < 3 or np.allclose(y, 0):
        return _interval(np.full(2, np.nan))
    if np.allclose(x, 0, atol=1e-9):
        return {"value": 0.0, "low": 0.0, "high": 0.0}
    sums = _per_prompt(pairs.prompt, [np.ones_like(x), x, y, x * x, y * y, x * y])
    n, sx, sy, sxx, syy, sxy = (draws(len(sums)) @ sums).T
    with np.errstate(invalid="ignore", divide="ignore"):
        return _interval((sxy - sx * sy / n) / np.sqrt((sxx - sx**2 / n) * (syy - sy**2 / n)))


def spearman(pairs: Pairs) -> Interval:
    return pearson(pairs.ranked)


def rmse(pairs: Pairs) -> Interval:
    """Root of the mean squared difference, noise of the reference included."""
    if not len(pairs.estimate):
        return _interval(np.full(2, np.nan))
    sums = _per_prompt(pairs.prompt, [np.ones(len(pairs.prompt)), (pairs.estimate - pairs.reference) ** 2])
    n, total = (draws(len(sums)) @ sums).T
    return _interval(np.sqrt(total / n))


def mean(numbers: np.ndarray, prompt: np.ndarray) -> Interval:
    if not len(numbers):
        return _interval(np.full(2, np.nan))
    sums = _per_prompt(prompt, [np.ones(len(prompt)), numbers])
    n, total = (draws(len(sums)) @ sums).T
    return _interval(total / n)


def blame(deltas: np.ndarray, mistake: int) -> float:
    """Share of the other segments whose credit is above that of the segment with the mistake; ties are half.

    >>> blame(np.array([0.1, -0.6, 0.1]), 1), blame(np.zeros(3), 1)
    (1.0, 0.5)
    """
    others = np.delete(deltas, mistake)
    return float(np.mean((others > deltas[mistake]) + 0.5 * (others == deltas[mistake])))


def ceiling(reference: np.ndarray, noise: np.ndarray) -> float:
    """Correlation that the true values would reach: √(1 − mean squared standard error / variance)."""
    spread = float(np.var(reference))
    return float(np.sqrt(max(0.0, 1 - float(np.mean(noise)) / spread))) if spread > 0 else float("nan")
