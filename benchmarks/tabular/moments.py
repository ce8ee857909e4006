"""Mean and variance of the gradient of one group, summed over every group that can be drawn."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tabular.prompts import Prompt


@dataclass(frozen=True)
class Moments:
    """``mean`` (S·W,) of a group's gradient, and the trace of its covariance.

    ``error`` is the standard error of the mean as a norm, sqrt(tr Cov of the mean): 0 where nothing was sampled.
    """

    mean: torch.Tensor
    trace: float
    error: float = 0.0

    def bias(self, exact: torch.Tensor) -> float:
        """‖E g − ∇‖ / ‖∇‖, without what sampling adds to the squared norm. A gradient twice as long has bias 1."""
        square = float((self.mean - exact).square().sum()) - self.error**2
        return max(0.0, square) ** 0.5 / float(exact.norm())

    def cosine(self, exact: torch.Tensor) -> float:
        """Between E g and ∇."""
        square = float(self.mean.square().sum()) - self.error**2
        along = float(self.mean @ exact / exact.norm())
        return max(-1.0, min(1.0, along / max(square, along**2) ** 0.5))

    def noise(self, exact: torch.Tensor) -> float:
        """tr Cov(g) / (E g · ∇/‖∇‖)²: variance over signal, only what points along the true gradient counting."""
        return self.trace / float(self.mean @ exact / exact.norm()) ** 2


def group_moments(prompt: Prompt, table: torch.Tensor, size: int) -> Moments:
    """Moments of g = 1/G Σ_i Σ_t Â_it ∇log π(o_it | s_it).

    ``table`` (D, G or 1, M, T) holds the advantages of every trace beside m rewarded siblings; D draws of what is
    random beyond the traces, independent between rollouts.
    With q = P(R=1): E g = Σ_m Bin(m; G−1, q) Σ_τ p(τ) g(τ, m), and two rollouts of a group meet through their
    rewards alone: E[g_1·g_2] = Σ_m Bin(m; G−2, q) Σ_{r,r'} U(r, r'+m)·U(r', r+m), U(r, n) the part of
    Σ_τ p(τ) g(τ, n) with R(τ) = r.
    """
    own = binomial(size - 1, prompt.success)
    average = table.mean(dim=0).expand(size, -1, -1)
    classes = torch.stack([1 - prompt.rewards, prompt.rewards])
    weights = (classes * prompt.probabilities)[:, None, :, None] * average
    U = prompt.tree.gradient(prompt.logits[None], weights.flatten(0, 1)).flatten(1).view(2, size, -1)
    mean = (own[:, None] * U.sum(dim=0)).sum(dim=0)
    policy = prompt.tree.log_policy(prompt.logits[None])[0].exp()
    chosen = prompt.log_probs.exp()
    norms = 1 - 2 * chosen + policy.square().sum(dim=1)[prompt.tree.state_of]
    squares = (table.square().mean(dim=0).expand(size, -1, -1) * norms).sum(dim=2)
    alone = float((own[:, None] * squares * prompt.probabilities).sum())
    together = sum(
        float(weight * (U[r, other + m] * U[other, r + m]).sum())
        for m, weight in enumerate(binomial(size - 2, prompt.success))
        for r in (0, 1)
        for other in (0, 1)
    )
    trace = (alone + (size - 1) * together) / size - float(mean.square().sum())
    return Moments(mean, trace, error_of_draws(prompt, table))


def error_of_draws(prompt: Prompt, table: torch.Tensor) -> float:
    """Standard error, as a norm, that D draws leave in the mean; 0 where there is one."""
    if len(table) == 1:
        return 0.0
    per_draw = prompt.tree.gradient(prompt.logits[None], prompt.probabilities[:, None] * table.mean(dim=1))
    return (float(per_draw.flatten(1).var(dim=0).sum()) / len(table)) ** 0.5


def binomial(count: int, probability: float | torch.Tensor) -> torch.Tensor:
    """(..., count + 1) of (...)."""
    probability = torch.as_tensor(probability, dtype=torch.float64)[..., None]
    numbers = torch.arange(count + 1.0, dtype=torch.float64)
    return torch.distributions.Binomial(count, probability).log_prob(numbers).exp()
