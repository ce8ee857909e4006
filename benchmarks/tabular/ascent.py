"""Following an expected gradient, without sampling noise, until nothing moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tabular.policy import Tree
from tabular.prompts import Prompt

Credit = Callable[[torch.Tensor, int], torch.Tensor]
"""Logits (N, S, W) and the step → advantages (N, M, T)."""


@dataclass(frozen=True)
class Ascent:
    """``rewards`` (N, steps + 1): E[R] before every step and after the last; ``logits`` (N, S, W) at the end."""

    rewards: torch.Tensor
    logits: torch.Tensor


def stacked(prompts: list[Prompt]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (N, S, W) and rewards (N, M) of prompts on the same tree."""
    return torch.stack([p.logits for p in prompts]), torch.stack([p.rewards for p in prompts])


def ascend(
    tree: Tree, logits: torch.Tensor, rewards: torch.Tensor, credit: Credit, steps: int, rate: float
) -> Ascent:
    """Adam on logits ← logits + Σ_τ p(τ) Σ_t Â_t ∇log π, the expectation over all traces."""
    logits = logits.clone()
    optimizer = torch.optim.Adam([logits], lr=rate, maximize=True)
    seen = []
    for step in range(steps):
        mass = tree.probabilities(logits)
        seen.append((mass * rewards).sum(dim=1))
        logits.grad = tree.gradient(logits, mass[:, :, None] * credit(logits, step))
        optimizer.step()
    seen.append((tree.probabilities(logits) * rewards).sum(dim=1))
    return Ascent(torch.stack(seen, dim=1), logits)


def trained_until(tree: Tree, logits: torch.Tensor, rewards: torch.Tensor, success: float) -> torch.Tensor:
    """Logits after exact gradient ascent, each policy stopped where it solves its prompt this often."""
    logits = logits.clone()
    for _ in range(2000):
        going = (tree.probabilities(logits) * rewards).sum(dim=1) < success
        if not going.any():
            break
        logits += going[:, None, None] * tree.exact_gradient(logits, rewards)
    return logits
