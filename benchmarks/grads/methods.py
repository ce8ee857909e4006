"""Every way of giving credit that the package has, and what it is compared with: a number for each segment of a step."""

from __future__ import annotations

from typing import Any

import torch
from lab.grpo import grpo_advantages

from grads.step import Step, config
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.types import Segments

LAMBDAS = (0.0, 0.5, 0.9, 0.95, 1.0)


def methods(step: Step, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """(B, S) of every method whose values are there."""
    found = {
        "grpo": verl_grpo(step, deviation=True),
        "grpo_no_std": verl_grpo(step, deviation=False),
        "leave_one_out": flat(step, step.outcomes - step.stats.others_mean),
        "prompt_mean": flat(step, step.outcomes - step.prompt_mean),
        "weighted": credit_of(step, values["value"], mode="weighted"),
        "default": credit_of(step, values["default"]),
        "default_unscaled": credit_of(step, values["default"], scale="none"),
        "low_floor": credit_of(step, values["low_floor"], scale="none"),
    }
    for lam in LAMBDAS:
        found[f"value_lam_{lam:g}"] = credit_of(step, values["value"], lam=lam)
        found[f"calibrated_lam_{lam:g}"] = credit_of(step, values["value"], lam=lam, scale="none")
    for name in [name for name in ("monte_carlo_4", "monte_carlo_32", "true", "siblings") if name in values]:
        for lam in (0.0, 0.9, 1.0):
            found[f"{name}_lam_{lam:g}"] = credit_of(step, values[name], lam=lam, scale="none")
    for name in ("support", "confidence", "trees", "attention", "gradient"):
        for lam in (0.0, 1.0):
            found[f"{name}_lam_{lam:g}"] = credit_of(step, values[name], lam=lam, scale="none")
    return found


def credit_of(step: Step, values: torch.Tensor, **options: Any) -> torch.Tensor:
    """The package's own advantages for given values."""
    credit = assign_credit(step.rows.rollouts, config(**options), segments=step.segments, values=values)
    return per_segment(credit.advantages, step.segments)


def per_segment(advantages: torch.Tensor, segments: Segments) -> torch.Tensor:
    """(B, S) of (B, T): the advantage of a segment's first token; all its tokens have it."""
    at = segments.starts.clamp(max=advantages.shape[1] - 1)
    return torch.where(segments.exists, advantages.gather(1, at), 0.0)


def verl_grpo(step: Step, *, deviation: bool) -> torch.Tensor:
    return per_segment(grpo_advantages(step.rows.rollouts, deviation=deviation), step.segments)


def flat(step: Step, advantage: torch.Tensor) -> torch.Tensor:
    return torch.where(step.segments.exists, advantage[:, None], 0.0)
