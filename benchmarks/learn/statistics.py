"""Intervals, interquartile means and probabilities of improvement, all by SciPy.

``rliable`` would give the same numbers, but needs arch, statsmodels and seaborn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy import stats

RESAMPLES = 1000
Interval = dict[str, float]
Statistic = Callable[..., float]


def interval(statistic: Statistic, counts: Sequence[int], centred: bool = False) -> Interval:
    """Value and 95% bootstrap interval of ``statistic(rows_1, rows_2, …)``.

    Sample i has ``counts[i]`` runs; the statistic gets the numbers of the rows that were drawn from each, every
    sample drawn on its own (stratified). ``centred`` moves the resamples so that their median is the value: a
    deviation between resampled runs is too small, some runs being drawn twice. NaN bounds where a sample has
    fewer than two runs.
    """
    samples = [np.arange(count) for count in counts]
    value = float(statistic(*samples))
    if min(counts) < 2 or not np.isfinite(value):
        return {"value": value, "low": np.nan, "high": np.nan}
    found = stats.bootstrap(
        samples,
        lambda *rows: statistic(*(row.astype(int) for row in rows)),
        n_resamples=RESAMPLES,
        vectorized=False,
        paired=False,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    shift = value - float(np.median(found.bootstrap_distribution)) if centred else 0.0
    low, high = found.confidence_interval
    return {"value": value, "low": float(low) + shift, "high": float(high) + shift}


def iqm(numbers: np.ndarray) -> float:
    """Interquartile mean: the mean without the lowest and the highest quarter.

    >>> iqm(np.array([0.0, 1.0, 2.0, 300.0]))
    1.5
    """
    return float(stats.trim_mean(numbers, 0.25)) if len(numbers) else np.nan


def iqm_interval(samples: Sequence[np.ndarray]) -> Interval:
    """Interquartile mean over all runs of all samples (families), resampled within each."""
    return interval(
        lambda *rows: iqm(np.concatenate([x[row] for x, row in zip(samples, rows, strict=True)])),
        [len(x) for x in samples],
    )


def paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Interval:
    """Mean of ours − theirs over the seeds that both have, which share questions and the first rollouts; 95% of
    Student's t. NaN bounds under two common seeds.

    >>> paired_difference({1: 3.0, 2: 5.0, 7: 0.0}, {1: 1.0, 2: 3.0})
    {'value': 2.0, 'low': 2.0, 'high': 2.0}
    """
    gaps = np.array([ours[seed] - theirs[seed] for seed in ours if seed in theirs])
    value = float(gaps.mean()) if len(gaps) else np.nan
    if len(gaps) < 2:
        return {"value": value, "low": np.nan, "high": np.nan}
    error = float(stats.sem(gaps)) * float(stats.t.ppf(0.975, len(gaps) - 1))
    return {"value": value, "low": value - error, "high": value + error}


def improvement(better: np.ndarray, than: np.ndarray) -> float:
    """Probability that a run of the first is above one of the second, ties half: Mann-Whitney's U / (n·m).

    >>> improvement(np.array([1.0, 3.0]), np.array([2.0, 0.0]))
    0.75
    """
    if not len(better) or not len(than):
        return np.nan
    return float(stats.mannwhitneyu(better, than).statistic / (len(better) * len(than)))


def improvement_interval(better: Sequence[np.ndarray], than: Sequence[np.ndarray]) -> Interval:
    """Mean over samples (families) of the probability of improvement; both sides resampled."""
    half = len(better)

    def statistic(*rows: np.ndarray) -> float:
        pairs = zip(better, than, rows[:half], rows[half:], strict=True)
        return float(np.mean([improvement(x[i], y[j]) for x, y, i, j in pairs]))

    return interval(statistic, [len(x) for x in (*better, *than)])


def mean_band(curves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """95% bootstrap interval (E,), (E,) of the mean over the runs of ``curves`` (n, E), point by point."""
    found = stats.bootstrap(
        (curves,), np.mean, axis=0, n_resamples=RESAMPLES, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    return found.low, found.high
