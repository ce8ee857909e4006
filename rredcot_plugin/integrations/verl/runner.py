"""One step of credit assignment inside verl's trainer: before, in and after the log-prob pass.

The parts can be driven one by one: ``reading.py`` (rows, signals, scores), ``exchange.py`` (probes there, log-probs
back), ``credit.py`` (rewards to advantages). All of them reach rows through ``adapter.data_plane.DataPlane``, and of verl's trainer
read ``config``, ``global_steps``, ``local_trigger_step``, ``parameter_sync_step``, ``use_critic``, ``logger``,
``timing_raw``, ``resource_pool_manager.get_n_gpus()`` and, for probes as rows of their own, ``actor_rollout_wg``.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from verl.utils.debug import marked_timer

from rredcot_plugin import __version__
from rredcot_plugin.adapter.data_plane import OpenRows
from rredcot_plugin.adapter.dump import Dumper
from rredcot_plugin.adapter.state import WITHOUT_PAST, state_of, take_up
from rredcot_plugin.adapter.trace_record import Asked, CreditedBatch
from rredcot_plugin.adapter.whole_file import whole_file
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.credit.metrics import share
from rredcot_plugin.integrations.verl import transfer_fields
from rredcot_plugin.integrations.verl.batch import open_rows
from rredcot_plugin.integrations.verl.credit import credit_of_step, gae_of_critic
from rredcot_plugin.integrations.verl.credit_workers import CreditWorkers
from rredcot_plugin.integrations.verl.estimator import RED
from rredcot_plugin.integrations.verl.exchange import ProbeExchange
from rredcot_plugin.integrations.verl.reading import StepReader
from rredcot_plugin.integrations.verl.step import StepState
from rredcot_plugin.integrations.verl.tokens import has_lost_end, onto_rows
from rredcot_plugin.integrations.verl.tracking import CreditTracker
from rredcot_plugin.text.alignment import TokenBytes
from rredcot_plugin.text.encoding import ProbeEncoder
from rredcot_plugin.values.reference import reference_column

logger = logging.getLogger(__name__)

STATE_FILE = "rredcot.pt"


class CreditRunner:
    """Holds what outlives a step: options, answer format, calibration window, chosen backend."""

    def __init__(self, trainer: Any, settings: RRedCoTConfig, rows_of: OpenRows | None = None) -> None:
        self.trainer = trainer
        self.settings = settings
        self.calibrator = settings.build_calibrator()
        self.state: StepState | None = None
        if rows_of is None:
            column = reference_column(settings.build_value_estimator())
            rows_of = functools.partial(open_rows, reference_column=column)
        self.exchange = ProbeExchange(trainer, settings.probe_backend, rows_of)
        self.reader = StepReader(trainer, settings, rows_of)
        self._table: TokenBytes | None = None
        self._credit_workers: CreditWorkers | None = None
        mini_batches = trainer.parameter_sync_step
        self._tracker = CreditTracker(settings.histogram_every, mini_batches)
        self._dumper = Dumper.of_run(settings, __version__, mini_batches)

    @property
    def credit_workers(self) -> CreditWorkers:
        assert self._credit_workers is not None
        return self._credit_workers

    def attach_tokenizer(self, tokenizer: Any) -> None:
        """Read the tokenizer once; raises ``ValueError`` for one without offsets, or unlike the reward model's."""
        if self.reader.scorer is not None:
            self.reader.scorer.check(tokenizer)
        self._table = self.reader.table = TokenBytes.from_tokenizer(tokenizer)
        s = self.settings
        encoder = ProbeEncoder(tokenizer, s.bridge, s.terminator, s.max_probe_tokens)
        self._credit_workers = CreditWorkers(s, self._table, encoder, delivers=self.exchange.in_pass)

    def setup(self) -> None:
        """Start what needs workers of its own, once verl's stand."""
        if self.reader.scorer is not None:
            self.reader.scorer.setup()

    def on_sampled(self) -> None:
        """Called between sampling and everything else of a step."""
        if self.reader.monte_carlo is not None:
            self.reader.monte_carlo.on_sampled()

    def compute_old_log_prob(self, batch: Any, metrics: dict, compute: Callable[[Any, dict], Any]) -> Any:
        """Segment, ask for the probes in verl's own log-prob pass (``compute``), read the answers."""
        timing = getattr(self.trainer, "timing_raw", {})
        with marked_timer("rredcot_plan", timing):
            self.state = state = self._plan(batch, metrics)
        asked = self.exchange.ask(batch, state)
        self.reader.ask(batch, state)
        extra_info = batch.extra_info
        batch = compute(batch, metrics)
        for info in (extra_info, batch.extra_info):
            for key in (transfer_fields.BACKEND, transfer_fields.ATTRIBUTION, transfer_fields.SQUARES):
                info.pop(key, None)
        if asked:
            self.exchange.read(batch, state, self.credit_workers, metrics)
        with marked_timer("rredcot_plan", timing):
            self.reader.read_signals(state, self.credit_workers)
        self.reader.read_token_scores(batch, state, metrics)
        if not self.exchange.in_pass and state.plan.size:
            with marked_timer("rredcot_probes", timing):
                self.exchange.run(batch, state)
        metrics["rredcot/probes/in_pass/mean"] = float(asked and self.exchange.in_pass)
        return batch

    def _plan(self, batch: Any, metrics: dict) -> StepState:
        needs_rows, lowest = self._needs_rows(), self.calibrator.lowest
        return self.reader.plan(batch, self.credit_workers, metrics, needs_rows=needs_rows, lowest=lowest)

    def _needs_rows(self) -> bool:
        """Whether anything in the driver looks at tokens or their signals in this step."""
        trainer, step = self.trainer, self.trainer.global_steps
        read_by_verl = trainer.use_critic or trainer.config.algorithm.use_kl_in_reward
        dumped = self._dumper is not None and step % self.settings.dump_every == 0
        shown = dumped or self._tracker.is_due(trainer.logger, step)
        return bool(not self.exchange.in_pass or self.reader.needs_rows or read_by_verl or shown)

    def compute_advantage(self, batch: Any, metrics: dict) -> Callable[[torch.Tensor, torch.Tensor], tuple]:
        """The credit step that verl's ``_compute_advantage`` calls through the estimator."""
        if self.state is not None:
            self.reader.read_critic(self.state)
            self.reader.read_copies(self.state)

        def step(token_level_rewards: torch.Tensor, response_mask: torch.Tensor) -> tuple:
            with marked_timer("rredcot_credit", getattr(self.trainer, "timing_raw", {})):
                return self._step(token_level_rewards, response_mask, metrics)

        return step

    def _step(self, rewards: torch.Tensor, response_mask: torch.Tensor, metrics: dict) -> tuple:
        state = self.state
        if state is None:
            raise ValueError("rredcot: advantages were requested before the log-prob pass of this step ran")
        self.state = None
        kl_in_reward = self.trainer.config.algorithm.use_kl_in_reward
        credit, rollouts = credit_of_step(
            state, rewards, self.settings, self.calibrator, kl_in_reward=kl_in_reward
        )
        metrics.update(credit.metrics)
        algorithm = self.trainer.config.algorithm
        advantages, returns = credit.advantages, credit.returns
        if str(algorithm.adv_estimator) == RED and self.trainer.use_critic:
            advantages, returns = gae_of_critic(credit, rollouts, algorithm)
        used = dataclasses.replace(credit, advantages=advantages, returns=returns)
        metrics["rredcot/fallback/lost_end/mean"] = share(has_lost_end(state.roles, response_mask))
        advantages = onto_rows(advantages, state.roles, state.layout, response_mask)
        values = state.token_scores.get("critic")
        returns = onto_rows(returns, state.roles, state.layout, response_mask, values)
        if state.rows is not None:
            asked = None if state.log_probs is None else Asked(state.plan, state.log_probs)
            assert self._table is not None
            names, keeps = state.roles.names, self.settings.keeps_turn_rewards
            self._show(CreditedBatch(state.rows, rollouts, used, self._table, asked, names, keeps))
        return advantages, returns

    def _show(self, batch: CreditedBatch) -> None:
        """What people look at; nothing in here changes a number of the step."""
        step, mini_batch = self.trainer.global_steps, self.trainer.local_trigger_step
        if self._dumper is not None and step % self.settings.dump_every == 0:
            self._dumper.write(step, mini_batch, batch)
        self._tracker.take(self.trainer.logger, step, mini_batch, batch)

    def save(self, folder: str) -> None:
        """Write what is known of past steps beside verl's checkpoint, in one move."""
        os.makedirs(folder, exist_ok=True)
        with whole_file(Path(folder, STATE_FILE)) as part:
            torch.save(state_of(self.calibrator, self.credit_workers.encoder), part)

    def load(self, folder: str) -> None:
        """Go on as the run that has saved there; a checkpoint without our file is warned of.

        Raises:
            ValueError: the file is damaged, or not one of ours.
        """
        path = os.path.join(folder, STATE_FILE)
        if not os.path.exists(path):
            logger.warning("rredcot: %s is missing, so %s", path, WITHOUT_PAST)
            return
        try:
            take_up(torch.load(path, weights_only=True), self.calibrator, self.credit_workers.encoder)
        except Exception as error:  # torch raises half a dozen kinds for a damaged file
            reason = (str(error).strip().splitlines() or ["it ends too early"])[0]
            raise ValueError(
                f"rredcot: {path} cannot be read ({type(error).__name__}: {reason}): copy it again from where it was "
                f"saved, or remove it, and {WITHOUT_PAST}"
            ) from error
