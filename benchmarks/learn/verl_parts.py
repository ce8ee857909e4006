"""What the trainer takes from verl itself, with the settings of the demo's runs: loss, optimizer, clipping."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.utils.torch_functional import get_constant_schedule_with_warmup
from verl.workers.config import FSDPActorConfig, FSDPOptimizerConfig
from verl.workers.config.optimizer import build_optimizer

from rredcot_plugin.types import Rollouts


def actor_config(rate: float, prompts: int, group: int, warmup: int) -> Any:
    """verl's defaults but for the keys that the demo sets, and a warm-up: one update a step over all of its rollouts."""
    return FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=group,
        ppo_mini_batch_size=prompts,
        ppo_micro_batch_size_per_gpu=prompts * group,
        optim=FSDPOptimizerConfig(lr=rate, lr_warmup_steps=warmup),
    )


class Updater:
    """verl's policy loss, optimizer and warm-up on one model."""

    def __init__(self, model: torch.nn.Module, config: Any) -> None:
        self.model, self.config = model, config
        self.loss = get_policy_loss_fn(config.policy_loss.loss_mode)
        self.optimizer = build_optimizer(model.parameters(), config.optim)
        self.schedule = get_constant_schedule_with_warmup(self.optimizer, config.optim.lr_warmup_steps)

    def __call__(self, log_probs: torch.Tensor, rollouts: Rollouts, advantages: torch.Tensor) -> float:
        """One step on the log-probs (B, T) of the model as it is; the norm of the gradient before clipping.

        Raises:
            FloatingPointError: a gradient that is not finite.
        """
        loss, _ = self.loss(
            old_log_prob=rollouts.log_probs,
            log_prob=log_probs,
            advantages=advantages,
            response_mask=rollouts.response_mask,
            loss_agg_mode=self.config.loss_agg_mode,
            config=self.config,
        )
        self.optimizer.zero_grad()
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optim.clip_grad))
        if not np.isfinite(norm):
            raise FloatingPointError(f"the gradient's norm is {norm}")
        self.optimizer.step()
        self.schedule.step()
        return norm
