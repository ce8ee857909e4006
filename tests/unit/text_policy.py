"""A softmax policy that writes text: few enough traces to enumerate, with everything that a segmenter looks at.

Keywords, line ends, sentences and answers are choices that matter; some traces stop early, one choice is followed by a
masked token of a tool. Every prefix has logits of its own, so the gradient shows a bias wherever there is one.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from functools import cached_property

import torch

import rredcot_plugin as rr

Trace = tuple[str, ...]

STOP = " end"
TOOL = " b"
CHOICES: dict[int, tuple[str, ...]] = {
    0: ("a.\n", TOOL),
    1: (" So", STOP),
    2: (" c\n", "\n#### ", "</think>"),
    3: ("1", ". d"),
}
"""Tokens to choose from at each step; after ``STOP`` there is none, after ``TOOL`` a masked token."""


@dataclass(frozen=True, eq=False)
class TextPolicy:
    """``logits[row]`` of every prefix, ``rewards[n]`` of every trace."""

    logits: torch.Tensor
    rewards: torch.Tensor

    @staticmethod
    def random(seed: int = 0) -> TextPolicy:
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(len(PREFIXES), 3, generator=generator, dtype=torch.float64)
        graded = (torch.rand(len(TRACES), generator=generator, dtype=torch.float64) * 5).floor() / 4
        return TextPolicy(logits.requires_grad_(), graded)

    def tokens(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(traces, steps): log-probs of the chosen tokens and entropies of their distributions, differentiable; 0 after
        the end."""
        log_probs = torch.zeros(len(TRACES), len(CHOICES), dtype=torch.float64)
        entropies = torch.zeros_like(log_probs)
        for row, trace in enumerate(TRACES):
            for step, token in enumerate(trace):
                own = self.logits[PREFIXES[trace[:step]], : len(CHOICES[step])].log_softmax(0)
                log_probs[row, step] = own[CHOICES[step].index(token)]
                entropies[row, step] = -(own.exp() * own).sum()
        return log_probs, entropies

    @cached_property
    def probabilities(self) -> torch.Tensor:
        return self.tokens()[0].sum(1).exp().detach()

    def gradient(self, loss: torch.Tensor) -> torch.Tensor:
        (found,) = torch.autograd.grad(loss, self.logits)
        return found

    @cached_property
    def exact_gradient(self) -> torch.Tensor:
        """∇ E[R], by enumeration."""
        return self.gradient((self.tokens()[0].sum(1).exp() * self.rewards).sum())

    def rollouts(self, rows: list[int], group_ids: list[int]) -> rr.Rollouts:
        """Rollouts of the traces with these indices, the reward on the last token."""
        return dataclasses.replace(self._each.take(rows), group_ids=group_ids)

    @cached_property
    def _each(self) -> rr.Rollouts:
        """One rollout of every trace."""
        log_probs, entropies = (x.detach().float() for x in self.tokens())
        shape = len(TRACES), len(CHOICES) + 1
        mask, rewards, signals = torch.zeros(shape).bool(), torch.zeros(shape), torch.zeros(3, *shape)
        spans = []
        for row, trace in enumerate(TRACES):
            columns = columns_of(trace)
            mask[row, columns] = True
            own = torch.stack([log_probs[row], entropies[row], _square_sums(self, row)])[:, : len(trace)]
            signals[:, row, columns] = own.float()
            rewards[row, columns[-1]] = float(self.rewards[row])
            ends = list(itertools.accumulate(map(len, trace)))
            spans.append([(end - len(token), end) for end, token in zip(ends, trace, strict=True)])
        return rr.Rollouts(
            torch.zeros(shape, dtype=torch.int64), mask, rewards, [0] * len(TRACES),
            log_probs=signals[0], entropies=signals[1], sum_pi_squared=signals[2],
            texts=["".join(trace) for trace in TRACES], token_offsets=spans,
        )  # fmt: skip


def _square_sums(policy: TextPolicy, row: int) -> torch.Tensor:
    """(steps,): Σ_v π(v)² of the distribution of each step of a trace."""
    found = torch.zeros(len(CHOICES), dtype=torch.float64)
    for step in range(len(TRACES[row])):
        own = policy.logits[PREFIXES[TRACES[row][:step]], : len(CHOICES[step])].detach().softmax(0)
        found[step] = own.square().sum()
    return found


def columns_of(trace: Trace) -> list[int]:
    """Where the tokens of a trace stand in the response."""
    shift = trace[0] == TOOL
    return [step + (shift and step > 0) for step in range(len(trace))]


def _traces(prefix: Trace = ()) -> list[Trace]:
    if len(prefix) == len(CHOICES) or (prefix and prefix[-1] == STOP):
        return [prefix]
    return [trace for token in CHOICES[len(prefix)] for trace in _traces((*prefix, token))]


TRACES = _traces()
PREFIXES = {
    prefix: row
    for row, prefix in enumerate(sorted({trace[:step] for trace in TRACES for step in range(len(trace))}))
}


def expected_gradient(policy: TextPolicy, config: rr.RRedCoTConfig, size: int, make_calibrator, beside: list[int]):
    """E[mean over a group of ``size`` of Σ_t Â_t ∇log π(o_t)], over every group that the policy can produce, beside fixed
    rollouts of other prompts."""
    total = torch.zeros_like(policy.logits)
    log_probs = policy.tokens()[0]
    weights = torch.zeros_like(log_probs)
    for members in itertools.product(range(len(TRACES)), repeat=size):
        rows = [*members, *beside]
        rollouts = policy.rollouts(rows, [0] * size + [1 + i // 2 for i in range(len(beside))])
        credit = rr.assign_credit(rollouts, config, calibrator=make_calibrator())
        probability = float(policy.probabilities[list(members)].prod())
        for at, row in enumerate(members):
            columns = columns_of(TRACES[row])
            weights[row, : len(columns)] += probability / size * credit.advantages[at, columns].double()
    total = policy.gradient((weights.detach() * log_probs).sum())
    return total
