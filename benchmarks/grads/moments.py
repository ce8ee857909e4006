"""Signal, variance, cosine and bias of a method's step gradient, from noisy samples and a noisy reference.

A step's gradient is the mean of the gradients of its P groups. Everything is a product of *independent* vectors, so that
noise adds to no squared length: different steps for ‖E g‖², the two halves of the reference for ‖∇‖². Prompts are fixed
while variances are taken; a bootstrap draw gives every step and every prompt a multiplicity, and a prompt drawn twice
counts as two prompts with groups of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

DRAWS_AT_ONCE = 64


@dataclass(frozen=True)
class Reference:
    """Two independent estimates of every prompt's gradient, (P, k) each."""

    first: torch.Tensor
    second: torch.Tensor

    @property
    def mean(self) -> torch.Tensor:
        return (self.first + self.second) / 2


@dataclass(frozen=True)
class Draw:
    """How often each step (N,) and each prompt (P,) counts."""

    steps: torch.Tensor
    prompts: torch.Tensor


def draws(steps: int, prompts: int, resamples: int, seed: int) -> Iterator[Draw]:
    """The sample itself first, then bootstrap draws of steps and prompts."""
    rng = np.random.default_rng(seed)
    yield Draw(torch.ones(steps), torch.ones(prompts))
    for _ in range(resamples):
        yield Draw(*(torch.from_numpy(rng.multinomial(n, np.full(n, 1 / n))).float() for n in (steps, prompts)))


@dataclass(frozen=True)
class Moments:
    """Of the gradient of a step with the prompts of a draw, all in squared units of the gradient.

    ``square``: ‖E g‖²; ``along``: E g · ∇; ``along_square``: (E g · ∇)², without the noise of E g; ``reference``: ‖∇‖²;
    ``trace``: tr Cov(g), prompts given; ``prompts``: what it gains where they are drawn at random, tr Cov(E[g | prompts]).
    """

    square: float
    along: float
    along_square: float
    reference: float
    trace: float
    prompts: float = 0.0

    @property
    def snr(self) -> float:
        """(E g · ∇/‖∇‖)² / tr Cov(g); NaN where ‖∇‖² cannot be told from 0."""
        return self.along_square / self.reference / self.trace if self.reference > 0 else float("nan")

    @property
    def drawn_snr(self) -> float:
        """The same with the variance of which prompts a step has, which credit does not lower."""
        return self.snr * self.trace / (self.trace + self.prompts)

    @property
    def spread(self) -> float:
        """tr Cov(g) / ‖E g‖²: whatever direction the mean has; NaN where ‖E g‖² cannot be told from 0."""
        return self.trace / self.square if self.square > 0 else float("nan")

    @property
    def cosine(self) -> float:
        """May exceed 1 by the noise that is left; NaN where a squared length cannot be told from 0."""
        if self.square <= 0 or self.reference <= 0:
            return float("nan")
        return self.along / (self.square * self.reference) ** 0.5

    @property
    def bias(self) -> float:
        """‖E g − ∇‖ / ‖∇‖; 0 where the estimate of its square is negative, NaN where that of ‖∇‖² is."""
        if self.reference <= 0:
            return float("nan")
        return (max(self.square - 2 * self.along + self.reference, 0.0) / self.reference) ** 0.5


@torch.no_grad()
def moments(gradients: torch.Tensor, reference: Reference, drawn: Sequence[Draw]) -> list[Moments]:
    """Of the gradients (N, P, k) of P groups in each of N steps, for every draw."""
    within = torch.einsum("npk,nqk->npq", gradients, gradients).double()
    towards = torch.einsum("npk,qk->npq", gradients, reference.mean).double()
    between = (reference.first @ reference.second.T).double()
    found = []
    for first in range(0, len(drawn), DRAWS_AT_ONCE):
        part = drawn[first : first + DRAWS_AT_ONCE]
        totals = torch.stack([draw.steps for draw in part]) @ gradients.flatten(1)
        for draw, total in zip(part, totals.unflatten(1, gradients.shape[1:]), strict=True):
            found.append(_drawn(total, within, towards, between, draw))
    return found


def _drawn(
    total: torch.Tensor, within: torch.Tensor, towards: torch.Tensor, between: torch.Tensor, draw: Draw
) -> Moments:
    """``total`` (P, k): sum over the draw's steps; ``within`` and ``towards`` (N, P, P): products of groups of a step
    with each other and with the reference's."""
    c, w = draw.steps.double(), draw.prompts.double()
    number, pairs = c.sum(), c.sum() ** 2 - c.square().sum()
    scale = w.sum() ** 2
    same = torch.einsum("n,npq->pq", c, within) / number
    other = ((total @ total.T).double() - torch.einsum("n,npq->pq", c.square(), within)) / pairs
    covariance = same - other
    along = torch.einsum("p,npq,q->n", w, towards, w) / scale
    mean = (c * along).sum() / number
    # a prompt drawn twice has two independent groups: its variance counts w times, not w² times
    trace = w @ covariance @ w - ((w.square() - w) * covariance.diagonal()).sum()
    # unbiased variance of the prompts' mean gradients, of a mean of as many prompts
    prompts = (w @ other.diagonal() - w @ other @ w / w.sum()) / (w.sum() - 1).clamp(min=1) / w.sum()
    return Moments(
        square=float(w @ other @ w / scale),
        along=float(mean),
        along_square=float(((c * along).sum().square() - (c * along).square().sum()) / pairs),
        reference=float(w @ between @ w / scale),
        trace=float(trace / scale),
        prompts=float(prompts),
    )
