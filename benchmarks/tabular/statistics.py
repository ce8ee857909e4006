"""Intervals over prompts, and paired tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import false_discovery_control, wilcoxon


def mean_interval(values: Sequence[float]) -> dict[str, float]:
    """Mean and its bootstrap 95% interval."""
    samples = np.random.default_rng(0).choice(np.asarray(values), size=(2000, len(values)))
    low, high = np.quantile(samples.mean(axis=1), [0.025, 0.975])
    return {"value": float(np.mean(values)), "low": float(low), "high": float(high)}


def paired(values: Sequence[float], reference: Sequence[float], margin: float = 1e-6) -> dict[str, float]:
    """Mean difference with its bootstrap 95% interval, and Wilcoxon's signed-rank p-value (two-sided; 1 where no
    pair differs). A pair that differs by less than ``margin`` counts as equal."""
    difference = np.asarray(values) - np.asarray(reference)
    difference = np.where(np.abs(difference) < margin, 0.0, difference)
    p = float(wilcoxon(difference, zero_method="zsplit").pvalue) if difference.any() else 1.0
    return mean_interval(difference) | {"p": p}


def with_false_discovery_rate(tests: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """The same with ``q``: p after Benjamini and Hochberg's correction for as many tests."""
    corrected = false_discovery_control([test["p"] for test in tests.values()])
    return {name: test | {"q": float(q)} for (name, test), q in zip(tests.items(), corrected, strict=True)}
