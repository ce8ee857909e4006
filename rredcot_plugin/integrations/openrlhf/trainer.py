"""Runs after ``openrlhf.trainer.ppo_trainer``: trainers that log metrics of ours, and whose checkpoints hold what is known of past
steps."""

from __future__ import annotations

import logging
from typing import Any

import openrlhf.trainer.ppo_trainer as host

from rredcot_plugin.adapter.state import WITHOUT_PAST, state_of, take_up

logger = logging.getLogger(__name__)

STATE = "rredcot"
"""Of the checkpoint's ``client_states``: what is known of past steps."""


def with_fit(trainer: Any, client_states: dict[str, Any] | None) -> dict[str, Any]:
    """``client_states`` with the fit of past steps, and how they answered."""
    crediter = trainer.experience_maker.crediter
    return {**(client_states or {}), STATE: state_of(crediter.calibrator, crediter.encoder)}


class RRedCoTTrainerMixin(host.BasePPOTrainer):
    """Methods of OpenRLHF's trainers, with metrics of ours, and what is known of past steps among what a checkpoint holds."""

    def train_step(self, rollout_samples: Any, global_step: int) -> Any:
        """Dumps bear the number that OpenRLHF logs the step with; metrics of ours are logged with its own."""
        self.experience_maker.global_step = global_step + 1
        status, number = _train_step(self, rollout_samples, global_step)
        return {**status, **self.experience_maker.metrics}, number

    def save_logs_and_checkpoints(
        self, global_step: int, logs_dict: Any = None, client_states: Any = None
    ) -> None:
        _save(self, global_step, logs_dict, with_fit(self, client_states))

    def save_best_checkpoint(self, eval_metrics: Any, global_step: int, client_states: Any = None) -> None:
        _save_best(self, eval_metrics, global_step, with_fit(self, client_states))

    def init_checkpoint_states(self) -> dict[str, Any]:
        states: dict[str, Any] = _init(self)
        if STATE in states:
            crediter = self.experience_maker.crediter
            take_up(states.pop(STATE), crediter.calibrator, crediter.encoder)
            logger.warning("rredcot: the fit of past steps is back")
        elif states.get("global_step", 0) > 0:
            logger.warning("rredcot: this checkpoint was saved without rredcot, so %s", WITHOUT_PAST)
        return states


EXTENDED = ("train_step", "save_logs_and_checkpoints", "save_best_checkpoint", "init_checkpoint_states")
_train_step, _save, _save_best, _init = (getattr(host.BasePPOTrainer, name) for name in EXTENDED)
# the trainer is a Ray actor by now, into which Ray has copied what it inherits; the asynchronous one is not defined yet
for _class in (host.BasePPOTrainer, host.PPOTrainer.__ray_metadata__.modified_class):
    for _name in EXTENDED:
        setattr(_class, _name, RRedCoTTrainerMixin.__dict__[_name])
