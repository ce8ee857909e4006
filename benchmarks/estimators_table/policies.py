"""Policies with so few traces that every group of them can be enumerated."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "same_length": ((0, 0), (0, 1), (1, 0), (1, 1)),
    "early_stop": ((0,), (1, 0), (1, 1, 0), (1, 1, 1), (2,)),
    "long_tail": ((0,), (1, 0), (1, 1, 0), (1, 1, 1, 0), (1, 1, 1, 1)),
}
"""All traces of a tree: two binary tokens; a first token of three, two of which end; up to four tokens."""

GRADES = (0.0, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Policy:
    """M traces of at most T tokens; float64.

    ``mask``, ``log_probs``, ``squares`` (Σ_v π²) and ``values`` (V before the token) are (M, T), 0 beyond a trace's end;
    ``scores`` (M, T, D) is ∇ log π(o_t | o_<t); ``probabilities`` and ``rewards`` are (M,).
    """

    traces: torch.Tensor
    mask: torch.Tensor
    log_probs: torch.Tensor
    squares: torch.Tensor
    scores: torch.Tensor
    rewards: torch.Tensor
    values: torch.Tensor

    @property
    def probabilities(self) -> torch.Tensor:
        return self.log_probs.sum(1).exp()

    @property
    def greedy(self) -> float:
        """Reward of the trace that takes the likeliest token everywhere."""
        row = 0
        for t in range(self.traces.shape[1]):
            same = (self.traces[:, :t] == self.traces[row, :t]).all(1) & (self.mask[:, t] > 0)
            if same.any():
                row = int(torch.where(same, self.log_probs[:, t], -torch.inf).argmax())
        return float(self.rewards[row])

    @property
    def gradient(self) -> torch.Tensor:
        """∇ E[R] (D,)."""
        return torch.einsum("m,mtd->d", self.probabilities * self.rewards, self.scores)

    def gradient_of_best(self, size: int) -> torch.Tensor:
        """∇ E[max of ``size`` rewards] / ``size`` (D,), which pass@k estimators climb."""
        found = torch.zeros_like(self.gradient)
        levels = sorted(set(self.rewards.tolist()))
        for low, high in itertools.pairwise(levels):
            at_most = self.rewards <= low
            mass = self.probabilities[at_most].sum()
            slope = torch.einsum("m,mtd->d", self.probabilities * at_most, self.scores)
            found -= (high - low) * mass ** (size - 1) * slope
        return found


def tree_policy(shape: str, seed: int, *, graded: bool) -> Policy:
    """Random logits at every prefix, each a parameter of its own; random rewards, 0 and 1 or of ``GRADES``."""
    rng = np.random.default_rng([seed, list(SHAPES).index(shape), int(graded)])
    traces = SHAPES[shape]
    children: dict[tuple[int, ...], list[int]] = {}
    for trace in traces:
        for t, token in enumerate(trace):
            own = children.setdefault(trace[:t], [])
            if token not in own:
                own.append(token)
    starts = dict(zip(children, np.cumsum([0, *map(len, children.values())]), strict=False))
    logits = {prefix: rng.normal(0, 1, len(own)) for prefix, own in children.items()}
    width = sum(map(len, children.values()))
    steps = []
    for trace in traces:
        rows = []
        for t, token in enumerate(trace):
            prefix = trace[:t]
            pi = np.exp(logits[prefix]) / np.exp(logits[prefix]).sum()
            score, at = np.zeros(width), children[prefix].index(token)
            score[starts[prefix] : starts[prefix] + len(pi)] = -pi
            score[starts[prefix] + at] += 1
            rows.append((np.log(pi[at]), (pi**2).sum(), score))
        steps.append(rows)
    return _policy(traces, steps, _rewards(rng, len(traces), graded))


def independent_policy(ones: Sequence[float], rewards: Sequence[float]) -> Policy:
    """Binary tokens with probabilities ``ones`` of a 1, whatever came before; one parameter, a logit, for each position.

    ``rewards`` of the traces in lexical order.
    """
    traces = list(itertools.product((0, 1), repeat=len(ones)))
    eye = np.eye(len(ones))
    steps = [
        [(np.log(p if x else 1 - p), p**2 + (1 - p) ** 2, (x - p) * eye[t]) for t, (x, p) in enumerate(zip(trace, ones, strict=True))]
        for trace in traces
    ]  # fmt: skip
    return _policy(traces, steps, np.array(rewards, dtype=float))


def _rewards(rng: np.random.Generator, number: int, graded: bool) -> np.ndarray:
    while True:
        found = rng.choice(GRADES if graded else (0.0, 1.0), number)
        if len(set(found)) >= (3 if graded else 2):
            return found


def _policy(traces: Sequence[Sequence[int]], steps: Sequence[Sequence[tuple]], rewards: np.ndarray) -> Policy:
    M, T, D = len(traces), max(map(len, traces)), len(steps[0][0][2])
    tokens, mask = torch.zeros(M, T, dtype=torch.int64), torch.zeros(M, T, dtype=torch.float64)
    log_probs, squares = torch.zeros_like(mask), torch.zeros_like(mask)
    scores = torch.zeros(M, T, D, dtype=torch.float64)
    for m, (trace, own) in enumerate(zip(traces, steps, strict=True)):
        tokens[m, : len(trace)], mask[m, : len(trace)] = torch.tensor(trace), 1.0
        for t, (log_prob, square, score) in enumerate(own):
            log_probs[m, t], squares[m, t], scores[m, t] = log_prob, square, torch.from_numpy(score)
    paid = torch.from_numpy(rewards)
    probabilities = log_probs.sum(1).exp()
    values = torch.zeros_like(mask)
    for m, trace in enumerate(traces):
        for t in range(len(trace)):
            same = torch.tensor([tuple(other[:t]) == tuple(trace[:t]) for other in traces])
            values[m, t] = (probabilities * paid)[same].sum() / probabilities[same].sum()
    return Policy(tokens, mask, log_probs, squares, scores, paid, values)
