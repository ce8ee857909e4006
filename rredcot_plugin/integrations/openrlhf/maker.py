"""Runs after ``openrlhf.trainer.ppo_trainer``: an experience maker that gives credit."""

from __future__ import annotations

import itertools
import logging
import time
from typing import Any

import openrlhf.trainer.ppo_trainer as host
import torch

from rredcot_plugin import __version__
from rredcot_plugin.adapter.dump import Dumper
from rredcot_plugin.adapter.probe_plan import plan_metrics
from rredcot_plugin.adapter.trace_record import Asked, CreditedBatch
from rredcot_plugin.integrations.openrlhf.settings import settings_of_process
from rredcot_plugin.integrations.openrlhf.step import Crediter, Step
from rredcot_plugin.segmenters.lookahead import INEXACT
from rredcot_plugin.types import Credit, Rollouts

logger = logging.getLogger(__name__)

Base: Any = host.RemoteExperienceMaker

SIGNALS = ("entropies", "sum_pi_squared")
"""What the pass finds of actions beside their log-probs, by field of ``Rollouts``."""


class RRedCoTExperienceMaker(Base):
    """OpenRLHF's maker; the advantages and returns of its experiences are ours."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.settings = settings_of_process(self.args)
        self.crediter = Crediter(self.settings, self.tokenizer, self.args.rollout.n_samples_per_prompt)
        self.step: Step | None = None
        self.global_step = 0
        self.metrics: dict[str, float] = {}
        self._warned, self._plan_seconds = False, 0.0
        self.dumper = Dumper.of_run(self.settings, __version__)

    def split_rollout_samples(self, rollout_samples: list[Any]) -> list[Any]:
        """OpenRLHF goes on without a reward where the reward function raises, and fails here for want of it.

        Raises:
            ValueError: rollouts without a reward, in a run without a reward model.
        """
        missing = sum(own.rewards is None for own in rollout_samples)
        if missing and self.reward_model_group is None:
            raise ValueError(
                f"--reward.remote_url {','.join(self.args.reward.remote_url or [])}: gave no reward to {missing} of "
                f"{len(rollout_samples)} rollouts; OpenRLHF logs why, as 'Failed to fetch reward from remote RM'"
            )
        split: list[Any] = super().split_rollout_samples(rollout_samples)
        return split

    def make_experience(self, samples_list: list[Any]) -> list[Any]:
        """Segment, ask for the probes in OpenRLHF's own log-prob pass, read the answers."""
        begin = time.perf_counter()
        self.step = self.crediter.plan(samples_list)
        self._plan_seconds = time.perf_counter() - begin
        if self.step.lookahead and not self._warned:
            self._warned = True
            logger.warning(INEXACT, self.settings.segmenter, self.step.lookahead)
        made: list[Any] = super().make_experience(samples_list)
        return made

    def _dispatch_forward(self, group: Any, sync_condition: Any, **kwargs: Any) -> Any:
        if group is self.actor_model_group and self.step is not None:
            flat, backend = iter(self.step.plan.packed), self.settings.probe_backend
            if self.step.plan.size == 0:
                backend = "batched"  # without probes the pass is OpenRLHF's alone: no keys and values are kept
            sequences = kwargs["sequences"]
            kwargs["probes"] = [list(itertools.islice(flat, len(own))) for own in sequences]
            kwargs["probe_backend"] = ["cached" if backend == "auto" else backend] * len(sequences)
            kwargs["squares"] = [self.crediter.squares] * len(sequences)
        elif group is self.reward_model_group and "reward_model" in self.crediter.reads:
            kwargs["every_token"] = [True] * len(kwargs["sequences"])
        return super()._dispatch_forward(group, sync_condition, **kwargs)

    def _flatten_results(self, refs: Any, duplicate_factor: int) -> list[Any]:
        found: list[Any] = super()._flatten_results(refs, duplicate_factor)
        if self.step is None or not found or not isinstance(found[0], dict):
            return found
        if "rewards" in found[0]:
            self.step.scores = [batch["scores"] for batch in found]
            return [batch["rewards"] for batch in found]
        self.step.answers = [own for batch in found for own in batch["answers"]]
        self.step.signals = {name: [batch[name] for batch in found] for name in SIGNALS if name in found[0]}
        actors = max(1, len(refs) // duplicate_factor)  # which work at the same time
        self.step.seconds = sum(batch["seconds"] for batch in found) / actors
        return [batch["log_probs"] for batch in found]

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Any]) -> list[Any]:
        """Length penalties are OpenRLHF's; then credit. The KL penalty stays on its tokens."""
        assert self.step is not None
        step, begin = self.step, time.perf_counter()
        kl = [experience.kl for experience in experiences]  # which OpenRLHF forgets on the way
        super().compute_advantages_and_returns(experiences)
        credit, rollouts = self.crediter.credit(experiences, step, kl, self.kl_ctl.value)
        self.metrics = self._metrics(step, credit, time.perf_counter() - begin)
        self._dump(step, rollouts, credit)
        self.step = None
        return experiences

    def _metrics(self, step: Step, credit: Credit, seconds: float) -> dict[str, float]:
        """Of the step as a whole. In the ``info`` of experiences, where OpenRLHF has its own, each would travel once per sample
        and be reduced over all ranks once per micro-batch."""
        metrics = {
            **plan_metrics(step.plan, step.rows.tokens),
            **credit.metrics,
            **step.metrics,
            "timing_s/rredcot_plan": self._plan_seconds,
            "timing_s/rredcot_probes": step.seconds,
            "timing_s/rredcot_credit": seconds,
        }
        return {name: float(value) for name, value in metrics.items()}

    def _dump(self, step: Step, rollouts: Rollouts, credit: Credit) -> None:
        """What people look at; nothing in here changes a number of the step."""
        if self.dumper is None or self.global_step % self.settings.dump_every:
            return
        asked = None if step.answers is None else Asked(step.plan, step.answers)
        keeps = self.settings.keeps_turn_rewards
        batch = CreditedBatch(step.rows, rollouts, credit, self.crediter.table, asked, keeps=keeps)
        self.dumper.write(self.global_step, 0, batch)


host.RemoteExperienceMaker = RRedCoTExperienceMaker
