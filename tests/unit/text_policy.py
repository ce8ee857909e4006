"""A softmax policy that writes text: few enough traces to enumerate, with everything that a segmenter looks at.

Keywords, line ends, sentences and answers are choices that matter; some traces stop early, one choice is followed by a
masked token of a tool. Every prefix has logits of its own, so the gradient shows a bias wherever there is one.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
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


@dataclass(frozen=True)
class World:
    """Everything that can happen. ``traces`` hold the texts of the tokens in order, ``own`` says which of them are the
    model's, and ``columns`` where those stand in the response. ``choices`` are the tokens to choose from after each prefix."""

    traces: list[Trace]
    own: list[list[int]]
    columns: list[list[int]]
    choices: dict[Trace, tuple[str, ...]]

    @cached_property
    def prefixes(self) -> dict[Trace, int]:
        return {prefix: row for row, prefix in enumerate(sorted(self.choices))}

    @property
    def steps(self) -> int:
        """Most tokens of the model in a trace."""
        return max(map(len, self.own))

    @property
    def width(self) -> int:
        return max(columns[-1] for columns in self.columns) + 1


@dataclass(frozen=True, eq=False)
class TextPolicy:
    """``logits[row]`` of every prefix, ``rewards[n]`` of every trace at its last token; ``chance[n]`` is how probable the tools'
    answers in it are, and ``on_the_way[n, step]`` what the model's tokens before the last one are paid."""

    world: World
    logits: torch.Tensor
    rewards: torch.Tensor
    chance: torch.Tensor
    on_the_way: torch.Tensor

    @staticmethod
    def random(seed: int = 0) -> TextPolicy:
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(len(TEXTS.prefixes), 3, generator=generator, dtype=torch.float64)
        graded = (torch.rand(len(TRACES), generator=generator, dtype=torch.float64) * 5).floor() / 4
        nothing = torch.zeros(len(TRACES), TEXTS.steps, dtype=torch.float64)
        return TextPolicy(TEXTS, logits.requires_grad_(), graded, torch.ones_like(graded), nothing)

    def distributions(self, row: int) -> list[tuple[int, torch.Tensor]]:
        """For each token of the model in a trace which of the choices it is, and the log-probs of all, differentiable."""
        trace, found = self.world.traces[row], []
        for at in self.world.own[row]:
            choices = self.world.choices[trace[:at]]
            own = self.logits[self.world.prefixes[trace[:at]], : len(choices)].log_softmax(0)
            found.append((choices.index(trace[at]), own))
        return found

    def log_probs(self) -> torch.Tensor:
        """(traces, steps): log-probs of the chosen tokens, differentiable; 0 after the end."""
        found = torch.zeros(len(self.world.traces), self.world.steps, dtype=torch.float64)
        for row in range(len(found)):
            for step, (chosen, own) in enumerate(self.distributions(row)):
                found[row, step] = own[chosen]
        return found

    @cached_property
    def probabilities(self) -> torch.Tensor:
        return self.log_probs().sum(1).exp().detach() * self.chance

    def gradient(self, loss: torch.Tensor) -> torch.Tensor:
        (found,) = torch.autograd.grad(loss, self.logits)
        return found

    @cached_property
    def totals(self) -> torch.Tensor:
        """(traces,): the sum of all rewards."""
        return self.rewards + self.on_the_way.sum(1)

    @cached_property
    def exact_gradient(self) -> torch.Tensor:
        """∇ E[Σ r], by enumeration."""
        return self.gradient((self.log_probs().sum(1).exp() * self.chance * self.totals).sum())

    def rollouts(self, rows: list[int], group_ids: list[int]) -> rr.Rollouts:
        """Rollouts of the traces with these indices, the reward on the last token."""
        return dataclasses.replace(self._each.take(rows), group_ids=group_ids)

    @cached_property
    def _each(self) -> rr.Rollouts:
        """One rollout of every trace."""
        traces = self.world.traces
        vocabulary = {token: number for number, token in enumerate(sorted(set(itertools.chain(*traces))), 1)}
        shape = len(traces), self.world.width
        mask, rewards, signals = torch.zeros(shape).bool(), torch.zeros(shape), torch.zeros(3, *shape)
        ids = torch.zeros(shape, dtype=torch.int64)
        spans = []
        for row, trace in enumerate(traces):
            columns, own = self.world.columns[row], self.world.own[row]
            mask[row, columns] = True
            with_tools = columns if len(own) == len(trace) else list(range(len(trace)))
            ids[row, with_tools] = torch.tensor([vocabulary[token] for token in trace])
            signals[:, row, columns] = _signals(self.distributions(row))
            rewards[row, columns] = self.on_the_way[row, : len(columns)].float()
            rewards[row, columns[-1]] += float(self.rewards[row])
            ends = list(itertools.accumulate(map(len, trace)))
            spans.append([(ends[at] - len(trace[at]), ends[at]) for at in own])
        return rr.Rollouts(
            ids, mask, rewards, [0] * len(traces),
            log_probs=signals[0], entropies=signals[1], sum_pi_squared=signals[2],
            texts=["".join(trace) for trace in traces], token_offsets=spans,
        )  # fmt: skip


