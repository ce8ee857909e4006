"""Runs after ``verl.trainer.ppo.core_algos``: the advantage estimators ``rredcot``, ``rredcot_ppo`` and ``red``.

verl hands an estimator rewards, mask and group ids, but neither tokens nor log-probs. The trainer mixin
therefore opens a *credit step* around verl's own ``_compute_advantage``, and the function that verl calls
picks it up here. Everything else in that method (KL in the reward, rollout correction) stays verl's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from verl.trainer.ppo import core_algos

GROUP, PPO, RED = NAMES = ("rredcot", "rredcot_ppo", "red")
"""Group baseline with probes; a critic's values at the boundaries; a reward model's score at every token."""

NEEDS_TRAINER = (
    "algorithm.adv_estimator=rredcot (as rredcot_ppo and red) needs one of verl's own trainers: trainer.use_v1=true with "
    "trainer.v1.trainer_mode sync, colocate_async or separate_async, or trainer.use_v1=false"
)

CreditStep = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""(token_level_rewards, response_mask), both (rows, T) -> (advantages, returns)."""

_step: ContextVar[CreditStep | None] = ContextVar("rredcot_credit_step", default=None)


@contextmanager
def credit_step(step: CreditStep) -> Iterator[None]:
    """Answer the estimator's calls with ``step`` while this is open."""
    token = _step.set(step)
    try:
        yield
    finally:
        _step.reset(token)


def open_step(step: CreditStep) -> None:
    """Answer the estimator's next call with ``step``, for a trainer that has no method around that call."""
    _step.set(step)


def close_step() -> None:
    _step.set(None)


@core_algos.register_adv_est(RED)
@core_algos.register_adv_est(PPO)
@core_algos.register_adv_est(GROUP)
def compute_rredcot_advantage(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, config: Any = None, index: Any = None, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns, (rows, T), of the step that the trainer has open.

    Raises:
        ValueError: called outside of verl's own trainers (from a trainer of someone else).
    """
    step = _step.get()
    if step is None:
        raise ValueError(NEEDS_TRAINER)
    return step(token_level_rewards, response_mask)
