"""Runs after ``verl.trainer.ppo.v1``: wraps verl's registered trainers under their own names.

verl compares the mode name with the literal ``sync`` in many places, so a trainer of a new name would turn
asynchronous. Instead each registered class is replaced by a subclass of itself that does nothing unless
``algorithm.adv_estimator`` is ours. verl leaves no public way to replace an entry: this is the one place that
writes to its registry.
"""

from __future__ import annotations

from typing import Any

from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY, PPOTrainer

from rredcot_plugin.integrations.verl.checkpoints import load_beside, save_beside
from rredcot_plugin.integrations.verl.estimator import credit_step
from rredcot_plugin.integrations.verl.runner import CreditRunner
from rredcot_plugin.integrations.verl.start import begin_run

MODES = ("sync", "colocate_async", "separate_async")


class RRedCoTTrainerMixin:
    """Credit assignment around the methods of verl's trainer that it touches."""

    rredcot: CreditRunner | None = None

    def __init__(self, config: Any) -> None:
        resolved = begin_run(config)
        super().__init__(config)  # type: ignore[call-arg]
        if resolved is not None:
            self.rredcot = CreditRunner(self, resolved.config)

    def _setup(self) -> None:
        super()._setup()  # type: ignore[misc]
        if self.rredcot is not None:
            self.rredcot.setup()

    def _init_tokenizer(self) -> None:
        super()._init_tokenizer()  # type: ignore[misc]
        if self.rredcot is not None:
            self.rredcot.attach_tokenizer(self.tokenizer)  # type: ignore[attr-defined]

    def on_sample_end(self) -> None:
        if self.rredcot is not None:
            self.rredcot.on_sampled()  # before verl puts the rollout servers to sleep
        super().on_sample_end()  # type: ignore[misc]

    def _compute_advantage(self, batch: Any, metrics: dict) -> Any:
        if self.rredcot is None:
            return super()._compute_advantage(batch, metrics)  # type: ignore[misc]
        with credit_step(self.rredcot.compute_advantage(batch, metrics)):
            return super()._compute_advantage(batch, metrics)  # type: ignore[misc]

    def _save_checkpoint(self) -> None:
        if self.rredcot is not None:
            save_beside(self, self.rredcot)
        super()._save_checkpoint()  # type: ignore[misc]

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()  # type: ignore[misc]
        if self.rredcot is not None:
            load_beside(self, self.rredcot)


class RRedCoTLogProbPass(PPOTrainer):
    """Credit assignment around the log-prob pass of verl's base trainer, inside whatever a mode's trainer does around
    that.

    From the second mini-batch of a step on, ``separate_async`` loads the weights that the step began with, calls its
    base class, and loads the current weights again. Probes must see what ``old_log_probs`` see, those that run as rows
    of their own too, so this class comes after the mode's trainer in the order of resolution.
    """

    rredcot: CreditRunner | None

    def _compute_old_log_prob(self, batch: Any, metrics: dict) -> Any:
        compute = super()._compute_old_log_prob
        if self.rredcot is None:
            return compute(batch, metrics)
        return self.rredcot.compute_old_log_prob(batch, metrics, compute)


def wrap_trainers() -> None:
    """Put the mixin in front of every registered trainer, and the log-prob pass between it and its base; a second call
    changes nothing."""
    for name in MODES:
        trainer = TRAINER_REGISTRY[name]
        if not issubclass(trainer, RRedCoTTrainerMixin):
            bases = (RRedCoTTrainerMixin, trainer, RRedCoTLogProbPass)
            wrapped = type(trainer.__name__, bases, {"__module__": __name__})
            TRAINER_REGISTRY[name] = wrapped


wrap_trainers()
