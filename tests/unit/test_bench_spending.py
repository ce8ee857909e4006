"""Continuations bought with a budget of tokens: to which boundaries they go."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from grads.spending import allocate


def noise(benefit: np.ndarray, number: tuple[int, ...] | np.ndarray) -> float:
    return float((benefit / (1 + np.array(number))).sum())


def test_the_budget_goes_where_it_lowers_the_noise_most() -> None:
    """With equal costs, the best of all ways to spend it."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        benefit, budget = rng.random(4), int(rng.integers(0, 9))
        number = allocate(benefit, np.ones(4), float(budget), 3)
        ways = (way for way in itertools.product(range(4), repeat=4) if sum(way) <= budget)
        assert noise(benefit, number) == pytest.approx(min(noise(benefit, way) for way in ways))
        assert number.sum() == min(budget, 12) and number.max() <= 3


def test_an_expensive_boundary_gets_less() -> None:
    number = allocate(np.ones(2), np.array([1.0, 40.0]), 5.0, 8)
    assert number.tolist() == [5, 0]
    assert allocate(np.ones(2), np.array([1.0, 40.0]), 0.0, 8).tolist() == [0, 0]
    assert allocate(np.zeros(0), np.zeros(0), 5.0, 8).tolist() == []
