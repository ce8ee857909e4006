"""A softmax policy over a small tree: few enough traces to enumerate, so every expectation is exact.

A trace is one choice a step, and the choice of the last step is the answer. A state is the tuple of choices made
so far; each state has logits of its own. ``rewards`` may depend on the whole trace.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import torch

import rredcot_plugin as rr

Trace = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class TabularPolicy:
    """``choices[t]`` is the number of choices at step t, ``rewards[n]`` the reward of ``traces[n]``."""

    choices: tuple[int, ...]
    logits: torch.Tensor  # (states, widest step), float64, requires grad
    rewards: torch.Tensor  # (traces,)

    @staticmethod
    def random(choices: tuple[int, ...], seed: int = 0, answers_alone: bool = False) -> TabularPolicy:
        """Normal logits. Rewards on [0, 1], some of them 0; of the answer alone where ``answers_alone``."""
        generator = torch.Generator().manual_seed(seed)
        states = sum(1 for _ in _prefixes(choices))
        logits = torch.randn(states, max(choices), generator=generator, dtype=torch.float64)
        traces = list(itertools.product(*map(range, choices)))
        # multiples of 1/4, so that sums and means of float32 rewards are exact
        graded = (torch.rand(len(traces), generator=generator, dtype=torch.float64) * 5).floor() / 4
        if answers_alone:
            graded = torch.tensor([graded[trace[-1]] for trace in traces])
        return TabularPolicy(choices, logits.requires_grad_(), graded)

    @cached_property
    def traces(self) -> list[Trace]:
        return list(itertools.product(*map(range, self.choices)))

    @cached_property
    def states(self) -> dict[Trace, int]:
        """Row of ``logits`` for each state."""
        return {prefix: row for row, prefix in enumerate(_prefixes(self.choices))}

    def log_probs(self) -> torch.Tensor:
        """(traces, steps): log-probability of every choice, differentiable."""
        columns = []
        for step, width in enumerate(self.choices):
            rows = torch.tensor([self.states[trace[:step]] for trace in self.traces])
            chosen = torch.tensor([trace[step] for trace in self.traces])
            columns.append(self.logits[rows, :width].log_softmax(dim=1).gather(1, chosen[:, None])[:, 0])
        return torch.stack(columns, dim=1)

    @cached_property
    def probabilities(self) -> torch.Tensor:
        """(traces,)"""
        return self.log_probs().sum(dim=1).exp().detach()

    def gradient(self, loss: torch.Tensor) -> torch.Tensor:
        (found,) = torch.autograd.grad(loss, self.logits)
        return found

    @cached_property
    def exact_gradient(self) -> torch.Tensor:
        """∇ E[R], by enumeration."""
        return self.gradient((self.log_probs().sum(dim=1).exp() * self.rewards).sum())

    def value(self, state: Trace) -> float:
        """V(s) = E[R | s], by enumeration."""
        mass = self._mass(state)
        return float((mass * self.rewards).sum() / mass.sum())

    def answer_probabilities(self, state: Trace) -> torch.Tensor:
        """(answers,): how probable each answer is from ``state`` on, whatever the steps between."""
        mass, last = self._mass(state), torch.tensor([trace[-1] for trace in self.traces])
        summed = torch.zeros(self.choices[-1], dtype=mass.dtype).index_add_(0, last, mass)
        return summed / mass.sum()

    def _mass(self, state: Trace) -> torch.Tensor:
        inside = torch.tensor([trace[: len(state)] == state for trace in self.traces])
        return torch.where(inside, self.probabilities, 0.0)


def _prefixes(choices: tuple[int, ...]) -> list[Trace]:
    return [prefix for depth in range(len(choices)) for prefix in itertools.product(*map(range, choices[:depth]))]


@dataclass(frozen=True, eq=False)
class AllGroups:
    """Every group of ``size`` rollouts that the policy can produce, side by side, with its probability.

    Groups do not see each other without calibration, so that one call gives the expectation over all of them.
    """

    policy: TabularPolicy
    size: int = 2

    @cached_property
    def members(self) -> list[tuple[int, ...]]:
        """Indices into ``policy.traces`` of the rollouts of each group."""
        return list(itertools.product(range(len(self.policy.traces)), repeat=self.size))

    @cached_property
    def rows(self) -> torch.Tensor:
        """Index of the trace of every row of ``rollouts``; group after group."""
        return torch.tensor(self.members).flatten()

    @cached_property
    def probability(self) -> torch.Tensor:
        """(groups,): of drawing that group."""
        return self.policy.probabilities[torch.tensor(self.members)].prod(dim=1)

    @cached_property
    def rollouts(self) -> rr.Rollouts:
        return rollouts_of(self.policy, self.rows, [row // self.size for row in range(len(self.rows))])

    @cached_property
    def others_reward(self) -> torch.Tensor:
        """(rows,): mean reward of the row's siblings, 0 without any."""
        per_group = self.policy.rewards[torch.tensor(self.members)]
        return ((per_group.sum(dim=1, keepdim=True) - per_group) / max(1, self.size - 1)).flatten()

    def expected_gradient(self, advantages: torch.Tensor) -> torch.Tensor:
        """E[mean over the group of Σ_t Â_t ∇log π(o_t | s_t)]."""
        weight = self.probability.repeat_interleave(self.size) / self.size
        return weighted_gradient(self.policy, self.rows, weight, advantages)


def weighted_gradient(
    policy: TabularPolicy, rows: torch.Tensor, weight: torch.Tensor, advantages: torch.Tensor
) -> torch.Tensor:
    """Σ_rows weight Σ_t Â_t ∇log π(o_t | s_t)."""
    return policy.gradient((weight[:, None] * advantages.double() * policy.log_probs()[rows]).sum())


def rollouts_of(policy: TabularPolicy, rows: torch.Tensor, group_ids: list[int]) -> rr.Rollouts:
    """Rollouts of the traces with these indices: one token a step, the reward on the answer."""
    ids = torch.tensor(policy.traces)[rows]
    rewards = torch.zeros(ids.shape)
    rewards[:, -1] = policy.rewards[rows].float()
    log_probs = policy.log_probs().detach()[rows].float()
    return rr.Rollouts(ids, torch.ones_like(ids).bool(), rewards, group_ids, log_probs=log_probs)


def states_of(rollouts: rr.Rollouts, segments: rr.Segments) -> list[list[Trace]]:
    """The state before each segment of each row: the tokens up to there."""
    return [
        [tuple(ids[:start]) for start in starts]
        for ids, starts in zip(rollouts.token_ids.tolist(), segments.starts.tolist(), strict=True)
    ]
