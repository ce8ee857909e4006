"""One step of credit assignment inside verl's trainer: before, in and behind the log-prob pass."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
from verl.trainer.ppo import core_algos
from verl.utils.debug import marked_timer

from rredcot_plugin.alignment import TokenBytes
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.encoding import ProbeEncoder
from rredcot_plugin.integrations.verl import wire
from rredcot_plugin.integrations.verl.attribution import ask_attribution, read_attribution
from rredcot_plugin.integrations.verl.batch import BatchSource, onto_unmasked, tokenless
from rredcot_plugin.integrations.verl.batched import batched_log_probs
from rredcot_plugin.integrations.verl.crew import Crew
from rredcot_plugin.integrations.verl.dump import Dumper
from rredcot_plugin.integrations.verl.estimator import RED
from rredcot_plugin.integrations.verl.monte_carlo import MonteCarloHook
from rredcot_plugin.integrations.verl.prefix_scores import PrefixScorer
from rredcot_plugin.integrations.verl.sessions import RowRoles, row_roles
from rredcot_plugin.integrations.verl.settings import why_not_in_pass
from rredcot_plugin.integrations.verl.tokens import fit_width, rewards_at_ends, share_with_sessions
from rredcot_plugin.integrations.verl.tracking import CreditTracker
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.probes.layout import pack
from rredcot_plugin.probing import ProbePlan, plan_metrics
from rredcot_plugin.rows import StepRows
from rredcot_plugin.shards import Seen
from rredcot_plugin.types import MASKED, Credit, Rollouts, Segments
from rredcot_plugin.values.base import NO_PROBES, leaves, scores_read
from rredcot_plugin.values.monte_carlo import MonteCarloEstimator
from rredcot_plugin.values.reference import reference_column
from rredcot_plugin.values.reward_model import RewardModelEstimator

logger = logging.getLogger(__name__)

STATE_FILE = "rredcot.pt"


@dataclass
class StepState:
    """What is known of the batch at hand between the two halves of a step. ``rows`` is None where none of its tokens
    are needed in the driver."""

    roles: RowRoles
    source: BatchSource
    rows: StepRows | None
    seen: Seen
    plan: ProbePlan
    group_ids: list[str]
    log_probs: Sequence[Sequence[float] | torch.Tensor] | None = None
    has_log_probs: bool = False
    signals: dict[str, torch.Tensor] = field(default_factory=dict)
    token_scores: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def segments(self) -> Segments:
        return self.seen.levels[-1]

    @property
    def width(self) -> int:
        return self.segments.segment_ids.shape[1]

    @property
    def held(self) -> StepRows:
        """The rows, where something is asked for that needs them."""
        assert self.rows is not None
        return self.rows


class CreditRunner:
    """Holds what outlives a step: options, answer format, calibration window, chosen backend."""

    def __init__(self, trainer: Any, settings: RRedCoTConfig) -> None:
        self.trainer = trainer
        self.settings = settings
        self.calibrator = settings.build_calibrator()
        self.state: StepState | None = None
        self._table: TokenBytes | None = None
        self._crew: Crew | None = None
        self.backend = self._choose_backend()
        self.estimator = settings.build_value_estimator()
        self.reads = scores_read(self.estimator)
        self._own = any(not type(leaf).__module__.startswith("rredcot_plugin.") for leaf in leaves(self.estimator))
        self._attributions = self.reads & wire.SCORES.keys()
        mini_batches = trainer.parameter_sync_step
        self._tracker = CreditTracker(settings.log_every, mini_batches)
        self._dumper = None
        if settings.dump_dir:
            self._dumper = Dumper(Path(settings.dump_dir), settings.dump_max_mb, mini_batches)
        self._monte_carlo: MonteCarloHook | None = None
        self._scorer: PrefixScorer | None = None
        for leaf in leaves(self.estimator):
            if isinstance(leaf, RewardModelEstimator):
                self._scorer = PrefixScorer(trainer, leaf)
            if isinstance(leaf, MonteCarloEstimator):
                first_state = 1 if settings.prior_from_group else 0
                self._monte_carlo = MonteCarloHook(trainer, leaf, self._source, self._segments, first_state)

    def on_sampled(self) -> None:
        """Called between sampling and everything else of a step."""
        if self._monte_carlo is not None:
            self._monte_carlo.on_sampled()

    def _source(self, batch: Any, roles: RowRoles) -> BatchSource:
        keys = [batch.keys[row] for row in roles.active]
        return BatchSource(keys, batch.partition_id, reference_column(self.estimator))

    def _segments(self, rows: StepRows) -> Segments:
        assert self._table is not None
        return self.settings.build_levels(rows.read(self._table).rollouts)[-1]

    def _needs_rows(self) -> bool:
        """Whether anything in the driver looks at tokens or their signals in this step."""
        trainer, step = self.trainer, self.trainer.global_steps
        read_by_estimator = (
            self._own or self.reads or any(leaf.proposes == NO_PROBES for leaf in leaves(self.estimator))
        )
        read_by_verl = trainer.use_critic or trainer.config.algorithm.use_kl_in_reward
        dumped = self._dumper is not None and step % self.settings.dump_every == 0
        batched = self.backend == "batched"
        return bool(
            batched or read_by_estimator or read_by_verl or dumped or self._tracker.is_due(trainer.logger, step)
        )

    def _choose_backend(self) -> str:
        wanted = self.settings.probe_backend
        reason = why_not_in_pass(self.trainer.config)
        if wanted == "batched" or reason is None:
            return "cached" if wanted == "auto" else wanted
        logger.warning(
            "rredcot: probes run as rows of their own (probe_backend=batched, slower), because of %s", reason
        )
        return "batched"

    def attach_tokenizer(self, tokenizer: Any) -> None:
        """Read the tokenizer once; raises ``ValueError`` for one without offsets, or unlike the reward model's."""
        if self._scorer is not None:
            self._scorer.check(tokenizer)
        self._table = TokenBytes.from_tokenizer(tokenizer)
        s = self.settings
        encoder = ProbeEncoder(tokenizer, s.bridge, s.terminator, s.max_probe_tokens)
        self._crew = Crew(s, self._table, encoder, delivers=self.backend != "batched")

    def setup(self) -> None:
        """Start what needs workers of its own, once verl's stand."""
        if self._scorer is not None:
            self._scorer.setup()

    def compute_old_log_prob(self, batch: Any, metrics: dict, compute: Callable[[Any, dict], Any]) -> Any:
        """Segment, ask for the probes in verl's own log-prob pass (``compute``), read the answers."""
        timing = getattr(self.trainer, "timing_raw", {})
        with marked_timer("rredcot_plan", timing):
            self.state = state = self._plan(batch, metrics)
        in_pass = self.backend != "batched" and state.plan.size > 0
        if in_pass:
            self._put_idle(batch, state.roles)
            batch.extra_info[wire.BACKEND] = self.backend
        if self._attributions:
            ask_attribution(batch, self._attributions, state.roles, state.held, state.segments)
        extra_info = batch.extra_info
        batch = compute(batch, metrics)
        for info in (extra_info, batch.extra_info):
            info.pop(wire.BACKEND, None)
            info.pop(wire.ATTRIBUTION, None)
        if in_pass:
            self._read_answers(batch, state, metrics)
        self._read_signals(state)
        self._read_token_scores(batch, state, metrics)
        if self.backend == "batched" and state.plan.size:
            with marked_timer("rredcot_probes", timing):
                state.log_probs = self._batched(state.held, state.plan)
        metrics["rredcot/probes/in_pass/mean"] = float(in_pass and self.backend != "batched")
        return batch

    def _plan(self, batch: Any, metrics: dict) -> StepState:
        """Segments and probes, the latter laid down for the engine unless they run as rows of their own."""
        assert self._crew is not None and self._table is not None
        roles = row_roles(batch.keys, batch.tags)
        source = self._source(batch, roles)
        seen, plan = self._crew.plan(source, [batch.tags[row]["response_len"] for row in roles.active])
        rows = self._crew.rows
        if rows is None and self._needs_rows():
            rows = source.rows()
            rows = rows.read(self._table) if self._own else rows
        metrics.update(plan_metrics(plan, seen.tokens))
        metrics["rredcot/plan/processes/mean"] = float(self._crew.processes)
        return StepState(roles, source, rows, seen, plan, self._crew.group_ids)

    def _read_token_scores(self, batch: Any, state: StepState, metrics: dict) -> None:
        """What estimators without probes read."""
        if self._attributions:
            state.token_scores.update(read_attribution(state.source, self._attributions, state.width))
        if self._monte_carlo is not None:
            found, cost = self._monte_carlo.take(batch.keys, state.roles.active, state.width)
            state.token_scores["monte_carlo"] = found
            metrics.update(cost)
        if self._scorer is not None:
            with marked_timer("rredcot_reward_model", getattr(self.trainer, "timing_raw", {})):
                state.token_scores["reward_model"] = self._scorer.scores(state.held)

    def _put_idle(self, batch: Any, roles: RowRoles) -> None:
        """No probes for the rows that take no part: the engine reads them of every row."""
        active = set(roles.active)
        idle = [key for row, key in enumerate(batch.keys) if row not in active]
        if idle:
            BatchSource(idle, batch.partition_id).put_probes([pack([])] * len(idle))

    def _read_signals(self, state: StepState) -> None:
        """The actor's log-probs and entropies, by whoever needs them."""
        assert self._crew is not None
        state.has_log_probs = self._crew.hear()
        if state.rows is None:
            return
        if self._crew.rows is None:
            state.signals = state.source.signals(state.width)
        else:
            heard = self._crew.rows.rollouts
            found = {"log_probs": heard.log_probs, "entropies": heard.entropies}
            state.signals = {name: signal for name, signal in found.items() if signal is not None}

    def _read_answers(self, batch: Any, state: StepState, metrics: dict) -> None:
        """The probes' log-probs."""
        assert self._crew is not None
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=[wire.LOG_PROBS])
        answers = data[wire.LOG_PROBS].unbind()
        found = [answers[row][1:].cpu() for row in state.roles.active]
        state.log_probs = found
        if torch.cat(found).isnan().all():
            logger.warning(
                "rredcot: the engine cannot run probes in the log-prob pass of this model; from here on they run "
                "as rows of their own (probe_backend=batched, slower)"
            )
            self.backend = "batched"
            state.plan, state.rows = self._crew.undelivered(), self._crew.rows
        else:
            ranks = max(1, self.trainer.resource_pool_manager.get_n_gpus())
            metrics["timing_s/rredcot_probes"] = float(sum(float(row[0]) for row in answers)) / ranks

    def _batched(self, rows: StepRows, plan: ProbePlan) -> list[list[float]]:
        config = self.trainer.config
        rollout = config.actor_rollout_ref.rollout
        traces = [
            torch.cat([prompt.cpu(), rows.rollouts.token_ids[i, : rows.lengths[i]]])
            for i, prompt in enumerate(rows.prompts)
        ]
        ranks = self.trainer.resource_pool_manager.get_n_gpus()
        multiple = ranks * (rollout.log_prob_micro_batch_size_per_gpu or 1)
        return batched_log_probs(
            self.trainer.actor_rollout_wg, traces, plan.specs, temperature=rollout.temperature, multiple=multiple
        )

    def compute_advantage(self, batch: Any, metrics: dict) -> Callable[[torch.Tensor, torch.Tensor], tuple]:
        """The credit step that verl's ``_compute_advantage`` calls through the estimator."""
        if self.trainer.use_critic and self.state is not None:
            self.state.token_scores["critic"] = self.state.source.numbers(["values"], self.state.width)[0]

        def step(token_level_rewards: torch.Tensor, response_mask: torch.Tensor) -> tuple:
            with marked_timer("rredcot_credit", getattr(self.trainer, "timing_raw", {})):
                return self._step(token_level_rewards, response_mask, metrics)

        return step

    def _step(self, rewards: torch.Tensor, response_mask: torch.Tensor, metrics: dict) -> tuple:
        state = self.state
        if state is None:
            raise ValueError("rredcot: advantages were asked for before the log-prob pass of this step has run")
        self.state = None
        credit, rollouts = self._assign(state, rewards)
        metrics.update(credit.metrics)
        advantages, returns = self._tokens_of(credit, rollouts)
        used = dataclasses.replace(credit, advantages=advantages, returns=returns)
        advantages = share_with_sessions(fit_width(advantages, rewards), state.roles, response_mask)
        returns = share_with_sessions(fit_width(returns, rewards), state.roles, response_mask)
        if state.rows is not None:
            self._show(state.rows, rollouts, used)
        return advantages, returns

    def _show(self, rows: StepRows, rollouts: Rollouts, credit: Credit) -> None:
        """What people look at; nothing in here changes a number of the step."""
        assert self._table is not None
        step, mini_batch = self.trainer.global_steps, self.trainer.local_trigger_step
        if self._dumper is not None and step % self.settings.dump_every == 0:
            self._dumper.write(step, mini_batch, rows, rollouts, credit, self._table)
        self._tracker.take(self.trainer.logger, step, mini_batch, rows, rollouts, credit, self._table)

    def _tokens_of(self, credit: Credit, rollouts: Rollouts) -> tuple[torch.Tensor, torch.Tensor]:
        """Advantages and returns of the active rows: the credit's own, or with ``red`` and a critic verl's GAE on
        the redistributed rewards."""
        config = self.trainer.config.algorithm
        if str(config.adv_estimator) != RED or not self.trainer.use_critic:
            return credit.advantages, credit.returns
        mask = rollouts.response_mask.float()
        values = (rollouts.token_scores or {})["critic"]
        rewards = rewards_at_ends(credit)
        return core_algos.compute_gae_advantage_return(rewards, values, mask, config.gamma, config.lam)

    def _assign(self, state: StepState, rewards: torch.Tensor) -> tuple[Credit, Rollouts]:
        """Credit of the active rows, with the rewards as verl has them by now (a KL penalty included)."""
        assert self._crew is not None
        ids = state.segments.segment_ids
        mask = ids != MASKED
        active = onto_unmasked(fit_width(rewards[state.roles.active].float().cpu(), ids), mask)
        settings = self.settings
        if state.rows is None:
            rollouts = tokenless(mask, active, state.group_ids)
            settings = dataclasses.replace(settings, baseline=settings.baseline_for(log_probs=state.has_log_probs))
        else:
            before = state.rows.rollouts
            rollouts = dataclasses.replace(
                before,
                rewards=active,
                penalties=self._penalties(active - before.rewards),
                token_scores=state.token_scores,
                log_probs=state.signals.get("log_probs"),
                entropies=state.signals.get("entropies"),
            )
        probed = None
        if state.log_probs is not None:
            probed = state.plan.probed(state.log_probs, length_normalize=self.settings.length_normalize)
        credit = assign_credit(
            rollouts,
            settings,
            segments=state.segments,
            coarse=state.seen.levels[0],
            probed=probed,
            calibrator=self.calibrator,
            features=self._crew.features,
            state_weight=self._crew.state_weight,
        )
        return credit, rollouts

    def _penalties(self, added: torch.Tensor) -> torch.Tensor | None:
        """What verl has put on single tokens since the reward came; NaN rewards have no penalty to keep."""
        return added.nan_to_num(0.0, 0.0, 0.0) if self.trainer.config.algorithm.use_kl_in_reward else None

    def save(self, folder: str) -> None:
        """Write the calibration window beside verl's checkpoint, in one move."""
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, STATE_FILE)
        torch.save(self.calibrator.state_dict(), path + ".part")
        os.replace(path + ".part", path)

    def load(self, folder: str) -> None:
        path = os.path.join(folder, STATE_FILE)
        if not os.path.exists(path):
            logger.warning("rredcot: %s is missing, so the calibration window starts empty", path)
            return
        self.calibrator.load_state_dict(torch.load(path, weights_only=True))
