"""Runs after ``verl.trainer.ppo.ray_trainer``: credit in verl's trainer over ``DataProto`` (``trainer.use_v1=false``).

Its class is replaced by a subclass that does nothing unless ``algorithm.adv_estimator`` is ours; verl leaves no registry for
it. Between the log-prob pass and the advantages its ``fit`` calls no method, so the credit step is opened after the former and
closed by the estimator's call. Its metrics come back with those of the next update.
"""

from __future__ import annotations

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any

import verl.trainer.ppo.ray_trainer as host

from rredcot_plugin.integrations.verl.checkpoints import load_beside, save_beside
from rredcot_plugin.integrations.verl.estimator import close_step, open_step
from rredcot_plugin.integrations.verl.proto import SIGNALS, ProbingGroup, ProtoBatch, open_proto
from rredcot_plugin.integrations.verl.runner import CreditRunner
from rredcot_plugin.integrations.verl.settings import is_ours
from rredcot_plugin.integrations.verl.start import begin_run, check_trainer
from rredcot_plugin.values.reference import reference_column

Base: Any = host.RayPPOTrainer


class RRedCoTRayPPOTrainer(Base):
    """verl's trainer over ``DataProto`` with credit assignment around the methods that it touches."""

    rredcot: CreditRunner | None = None
    actor_rollout_wg: Any
    config: Any

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        resolved = begin_run(config)
        super().__init__(config, *args, **kwargs)
        if resolved is None:
            return
        # what the runner reads of the other trainers; this one keeps its tracker and its timings to itself
        self.parameter_sync_step, self.local_trigger_step = 1, 0
        self.logger = SimpleNamespace(logger={})
        self.timing_raw: dict[str, float] = {}
        settings = dataclasses.replace(resolved.config, credit_workers=0)  # processes read TransferQueue
        column = reference_column(settings.build_value_estimator())
        self.rredcot = CreditRunner(self, settings, functools.partial(open_proto, reference_column=column))
        self.rredcot.attach_tokenizer(self.tokenizer)
        self._credit_metrics: dict[str, float] = {}

    def _init_dump_executor(self) -> None:
        # verl's fully asynchronous trainer calls neither validate_config nor the __init__ above, but this in its own
        if is_ours(self.config):
            check_trainer(self.config)
        super()._init_dump_executor()

    def _compute_old_log_prob(self, batch: Any) -> Any:
        if self.rredcot is None:
            return super()._compute_old_log_prob(batch)
        compute = super()._compute_old_log_prob
        found: list[Any] = []

        def with_probes(asked: ProtoBatch, metrics: dict) -> ProtoBatch:
            group: Any = self.actor_rollout_wg
            self.actor_rollout_wg = ProbingGroup(group, asked)
            try:
                found.append(compute(batch))
            finally:
                self.actor_rollout_wg = group
            asked.signals = {name: found[0][0].batch[name].cpu() for name in SIGNALS}
            return asked

        rows = ProtoBatch.of(batch)
        metrics: dict[str, float] = {}
        self.timing_raw.clear()
        self.rredcot.compute_old_log_prob(rows, metrics, with_probes)
        open_step(functools.partial(self._credit, rows, metrics))
        return found[0]

    def _credit(self, rows: ProtoBatch, metrics: dict, rewards: Any, response_mask: Any) -> Any:
        """The estimator's call, once a step."""
        assert self.rredcot is not None
        close_step()
        found = self.rredcot.compute_advantage(rows, metrics)(rewards, response_mask)
        timings = {f"timing_s/{name}": seconds for name, seconds in self.timing_raw.items()}
        self._credit_metrics = {**metrics, **timings}
        return found

    def _update_critic(self, batch: Any) -> Any:
        return self._with_metrics(super()._update_critic(batch))

    def _update_actor(self, batch: Any) -> Any:
        return self._with_metrics(super()._update_actor(batch))

    def _with_metrics(self, output: Any) -> Any:
        """The first update of a step takes the metrics of its credit along."""
        if self.rredcot is not None:
            own, self._credit_metrics = self._credit_metrics, {}
            output.meta_info["metrics"].update({name: [value] for name, value in own.items()})
        return output

    def _save_checkpoint(self) -> None:
        if self.rredcot is not None:
            save_beside(self, self.rredcot)
        super()._save_checkpoint()

    def _load_checkpoint(self) -> Any:
        found = super()._load_checkpoint()
        if self.rredcot is not None:
            load_beside(self, self.rredcot)
        return found


host.RayPPOTrainer = RRedCoTRayPPOTrainer  # type: ignore[misc]
