"""A tree of choices and softmax policies on it, many at once: every expectation is a sum over its traces.

N policies share one tree with M traces of T choices and S inner states; W is the widest choice. A trace is one
choice a step; a state is the choices made so far.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import torch

NEVER = -1e9
"""Logit of a choice that a state does not have."""


@dataclass(frozen=True, eq=False)
class Tree:
    """``choices[t]`` is the number of choices at step t."""

    choices: tuple[int, ...]

    @cached_property
    def traces(self) -> torch.Tensor:
        """(M, T)"""
        return torch.tensor(list(itertools.product(*map(range, self.choices))))

    @cached_property
    def states(self) -> dict[tuple[int, ...], int]:
        """Number of each state, by the choices made so far, in the order in which the traces come by."""
        found: dict[tuple[int, ...], int] = {}
        for trace in self.traces.tolist():
            for step in range(len(trace)):
                found.setdefault(tuple(trace[:step]), len(found))
        return found

    @cached_property
    def state_of(self) -> torch.Tensor:
        """(M, T): number of the state before each choice."""
        steps = range(len(self.choices))
        return torch.tensor([[self.states[tuple(t[:step])] for step in steps] for t in self.traces.tolist()])

    @cached_property
    def num_states(self) -> int:
        return len(self.states)

    @cached_property
    def widths(self) -> torch.Tensor:
        """(S,): choices of each state."""
        found = torch.zeros(self.num_states, dtype=torch.int64)
        found[self.state_of] = torch.tensor(self.choices).expand_as(self.state_of)
        return found

    @cached_property
    def cell(self) -> torch.Tensor:
        """(M, T): which entry of the flattened (S, W) logits each choice is."""
        return self.state_of * max(self.choices) + self.traces

    def log_policy(self, logits: torch.Tensor) -> torch.Tensor:
        """(N, S, W) of (N, S, W)."""
        missing = torch.arange(max(self.choices)) >= self.widths[:, None]
        return torch.where(missing, NEVER, logits).log_softmax(dim=-1)

    def log_probs(self, logits: torch.Tensor) -> torch.Tensor:
        """(N, M, T): log-probability of every choice."""
        return self.log_policy(logits).flatten(1)[:, self.cell]

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """(N, M)"""
        return self.log_probs(logits).sum(dim=2).exp()

    def per_state(self, weights: torch.Tensor) -> torch.Tensor:
        """(N, S): sum of (N, M) over the traces through each state."""
        total = weights.new_zeros(len(weights), self.num_states)
        for step in range(len(self.choices)):
            total.index_add_(1, self.state_of[:, step], weights)
        return total

    def values(self, logits: torch.Tensor, rewards: torch.Tensor) -> torch.Tensor:
        """(N, M, T): V(s) = E[R | s] of the state before each choice, for rewards (N, M)."""
        mass = self.probabilities(logits)
        reach = self.per_state(mass).clamp(min=1e-300)
        return (self.per_state(mass * rewards) / reach)[:, self.state_of]

    def gradient(self, logits: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """(N, S, W): Σ_traces Σ_t w_t ∇log π(o_t | s_t), for weights (N, M, T)."""
        flat = weights.new_zeros(len(weights), self.num_states * max(self.choices))
        for step in range(len(self.choices)):
            flat.index_add_(1, self.cell[:, step], weights[:, :, step])
        taken = flat.view(len(weights), self.num_states, -1)
        return taken - self.log_policy(logits).exp() * taken.sum(dim=2, keepdim=True)

    def exact_gradient(self, logits: torch.Tensor, rewards: torch.Tensor) -> torch.Tensor:
        """(N, S, W): ∇ E[R], by enumeration."""
        weights = self.probabilities(logits) * rewards
        return self.gradient(logits, weights[:, :, None].expand(-1, -1, len(self.choices)))
