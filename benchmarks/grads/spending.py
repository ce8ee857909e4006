"""A budget of tokens for continuations, spent on the boundaries where they lower the noise most."""

from __future__ import annotations

import heapq

import numpy as np
import torch

from grads.step import Step, places
from rredcot_plugin.baselines.weights import FLOOR, gradient_norm_proxy

SHARES = (0.1, 0.3, 1.0)
"""Tokens of continuations / tokens of the step's rollouts."""

MOST = 8
"""Continuations of one boundary."""

FIT = {"": 0.0, "_and_fit": 1.0}
"""How many outcomes the fitted value counts for; any but 0 is biased by the fit's error, as ``credit_weight`` is."""


def spent_credit(
    step: Step, plain: torch.Tensor, fitted: torch.Tensor, rng: np.random.Generator
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """``spend_<share>``, (B, S): Â_k = (R + Σ_j R'_j + m V̂) / (1 + n + m) − b, with the rewards R' of n independent
    continuations from the end of segment k; and the tokens of the step with them, those of its rollouts = 1.

    ``plain``: R − b, (B, S); ``fitted``: V̂ (B, S) of where each segment starts. With m = 0 the gradient stays exact, since R
    and R' have the same expectation after segment k and n depends on the prefix (and, by the common budget, on
    the other rollouts). Empty without a pool.
    """
    if not step.pool.size:
        return {}, {}
    after, exists = _of_next(fitted).clamp(0, 1), _of_next(step.segments.exists)
    cost, rolled = _tokens_left(step), float(step.segments.lengths.sum())
    benefit = (gradient_norm_proxy(step.rows.rollouts, step.segments) + FLOOR) * after * (1 - after)
    known, states, outcome = _mean_by_place(cost, exists), _states_after(step), step.outcomes[:, None]
    credits, tokens = {}, {}
    for share in SHARES:
        number = allocate(
            benefit[exists].numpy(), known[exists].numpy(), share * rolled, min(MOST, step.pool.size)
        )
        n, rewarded = torch.zeros(exists.shape), torch.zeros(exists.shape)
        n[exists] = torch.from_numpy(number).float()
        rewarded[exists] = torch.from_numpy(step.pool.rewards(states, number, rng)).float()
        spent = 1 + float((n * cost).sum()) / rolled
        for name, m in FIT.items():
            expected = (outcome + rewarded + m * after) / (1 + n + m)
            credits[f"spend_{share:g}{name}"] = plain + torch.where(exists, expected - outcome, 0.0)
            tokens[f"spend_{share:g}{name}"] = spent
    return credits, tokens


def allocate(benefit: np.ndarray, cost: np.ndarray, budget: float, most: int) -> np.ndarray:
    """How many continuations each boundary gets, at most ``most``, so that Σ benefit / (1 + n) is least: always the next
    one that lowers it most for its tokens, while the budget lasts."""
    number = np.zeros(len(benefit), dtype=np.int64)
    gains = [(-gain, i) for i, gain in enumerate((benefit / cost / 2).tolist())]
    heapq.heapify(gains)
    while gains and budget > 0:
        gain, i = heapq.heappop(gains)
        number[i] += 1
        budget -= float(cost[i])
        if number[i] < most:
            heapq.heappush(gains, (gain * number[i] / (number[i] + 2), i))
    return number


def _of_next(table: torch.Tensor) -> torch.Tensor:
    """Of the segment that follows; 0 or False after the last."""
    return torch.nn.functional.pad(table[:, 1:], (0, 1))


def _tokens_left(step: Step) -> torch.Tensor:
    """Tokens after each segment in its own trace, (B, S): a continuation's length has the same distribution."""
    lengths = step.segments.lengths.float()
    return lengths.sum(1, keepdim=True) - lengths.cumsum(1)


def _mean_by_place(table: torch.Tensor, exists: torch.Tensor) -> torch.Tensor:
    """Mean over the rows of each column: what is known of a trace's length before it is written, at least a token."""
    mean = torch.where(exists, table, 0.0).sum(0) / exists.sum(0).clamp(min=1)
    return mean.clamp(min=1).expand(table.shape)


def _states_after(step: Step) -> list[tuple[int, ...]]:
    """The state after every segment that another follows, row by row."""
    number = step.segments.exists.nonzero()[:, 1].tolist()
    return [state for state, k in zip(places(step), number, strict=True) if k > 0]
