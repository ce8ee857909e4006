"""Random prompts: a policy on a tree, and which traces end in the right answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from tabular.policy import Tree

ANSWERS = 5
"""Distinct answers; number 0 is right."""

SOLVABLE = 0.5
"""Share of the last states from which the right answer can be given at all."""

SUCCESS = (0.1, 0.8)
"""Prompts are drawn until the policy solves them this often: a group of 8 then mostly says something."""


@dataclass(frozen=True, eq=False)
class Prompt:
    """``logits`` (S, W) float64; ``answers`` (M,), the answer that each trace ends in; R = 1 where it is 0."""

    tree: Tree
    logits: torch.Tensor
    answers: torch.Tensor
    seed: int

    @cached_property
    def rewards(self) -> torch.Tensor:
        return (self.answers == 0).double()

    @cached_property
    def log_probs(self) -> torch.Tensor:
        """(M, T)"""
        return self.tree.log_probs(self.logits[None])[0]

    @cached_property
    def probabilities(self) -> torch.Tensor:
        """(M,)"""
        return self.tree.probabilities(self.logits[None])[0]

    @cached_property
    def success(self) -> float:
        return float((self.probabilities * self.rewards).sum())

    @cached_property
    def values(self) -> torch.Tensor:
        """(M, T): exact."""
        return self.tree.values(self.logits[None], self.rewards[None])[0]

    @cached_property
    def reach(self) -> torch.Tensor:
        """(S,): how often each state is visited in a trace."""
        return self.tree.per_state(self.probabilities[None])[0]

    @cached_property
    def exact_gradient(self) -> torch.Tensor:
        """(S·W,)"""
        return self.tree.exact_gradient(self.logits[None], self.rewards[None])[0].flatten()


def random_prompt(choices: tuple[int, ...], seed: int) -> Prompt:
    """Normal logits; half of the last states are dead ends, each other one has one right choice."""
    generator = torch.Generator().manual_seed(seed)
    tree = Tree(choices)
    while True:
        logits = torch.randn(tree.num_states, max(choices), generator=generator, dtype=torch.float64)
        answers = torch.randint(1, ANSWERS, (len(tree.traces),), generator=generator)
        by_state = answers.view(-1, choices[-1])  # traces stand in the order of the tree
        solvable = torch.rand(len(by_state), generator=generator) < SOLVABLE
        right = torch.randint(choices[-1], (len(by_state),), generator=generator)
        by_state[solvable, right[solvable]] = 0
        prompt = Prompt(tree, logits, answers, seed)
        if SUCCESS[0] <= prompt.success <= SUCCESS[1]:
            return prompt
