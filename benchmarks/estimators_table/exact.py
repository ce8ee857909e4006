"""Mean and covariance of an estimator's gradient by summing over every group of N traces."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from estimators_table.batch import Batch, Call, Estimator
from estimators_table.policies import Policy

AGGREGATIONS = ("seq-mean-token-sum", "token-mean", "seq-mean-token-mean")
"""verl's ``loss_agg_mode``; a constant factor (``-norm``) changes nothing here."""


@dataclass(frozen=True)
class Groups:
    """Every group of N traces of a policy: ``rows`` (C, N) in ascending order, with the ``mass`` (C,) of all its orders."""

    policy: Policy
    rows: torch.Tensor
    mass: torch.Tensor

    def batch(self) -> Batch:
        """All groups in one batch, each with a number of its own."""
        return batch_of(self.policy, self.rows.flatten(), np.repeat(np.arange(len(self.rows)), self.rows.shape[1]))


def all_groups(policy: Policy, size: int) -> Groups:
    """Multisets of ``size`` traces with their multinomial probabilities."""
    M = len(policy.rewards)
    rows = torch.tensor(list(itertools.combinations_with_replacement(range(M), size)))
    counts = torch.zeros(len(rows), M, dtype=torch.float64)
    counts.scatter_add_(1, rows, torch.ones(rows.shape, dtype=torch.float64))
    log_mass = math.lgamma(size + 1) - torch.lgamma(counts + 1).sum(1) + counts @ policy.log_probs.sum(1)
    return Groups(policy, rows, log_mass.exp())


def batch_of(policy: Policy, rows: torch.Tensor, index: np.ndarray) -> Batch:
    """Rollouts of the traces with these numbers, in verl's form."""
    mask = policy.mask[rows]
    last = mask.sum(1).long() - 1
    rewards = torch.zeros_like(mask).scatter_(1, last[:, None], policy.rewards[rows][:, None])
    greedy = torch.full((len(rows),), policy.greedy, dtype=torch.float64)
    return Batch(
        policy.traces[rows],
        rewards,
        mask,
        index,
        policy.log_probs[rows],
        policy.squares[rows],
        policy.values[rows],
        greedy,
    )


def advantages(estimator: Estimator, groups: Groups) -> torch.Tensor:
    """(C, N, T); an estimator with statistics of the batch sees one group at a time."""
    C, N = groups.rows.shape
    batch = groups.batch()
    if not estimator.by_batch:
        return estimator.call(batch).double().view(C, N, -1)
    return one_at_a_time(estimator.call, batch, N)


def one_at_a_time(call: Call, batch: Batch, size: int) -> torch.Tensor:
    """(C, N, T): each group is a batch of its own."""
    number = len(batch.index) // size
    return torch.stack([call(batch.take(slice(c * size, (c + 1) * size))).double() for c in range(number)])


@dataclass(frozen=True)
class Found:
    """E ĝ (D,), tr Cov(ĝ), and the gradient it should be."""

    mean: torch.Tensor
    trace: float
    gradient: torch.Tensor

    @property
    def size(self) -> float:
        """Component of E ĝ along g, over ‖g‖, minus 1."""
        return float(self.mean @ self.gradient / self.gradient.square().sum()) - 1

    @property
    def off(self) -> float:
        """‖what of E ĝ is orthogonal to g‖ over ‖E ĝ‖: the sine of the angle between them."""
        unit = self.gradient / self.gradient.norm()
        orthogonal = self.mean - (self.mean @ unit) * unit
        return float(orthogonal.norm() / self.mean.norm())

    @property
    def degrees(self) -> float:
        """Angle of E ĝ and g."""
        backwards = float(self.mean @ self.gradient) < 0
        angle = math.degrees(math.asin(min(self.off, 1.0)))
        return 180 - angle if backwards else angle

    @property
    def signal(self) -> float:
        """(E ĝ · g/‖g‖)² / tr Cov(ĝ)."""
        return float(self.mean @ self.gradient / self.gradient.norm()) ** 2 / self.trace


def moments(groups: Groups, found: torch.Tensor, aggregation: str = AGGREGATIONS[0]) -> Found:
    """Of the advantages (C, N, T) of every group."""
    policy, (C, N) = groups.policy, groups.rows.shape
    mask = policy.mask[groups.rows]
    lengths = mask.sum(2, keepdim=True)
    divisor = {
        "seq-mean-token-sum": torch.full_like(lengths, N),
        "token-mean": lengths.sum(1, keepdim=True).expand_as(lengths),
        "seq-mean-token-mean": N * lengths,
    }[aggregation]
    weights = torch.zeros(C, *policy.mask.shape, dtype=torch.float64)
    weights.scatter_add_(1, groups.rows[:, :, None].expand_as(found), found * mask / divisor)
    gradients = weights.flatten(1) @ policy.scores.flatten(0, 1)
    mean = groups.mass @ gradients
    trace = float(groups.mass @ (gradients - mean).square().sum(1))
    return Found(mean, trace, policy.gradient)


def joined(parts: list[Found]) -> Found:
    """Of a step with one group for each of several prompts, every prompt with parameters of its own."""
    number = len(parts)
    return Found(
        torch.cat([own.mean for own in parts]) / number,
        sum(own.trace for own in parts) / number**2,
        torch.cat([own.gradient for own in parts]) / number,
    )


def of_policy(estimators: Mapping[str, Estimator], policy: Policy, size: int) -> dict[tuple[str, str], Found]:
    """(name, aggregation) → moments of every estimator on every group of ``size`` traces."""
    groups = all_groups(policy, size)
    found = {}
    for name, estimator in estimators.items():
        table = advantages(estimator, groups)
        found |= {(name, aggregation): moments(groups, table, aggregation) for aggregation in AGGREGATIONS}
    return found
