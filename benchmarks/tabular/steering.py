"""Where credit of one value function leads: the policies that its expected gradient climbs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tabular.ascent import Ascent, ascend
from tabular.credit import group_table, own_table, redistributed
from tabular.moments import binomial
from tabular.policy import Tree
from tabular.prompts import Prompt
from tabular.value_functions import (
    chosen_action,
    delayed,
    graded,
    length_biased,
    nothing_before_the_end,
    path_bonus,
    sees_the_outcome,
    swapped,
    turned,
)

QUALITIES = (0.9, 0.7, 0.5, 0.3)
NOISE_SEED = 2

REWARD_MODEL = {"value_estimator": "reward_model", "prior_from_group": False}
GROUP_BASELINE = {"value_estimator": "reward_model", "prior_from_group": True, "scale": "group_std"}


@dataclass(frozen=True)
class Kind:
    """A value function, and whether it arrives as the scores of a ``reward_model`` (else as ``values=``).

    ``honest`` says that values read the prefix alone, which is what λ = 1 needs to keep the gradient.
    """

    values: Callable[[Prompt], torch.Tensor]
    reward_model: bool = False
    honest: bool = True


def kinds() -> dict[str, Kind]:
    """Reward models of graded quality, systematically wrong ones, and redistributions that are made to steer."""
    graded_kinds = {
        f"pearson_{q}": Kind(lambda p, q=q: graded(p, q, NOISE_SEED), reward_model=True) for q in QUALITIES
    }
    return {
        "exact": Kind(lambda p: p.values, reward_model=True),
        **graded_kinds,
        "length_bias": Kind(lambda p: length_biased(p, 0.3), reward_model=True),
        "path_bonus": Kind(lambda p: path_bonus(p, 0.5), reward_model=True),
        "chosen_action": Kind(chosen_action),
        "delayed": Kind(delayed),
        "nothing_before_end": Kind(nothing_before_the_end),
        "swapped_siblings": Kind(swapped),
        "turned": Kind(turned),
        "sees_outcome": Kind(lambda p: sees_the_outcome(p, 1.0), honest=False),
        "sees_twice_outcome": Kind(lambda p: sees_the_outcome(p, 2.0), honest=False),
    }


def tables(prompts: list[Prompt], kind: Kind, lam: float) -> torch.Tensor:
    """(N, 1, M, T): advantages of every trace; they do not change while the policy moves."""
    estimator = "reward_model" if kind.reward_model else None
    options: dict[str, Any] = {"lam": lam, **(REWARD_MODEL if kind.reward_model else {})}
    return torch.stack([own_table(p, options, kind.values(p)[None], estimator)[0] for p in prompts])


def group_tables(prompts: list[Prompt], kind: Kind, lam: float, size: int) -> torch.Tensor:
    """(N, G, M, T): the same without a critic, the prior of the prompt being the mean of the siblings, and divided
    by the group's deviation as GRPO does."""
    options = {"lam": lam, **GROUP_BASELINE}
    return torch.stack([group_table(p, options, size, scores=kind.values(p))[0] for p in prompts])


def grpo_tables(prompts: list[Prompt], size: int) -> torch.Tensor:
    """(N, G, M, T): plain GRPO."""
    return torch.stack([group_table(p, {"scale": "group_std"}, size, whole=True)[0] for p in prompts])


def climb(
    tree: Tree, starts: torch.Tensor, rewards: torch.Tensor, table: torch.Tensor, steps: int, rate: float
) -> Ascent:
    """Ascend with Σ_m Bin(m; G−1, E[R]) Â(τ, m), the mean over the siblings that the policy has by then."""
    size = table.shape[1]

    def credit(logits: torch.Tensor, step: int) -> torch.Tensor:
        if size == 1:
            return table[:, 0]
        success = (tree.probabilities(logits) * rewards).sum(dim=1).clamp(1e-9, 1 - 1e-9)
        weight = binomial(size - 1, success)
        return (weight[:, :, None, None] * table).sum(dim=1)

    return ascend(tree, starts, rewards, credit, steps, rate)


def check_sums(prompts: list[Prompt], named: Mapping[str, Kind]) -> float:
    """Largest |Σ_k r_k − R| over every trace, prompt and kind, of ``Credit.segment_rewards``."""
    worst = 0.0
    for kind in named.values():
        for p in prompts:
            gap = redistributed(p, kind.values(p)).sum(dim=1) - p.rewards
            worst = max(worst, float(gap.abs().max()))
    return worst
