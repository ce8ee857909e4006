"""One step of credit assignment inside verl's trainer: before, in and behind the log-prob pass."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from verl.utils.debug import marked_timer

from rredcot_plugin.alignment import TokenBytes
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.encoding import ProbeEncoder
from rredcot_plugin.integrations.verl import wire
from rredcot_plugin.integrations.verl.batch import StepRows, padded, read_rows
from rredcot_plugin.integrations.verl.batched import batched_log_probs
from rredcot_plugin.integrations.verl.dump import dump_step
from rredcot_plugin.integrations.verl.probing import ProbePlan, plan_probes
from rredcot_plugin.integrations.verl.sessions import RowRoles, row_roles
from rredcot_plugin.integrations.verl.settings import why_not_in_pass
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.types import Credit, Rollouts, Segments
from rredcot_plugin.values.calibration import OutcomeCalibrator

logger = logging.getLogger(__name__)

STATE_FILE = "rredcot.pt"


@dataclass
class StepState:
    """What is known of the batch at hand between the two halves of a step."""

    roles: RowRoles
    rows: StepRows
    segments: Segments
    plan: ProbePlan
    log_probs: list[list[float]] | None = None
    signals: dict[str, torch.Tensor] | None = None


class CreditRunner:
    """Holds what outlives a step: options, answer format, calibration window, chosen backend."""

    def __init__(self, trainer: Any, settings: RRedCoTConfig) -> None:
        self.trainer = trainer
        self.settings = settings
        self.segmenter = settings.build_segmenter()
        self.calibrator = OutcomeCalibrator()
        self.state: StepState | None = None
        self._table: TokenBytes | None = None
        self._encoder: ProbeEncoder | None = None
        self.backend = self._choose_backend()

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
        """Read the tokenizer once; raises ``ValueError`` for one without offsets."""
        self._table = TokenBytes.from_tokenizer(tokenizer)
        s = self.settings
        self._encoder = ProbeEncoder(tokenizer, s.bridge, s.terminator, s.max_probe_tokens)

    def compute_old_log_prob(self, batch: Any, metrics: dict, compute: Callable[[Any, dict], Any]) -> Any:
        """Segment, ask for the probes in verl's own log-prob pass (``compute``), read the answers."""
        assert self._table is not None and self._encoder is not None
        timing = getattr(self.trainer, "timing_raw", {})
        with marked_timer("rredcot_plan", timing):
            roles = row_roles(batch.keys, batch.tags)
            rows = read_rows(batch.keys, batch.partition_id, roles.active, self._table)
            segments = self.segmenter(rows.rollouts)
            plan = plan_probes(rows, segments, self.settings, self._encoder)
            self.state = StepState(roles, rows, segments, plan)
        metrics.update(plan.metrics)
        in_pass = self.backend != "batched" and any(plan.specs)
        if in_pass:
            self._put_probes(batch, roles, plan)
            batch.extra_info[wire.BACKEND] = self.backend
        extra_info = batch.extra_info
        batch = compute(batch, metrics)
        for info in (extra_info, batch.extra_info):
            info.pop(wire.BACKEND, None)
        self._read_signals(batch, roles, rows, in_pass, metrics)
        if self.backend == "batched" and any(plan.specs):
            with marked_timer("rredcot_probes", timing):
                self.state.log_probs = self._batched(rows, plan)
        metrics["rredcot/probes/in_pass/mean"] = float(in_pass and self.backend != "batched")
        return batch

    def _put_probes(self, batch: Any, roles: RowRoles, plan: ProbePlan) -> None:
        vectors = [wire.pack([])] * len(batch.keys)
        for position, row in enumerate(roles.active):
            vectors[row] = wire.pack(plan.specs[position])
        fields = TensorDict({wire.PROBES: wire.jagged(vectors)}, batch_size=len(vectors))
        tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

    def _read_signals(self, batch: Any, roles: RowRoles, rows: StepRows, in_pass: bool, metrics: dict) -> None:
        """The actor's log-probs and entropies of the active rows, and the probes' log-probs where asked for."""
        assert self.state is not None
        names = ["old_log_probs", "entropy", *([wire.LOG_PROBS] if in_pass else [])]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
        width = rows.rollouts.token_ids.shape[1]
        self.state.signals = {
            target: padded(data[source], roles.active, width).float().nan_to_num(0.0, 0.0, 0.0)
            for source, target in (("old_log_probs", "log_probs"), ("entropy", "entropies"))
            if source in data
        }
        if not in_pass:
            return
        answers = data[wire.LOG_PROBS].unbind()
        self.state.log_probs = [answers[row][1:].tolist() for row in roles.active]
        if all(number != number for row in self.state.log_probs for number in row):
            logger.warning(
                "rredcot: the engine cannot run probes in the log-prob pass of this model; from here on they run "
                "as rows of their own (probe_backend=batched, slower)"
            )
            self.backend = "batched"
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

    def compute_advantage(self, metrics: dict) -> Callable[[torch.Tensor, torch.Tensor], tuple]:
        """The credit step that verl's ``_compute_advantage`` calls through the estimator."""

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
        width = rewards.shape[1]
        own = torch.zeros(len(state.roles.active), width)
        columns = min(width, credit.advantages.shape[1])
        own[:, :columns] = credit.advantages[:, :columns]
        advantages = share_with_sessions(own, state.roles, response_mask)
        if self.settings.dump_dir and self.trainer.global_steps % self.settings.dump_every == 0:
            assert self._table is not None
            folder, step = Path(self.settings.dump_dir), self.trainer.global_steps
            dump_step(folder, step, state.rows, rollouts, credit, self._table)
        return advantages, advantages.clone()

    def _assign(self, state: StepState, rewards: torch.Tensor) -> tuple[Credit, Rollouts]:
        """Credit of the active rows, with the rewards as verl has them by now (a KL penalty included)."""
        before = state.rows.rollouts
        width = before.token_ids.shape[1]
        active = torch.nn.functional.pad(
            rewards[state.roles.active].float().cpu(), (0, max(0, width - rewards.shape[1]))
        )
        rollouts = Rollouts(
            before.token_ids,
            before.response_mask,
            active[:, :width],
            before.group_ids,
            texts=before.texts,
            token_offsets=before.token_offsets,
            ground_truths=before.ground_truths,
            **(state.signals or {}),
        )
        probed = None
        if state.log_probs is not None:
            probed = state.plan.probed(state.log_probs, length_normalize=self.settings.length_normalize)
        credit = assign_credit(
            rollouts, self.settings, segments=state.segments, probed=probed, calibrator=self.calibrator
        )
        return credit, rollouts

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


def share_with_sessions(own: torch.Tensor, roles: RowRoles, response_mask: torch.Tensor) -> torch.Tensor:
    """Advantages of all rows of the batch from those of the active ones.

    An earlier output of a session gets the advantage of the first token of its last output everywhere, as
    verl's GRPO hands one number to all of them; padding gets 0.
    """
    mask = response_mask.to(own.dtype)
    result = torch.zeros_like(mask)
    for row, owner in enumerate(roles.owner):
        if owner < 0:
            continue
        if roles.active[owner] == row:
            result[row] = own[owner] * mask[row]
        else:
            last_output = response_mask[roles.active[owner]].bool()
            first = int(last_output.float().argmax())
            result[row] = own[owner, first] * mask[row]
    return result
