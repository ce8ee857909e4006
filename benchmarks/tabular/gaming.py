"""When λ < 1 climbs V̂ instead of R: values that read the policy's own confidence, and what holds against it.

V̂(s) = a + b · mean log-probability of the choices so far, on [0, 1]: what a calibration finds on features that the
policy can raise. a and b are the least-squares fit of V under the policy at the start; confidence itself follows
the policy from step to step. Starts are either ``cold`` (random, where confidence says little about V) or ``warm``
(trained to E[R] = 0.5, where it says more).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch

import rredcot_plugin as rr
from rredcot_plugin.groups import GroupStats
from tabular.ascent import Ascent, ascend, stacked, trained_until
from tabular.credit import stacked_advantages
from tabular.policy import Tree
from tabular.prompts import Prompt

CLIP = 0.05
"""Largest δ of a segment under the guard ``clipped``; the rest of the sum goes to the answer."""

LAG = 10
"""Steps by which the guard ``lagged`` lags."""

WARM = 0.5


@dataclass(frozen=True)
class ClipDeltas:
    """δ cut to ±``at``; the pipeline hands what is missing to the answer segment."""

    at: float = CLIP

    def __call__(
        self, deltas: torch.Tensor, segments: rr.Segments, outcome: torch.Tensor, stats: GroupStats
    ) -> torch.Tensor:
        return deltas.clamp(-self.at, self.at)


@dataclass(frozen=True)
class Case:
    """``source`` of V̂: none, exact, confidence, lagged, frozen (of the policy at the start), refitted."""

    source: str
    lam: float
    options: dict[str, Any] = field(default_factory=dict)
    rewarded: bool = True


CASES = {
    "no_values_lam_1": Case("none", 1.0),
    "exact_lam_0": Case("exact", 0.0),
    "confidence_lam_1": Case("confidence", 1.0),
    "confidence_lam_0.95": Case("confidence", 0.95),
    "confidence_lam_0.9": Case("confidence", 0.9),
    "confidence_lam_0.5": Case("confidence", 0.5),
    "confidence_lam_0": Case("confidence", 0.0),
    "clipped_lam_0": Case("confidence", 0.0, {"shapers": (f"{__name__}:ClipDeltas",)}),
    "lagged_lam_0": Case("lagged", 0.0),
    "frozen_lam_0": Case("frozen", 0.0),
    "refitted_lam_0": Case("refitted", 0.0),
    "refitted_lam_0.9": Case("refitted", 0.9),
    "no_reward_lam_0": Case("confidence", 0.0, rewarded=False),
}
"""Name → case; ``no_reward`` is the control whose credit knows nothing of R."""


@dataclass(frozen=True)
class Race:
    """What one case came to: the ascent, and E[V̂ of the last state] (N, steps) on the way."""

    ascent: Ascent
    believed: torch.Tensor


def confidence(tree: Tree, logits: torch.Tensor) -> torch.Tensor:
    """(N, M, T): mean log-probability of the choices before each state; 0 at the prompt."""
    chosen = tree.log_probs(logits)
    sums = chosen.cumsum(dim=2) - chosen
    return sums / torch.arange(chosen.shape[2]).clamp(min=1)


def fit(
    tree: Tree, logits: torch.Tensor, rewards: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """a, b (N, 1, 1) of the least-squares line from confidence to V, and the correlation (N,)."""
    weight = tree.probabilities(logits)[:, :, None].expand(-1, -1, len(tree.choices) - 1)
    weight = weight / weight.sum(dim=(1, 2), keepdim=True)
    x, y = confidence(tree, logits)[:, :, 1:], tree.values(logits, rewards)[:, :, 1:]

    def mean(z: torch.Tensor) -> torch.Tensor:
        return (weight * z).sum(dim=(1, 2), keepdim=True)

    dx, dy = x - mean(x), y - mean(y)
    b = mean(dx * dy) / mean(dx * dx).clamp(min=1e-9)
    correlation = mean(dx * dy) / (mean(dx * dx) * mean(dy * dy)).clamp(min=1e-18).sqrt()
    return mean(y) - b * mean(x), b, correlation[:, 0, 0]


class Believed:
    """V̂ of the policy at hand, as a case wants it."""

    def __init__(self, tree: Tree, start: torch.Tensor, rewards: torch.Tensor, source: str) -> None:
        self.tree, self.start, self.rewards, self.source = tree, start, rewards, source
        self.line = fit(tree, start, rewards)[:2]
        self.past: deque[torch.Tensor] = deque(maxlen=LAG + 1)

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        if self.source == "none":
            return torch.zeros(*self.tree.log_probs(logits).shape, dtype=logits.dtype)
        if self.source == "exact":
            return self.tree.values(logits, self.rewards)
        self.past.append(logits.clone())
        seen = {"lagged": self.past[0], "frozen": self.start}.get(self.source, logits)
        a, b = fit(self.tree, logits, self.rewards)[:2] if self.source == "refitted" else self.line
        return (a + b * confidence(self.tree, seen)).clamp(0, 1)


def race(tree: Tree, start: torch.Tensor, rewards: torch.Tensor, case: Case, steps: int, rate: float) -> Race:
    """Ascend with the credit of one case."""
    values_of, believed = Believed(tree, start, rewards, case.source), []
    paid = rewards if case.rewarded else torch.zeros_like(rewards)
    options = {"lam": case.lam, **case.options}

    def credit(logits: torch.Tensor, step: int) -> torch.Tensor:
        values = values_of(logits)
        believed.append((tree.probabilities(logits) * values[:, :, -1]).sum(dim=1))
        return stacked_advantages(tree, paid, values, options)

    return Race(ascend(tree, start, rewards, credit, steps, rate), torch.stack(believed, dim=1))


def starts(prompts: list[Prompt]) -> dict[str, torch.Tensor]:
    """Logits (N, S, W) of either kind of start."""
    logits, rewards = stacked(prompts)
    return {"cold": logits, "warm": trained_until(prompts[0].tree, logits, rewards, WARM)}
