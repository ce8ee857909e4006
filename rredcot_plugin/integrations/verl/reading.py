"""What a step reads of its batch before, in and after the log-prob pass, probes apart (``exchange.py``)."""

from __future__ import annotations

import logging
from typing import Any

from verl.utils.debug import marked_timer

from rredcot_plugin.adapter.data_plane import OpenRows
from rredcot_plugin.adapter.output_cuts import build_levels
from rredcot_plugin.adapter.probe_plan import plan_metrics
from rredcot_plugin.adapter.process_rewards import moved
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.baselines.base import needs_of
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.integrations.verl import transfer_fields
from rredcot_plugin.integrations.verl.attribution import ask_attribution, read_attribution
from rredcot_plugin.integrations.verl.batch import SIGNALS
from rredcot_plugin.integrations.verl.credit_workers import CreditWorkers
from rredcot_plugin.integrations.verl.media import refuse_media
from rredcot_plugin.integrations.verl.monte_carlo import MonteCarloHook
from rredcot_plugin.integrations.verl.prefix_scores import PrefixScorer
from rredcot_plugin.integrations.verl.session_plane import as_sessions, layout_of
from rredcot_plugin.integrations.verl.sessions import row_roles
from rredcot_plugin.integrations.verl.step import StepState
from rredcot_plugin.segmenters.lookahead import INEXACT
from rredcot_plugin.text.alignment import TokenBytes
from rredcot_plugin.types import Segments
from rredcot_plugin.values.base import NO_PROBES, leaves, scores_read
from rredcot_plugin.values.environment import share_without
from rredcot_plugin.values.monte_carlo import MonteCarloEstimator
from rredcot_plugin.values.reward_model import RewardModelEstimator

logger = logging.getLogger(__name__)


class StepReader:
    """Knows what the configured estimator and baseline read, and where that comes from."""

    def __init__(self, trainer: Any, settings: RRedCoTConfig, open_rows: OpenRows) -> None:
        self.trainer, self.settings, self.open_rows = trainer, settings, open_rows
        estimator = settings.build_value_estimator()
        parts = list(leaves(estimator))
        self.reads = scores_read(estimator)
        own = any(not type(leaf).__module__.startswith("rredcot_plugin.") for leaf in parts)
        self.reads_texts = own or any(getattr(leaf, "reads_texts", False) for leaf in parts)
        """Whether a part of it looks at texts, as a user's may."""
        baseline_reads = needs_of(settings.build_baseline(log_probs=True))
        self.squares = "sum_pi_squared" in baseline_reads
        """Whether the baseline wants Σ_v π_v² of every token."""
        unprobed = any(leaf.proposes == NO_PROBES for leaf in parts)
        self.needs_rows = bool(self.reads_texts or self.reads or unprobed or baseline_reads)
        """Whether the estimator or the baseline looks at tokens or their signals in the driver."""
        self.attributions = self.reads & transfer_fields.SCORES.keys()
        self.table: TokenBytes | None = None
        self._warned = False
        self.monte_carlo: MonteCarloHook | None = None
        self.scorer: PrefixScorer | None = None
        for leaf in parts:
            if isinstance(leaf, RewardModelEstimator):
                self.scorer = PrefixScorer(trainer, leaf)
            if isinstance(leaf, MonteCarloEstimator):
                first_state = 1 if settings.prior_from_group else 0
                keeps = settings.keeps_turn_rewards
                self.monte_carlo = MonteCarloHook(
                    trainer, leaf, open_rows, self._segments, first_state, keeps=keeps
                )

    def _segments(self, rows: PromptedRollouts) -> Segments:
        assert self.table is not None
        return build_levels(rows.read(self.table), self.settings)[-1]

    def plan(
        self,
        batch: Any,
        credit_workers: CreditWorkers,
        metrics: dict,
        *,
        needs_rows: bool,
        lowest: float | None,
    ) -> StepState:
        """Segments and probes, the latter laid down for the engine unless they run as rows of their own."""
        assert self.table is not None
        roles = row_roles(batch.keys, batch.tags)
        layout = layout_of(batch, roles)
        plane = as_sessions(self.open_rows(batch, roles.active), layout)
        summary, plan = credit_workers.plan(plane, layout.totals, lowest)
        rows = credit_workers.rows
        if rows is None and needs_rows:
            rows = moved(plane.rows(), summary.moved)
            rows = rows.read(self.table) if self.reads_texts else rows
        metrics.update(plan_metrics(plan, summary.tokens) | roles.metrics | summary.metrics)
        metrics["rredcot/driver/workers/mean"] = float(credit_workers.processes)
        if summary.lookahead and not self._warned:
            self._warned = True
            logger.warning(INEXACT, self.settings.segmenter, summary.lookahead)
        versions = roles.versions(batch.tags)
        return StepState(roles, layout, plane, rows, summary, plan, credit_workers.group_ids, versions)

    def ask(self, batch: Any, state: StepState) -> None:
        """Have the engine look at more than probes in its log-prob pass.

        Raises:
            ValueError: the gradient, whose forward reads tokens alone, of rows that have more.
        """
        if self.attributions:
            every = self.open_rows(batch, range(state.roles.rows))
            if "gradient" in self.attributions:
                key = f"algorithm.rredcot.value_estimator={self.settings.value_estimator}"
                refuse_media(self.trainer, every, f"The gradient that {key} reads")
            ask_attribution(batch, every, self.attributions, state.roles, state.held, state.segments)
        if self.squares:
            batch.extra_info[transfer_fields.SQUARES] = True

    def read_signals(self, state: StepState, credit_workers: CreditWorkers) -> None:
        """The actor's signals of the tokens (``batch.SIGNALS``), by whoever needs them."""
        state.numbers = credit_workers.read_signals()
        if state.rows is None:
            return
        if credit_workers.rows is None:
            state.signals = state.plane.signals(state.width)
        else:
            signals = {name: getattr(credit_workers.rows.rollouts, name) for name in SIGNALS.values()}
            state.signals = {name: signal for name, signal in signals.items() if signal is not None}

    def read_token_scores(self, batch: Any, state: StepState, metrics: dict) -> None:
        """What estimators without probes read, a critic apart."""
        if self.attributions:
            state.token_scores.update(read_attribution(state.plane, self.attributions, state.width))
        if self.monte_carlo is not None:
            found, cost = self.monte_carlo.take(state.roles.names, state.width)
            state.token_scores["monte_carlo"] = found
            metrics.update(cost)
        if "environment" in self.reads:
            state.token_scores["environment"] = found = state.plane.turn_values(state.width)
            lacking = share_without(found, state.held.rollouts.response_mask)
            metrics["rredcot/fallback/no_state_value/mean"] = lacking
        if self.scorer is not None:
            with marked_timer("rredcot_reward_model", getattr(self.trainer, "timing_raw", {})):
                state.token_scores["reward_model"] = self.scorer.scores(state.held)

    def read_critic(self, state: StepState) -> None:
        """verl's critic values, once they are there."""
        if self.trainer.use_critic:
            state.token_scores["critic"] = state.plane.numbers(["values"], state.width)[0]

    def read_copies(self, state: StepState) -> None:
        """Rewards as the queue has them, where verl adds a penalty to those of every output of a session."""
        if self.trainer.config.algorithm.use_kl_in_reward and not state.layout.is_trivial:
            state.copies = state.plane.numbers(["rm_scores"], state.width)[0]