def _signals(distributions: list[tuple[int, torch.Tensor]]) -> torch.Tensor:
    """(3, steps): log-probs of the chosen tokens, entropies, Σ_v π(v)²."""
    found = []
    for chosen, own in distributions:
        own = own.detach()
        found.append(torch.stack([own[chosen], -(own.exp() * own).sum(), own.exp().square().sum()]))
    return torch.stack(found, dim=1).float()


def _traces(prefix: Trace = ()) -> list[Trace]:
    if len(prefix) == len(CHOICES) or (prefix and prefix[-1] == STOP):
        return [prefix]
    return [trace for token in CHOICES[len(prefix)] for trace in _traces((*prefix, token))]


def _columns(trace: Trace) -> list[int]:
    """Where the tokens of a trace stand in the response."""
    shift = trace[0] == TOOL
    return [step + (shift and step > 0) for step in range(len(trace))]


TRACES = _traces()
TEXTS = World(
    TRACES,
    [list(range(len(trace))) for trace in TRACES],
    [_columns(trace) for trace in TRACES],
    {trace[:step]: CHOICES[step] for trace in TRACES for step in range(len(trace))},
)


def expected_gradient(policy: TextPolicy, config: rr.RRedCoTConfig, size: int, make_calibrator, beside: list[int]):
    """E[mean over a group of ``size`` of Σ_t Â_t ∇log π(o_t)], over every group that the policy can produce, beside fixed
    rollouts of other prompts."""

    def advantages(rollouts: rr.Rollouts) -> torch.Tensor:
        return rr.assign_credit(rollouts, config, calibrator=make_calibrator()).advantages

    return expected_gradient_of(policy, advantages, size, beside)


def expected_gradient_of(policy: TextPolicy, advantages, size: int, beside: list[int] = ()):
    """The same of any function from rollouts to advantages (B, T).

    The order of a group's rollouts changes nothing, so each set of them is looked at once and counted as often as it occurs.
    """
    weights = torch.zeros_like(policy.log_probs())
    others = [1 + i // 2 for i in range(len(beside))]
    for members in itertools.combinations_with_replacement(range(len(policy.world.traces)), size):
        found = advantages(policy.rollouts([*members, *beside], [0] * size + others)).double()
        orders = math.factorial(size) / math.prod(map(math.factorial, Counter(members).values()))
        probability = orders * float(policy.probabilities[list(members)].prod())
        for at, row in enumerate(members):
            columns = policy.world.columns[row]
            weights[row, : len(columns)] += probability / size * found[at, columns]
    return policy.gradient((weights * policy.log_probs()).sum())
