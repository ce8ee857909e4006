"""A batch as verl's advantage estimators see it, and every estimator that verl registers, called on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY


@dataclass(frozen=True)
class Batch:
    """All (B, T) but ``index`` and ``greedy`` (B,); the reward of a trace stands on its last token.

    ``sum_pi_squared``: Σ_v π(v | o_<t)²; ``values``: V of the state before token t; ``greedy``: reward of the greedy
    rollout of the row's prompt.
    """

    tokens: torch.Tensor
    rewards: torch.Tensor
    mask: torch.Tensor
    index: np.ndarray
    log_probs: torch.Tensor
    sum_pi_squared: torch.Tensor
    values: torch.Tensor
    greedy: torch.Tensor

    def take(self, rows: slice | torch.Tensor) -> Batch:
        """Some of the rows."""
        at = rows if isinstance(rows, slice) else rows.numpy()
        return Batch(**{name: x[at] if name == "index" else x[rows] for name, x in vars(self).items()})

    @classmethod
    def joined(cls, parts: Sequence[Batch]) -> Batch:
        """One below the other, padded to the widest."""
        width = max(part.mask.shape[1] for part in parts)

        def together(name: str) -> Any:
            own = [getattr(part, name) for part in parts]
            if name == "index":
                return np.concatenate(own)
            if own[0].ndim == 1:
                return torch.cat(own)
            return torch.cat([torch.nn.functional.pad(x, (0, width - x.shape[1])) for x in own])

        return cls(**{field.name: together(field.name) for field in fields(cls)})


Call = Callable[[Batch], torch.Tensor]
"""A batch → advantages (B, T)."""


@dataclass(frozen=True)
class Estimator:
    """``call`` with a line on ``why`` its expectation is the gradient, or is not.

    ``by_batch``: its numbers depend on statistics of the whole batch, not of a group alone.
    """

    call: Call
    why: str
    by_batch: bool = False


def registered(name: str, *given: str, **options: Any) -> Call:
    """verl's function of that name with the batch's fields ``given``, beside rewards and mask."""

    def call(batch: Batch) -> torch.Tensor:
        named = {
            "index": batch.index,
            "reward_baselines": batch.greedy,
            "values": batch.values,
            "old_log_probs": batch.log_probs,
            "sum_pi_squared": batch.sum_pi_squared,
        }
        found: torch.Tensor = ADV_ESTIMATOR_REGISTRY[name](
            token_level_rewards=batch.rewards.clone(),
            response_mask=batch.mask,
            **{key: named[key] for key in given},
            **options,
        )[0]
        return found * batch.mask

    return call


def zero_values(batch: Batch) -> torch.Tensor:
    """``gae`` with a critic that knows nothing, which leaves the returns, whitened."""
    blank = Batch(**{**vars(batch), "values": torch.zeros_like(batch.values)})
    return registered("gae", "values", gamma=1.0, lam=1.0)(blank)


OTB = ("index", "old_log_probs", "sum_pi_squared")
STD, NO_STD = AlgoConfig(norm_adv_by_std_in_grpo=True), AlgoConfig(norm_adv_by_std_in_grpo=False)
OWN = "own reward in the baseline"
DIVIDED = "divided by the group's standard deviation"
WHITENED = "whitened by the batch"

VERL: dict[str, Estimator] = {
    "gae": Estimator(registered("gae", "values", gamma=1.0, lam=1.0), f"exact values, λ=1; {WHITENED}", True),
    "gae_zero_values": Estimator(zero_values, f"values 0, λ=1; {WHITENED}", True),
    "grpo": Estimator(registered("grpo", "index"), f"{OWN} (a factor); {DIVIDED}"),
    "grpo_no_std": Estimator(
        registered("grpo", "index", norm_adv_by_std_in_grpo=False),
        f"{OWN}: a factor (N−1)/N",
    ),
    "grpo_vectorized": Estimator(registered("grpo_vectorized", "index"), "as grpo"),
    "grpo_passk": Estimator(
        registered("grpo_passk", "index", config=STD), f"climbs E[max of N] instead of E[R]; {DIVIDED}"
    ),
    "grpo_passk_no_std": Estimator(
        registered("grpo_passk", "index", config=NO_STD), "exact for E[max of N]/N, which is not E[R]"
    ),
    "rloo": Estimator(registered("rloo", "index"), "the mean of the others"),
    "rloo_vectorized": Estimator(registered("rloo_vectorized", "index"), "the mean of the others"),
    "remax": Estimator(registered("remax", "reward_baselines"), "the reward of a separate greedy rollout"),
    "opo": Estimator(registered("opo", "index"), f"{OWN}, weighted by length"),
    "optimal_token_baseline": Estimator(
        registered("optimal_token_baseline", *OTB),
        f"{OWN}, weighted by token",
    ),
    "tir_optimal_token_baseline": Estimator(
        registered("tir_optimal_token_baseline", *OTB), "the same where no token is masked"
    ),
    "gpg": Estimator(
        registered("gpg", "index"),
        f"{OWN} (a factor); times B over the nonzero rewards of the batch",
        True,
    ),
    "reinforce_plus_plus": Estimator(
        registered("reinforce_plus_plus", config=AlgoConfig(gamma=1.0)), WHITENED, True
    ),
    "reinforce_plus_plus_baseline": Estimator(
        registered("reinforce_plus_plus_baseline", "index"), f"{OWN} (a factor); then {WHITENED}", True
    ),
    "gdpo": Estimator(registered("gdpo", "index"), f"one reward: grpo; then {WHITENED}", True),
}
"""Every estimator that verl 0.9.1 registers, and settings of it that change the answer."""
