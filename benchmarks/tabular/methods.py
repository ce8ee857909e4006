"""The ways of giving credit that are compared, each a table of advantages of one prompt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tabular.credit import group_table, own_table
from tabular.prompts import Prompt
from tabular.value_functions import asked_too_early, graded, sampled, shrunk

LAMBDAS = (0.0, 0.5, 0.9, 0.95, 1.0)
QUALITIES = (0.9, 0.7, 0.5)
NOISE_SEED = 1

Method = Callable[[Prompt], torch.Tensor]
"""(D, G or 1, M, T) advantages, see ``moments.group_moments``."""


def methods(size: int, draws: int) -> dict[str, Method]:
    """Name → method. ``draws`` of what Monte-Carlo values depend on; everything else is enumerated."""
    return {**without_values(size), **with_values(), **with_probes(size), **weighted(size), **monte_carlo(draws)}


def without_values(size: int) -> dict[str, Method]:
    """Baselines of the whole trace; ``prompt_value`` is E[R] itself, what a group mean of any size comes to."""
    return {
        "grpo": lambda p: group_table(p, {"scale": "group_std"}, size, whole=True),
        "grpo_without_std": lambda p: group_table(p, {}, size, whole=True),
        "leave_one_out": lambda p: group_table(p, {}, size),
        "prompt_value": lambda p: own_table(p, {}, torch.full_like(p.values, p.success)[None]),
    }


def with_values() -> dict[str, Method]:
    """Values of the prefix alone: exact, of graded quality, and those after a regression to the mean."""
    functions: dict[str, Callable[[Prompt], torch.Tensor]] = {"exact": lambda p: p.values}
    for quality in QUALITIES:
        functions[f"pearson_{quality}"] = lambda p, q=quality: graded(p, q, NOISE_SEED)
        functions[f"shrunk_{quality}"] = lambda p, q=quality: shrunk(p, q, NOISE_SEED)
    return {
        f"{name}_lam_{lam:g}": lambda p, v=function, lam=lam: own_table(p, {"lam": lam}, v(p)[None])
        for name, function in functions.items()
        for lam in LAMBDAS
    }


def with_probes(size: int) -> dict[str, Method]:
    """``support``, uncalibrated: told the true probability of the right answer, or asked too early for it."""
    asked = {"support_true": lambda p: p.values, "support_early": asked_too_early}
    return {
        f"{name}_lam_{lam:g}": lambda p, a=answer, lam=lam: group_table(p, {"lam": lam}, size, answer_now=a(p))
        for name, answer in asked.items()
        for lam in (0.0, 0.9, 1.0)
    }


def weighted(size: int) -> dict[str, Method]:
    """``mode: weighted``, the multiplicative form."""
    options: dict[str, Any] = {"mode": "weighted", "scale": "group_std"}
    return {
        "weighted_exact": lambda p: group_table(p, options, size, p.values),
        "weighted_pearson_0.7": lambda p: group_table(p, options, size, graded(p, 0.7, NOISE_SEED)),
        "weighted_support_early": lambda p: group_table(p, options, size, answer_now=asked_too_early(p)),
    }


def monte_carlo(draws: int) -> dict[str, Method]:
    """Values from 1 and 4 continuations of every state."""
    options = {"value_estimator": "monte_carlo", "prior_from_group": False}
    return {
        f"monte_carlo_{n}_lam_{lam:g}": lambda p, n=n, lam=lam: own_table(
            p, {**options, "lam": lam}, sampled(p, n, draws, NOISE_SEED), "monte_carlo"
        )
        for n in (1, 4)
        for lam in (0.0, 0.9, 1.0)
    }
