"""How the probes of a step reach the actor, and how their log-probs come back: in verl's log-prob pass, or as rows."""

from __future__ import annotations

import logging
from typing import Any

import torch

from rredcot_plugin import choices
from rredcot_plugin.adapter.data_plane import OpenRows
from rredcot_plugin.integrations.verl import transfer_fields
from rredcot_plugin.integrations.verl.batched import batched_log_probs
from rredcot_plugin.integrations.verl.credit_workers import CreditWorkers
from rredcot_plugin.integrations.verl.media import CONFIDENCE, position_axes, refuse_media
from rredcot_plugin.integrations.verl.settings import why_not_in_pass
from rredcot_plugin.integrations.verl.step import StepState
from rredcot_plugin.probes.layout import pack

logger = logging.getLogger(__name__)


class ProbeExchange:
    """``backend`` is where probes run; it becomes ``batched`` for good once the engine turns out not to answer."""

    def __init__(self, trainer: Any, wanted: str, open_rows: OpenRows) -> None:
        self.trainer, self.open_rows, self.wanted = trainer, open_rows, wanted
        self.backend = choose_backend(trainer.config, wanted)

    @property
    def in_pass(self) -> bool:
        return self.backend != "batched"

    def ask(self, batch: Any, state: StepState) -> bool:
        """Have the engine run the probes that lie there, in the pass that comes next; whether it will.

        Raises:
            ValueError: ``packed``, whose forward reads tokens alone, with rows that have more.
        """
        if not self.in_pass or not state.plan.size:
            return False
        if self.backend == "packed":
            every = self.open_rows(batch, range(state.roles.rows))
            way_out = f"algorithm.rredcot.probe_backend=cached or {CONFIDENCE}"
            refuse_media(self.trainer, every, "algorithm.rredcot.probe_backend=packed", way_out)
        padding = state.roles.padding
        if padding:  # the engine reads probes of every row
            self.open_rows(batch, padding).put_probes([pack([])] * len(padding))
        batch.extra_info[transfer_fields.BACKEND] = self.backend
        return True

    def read(self, batch: Any, state: StepState, credit_workers: CreditWorkers, metrics: dict) -> None:
        """Take the probes' log-probs from what the pass has left."""
        answers = self.open_rows(batch, range(state.roles.rows)).answers()
        found = [torch.cat([answers[row][1:] for row in own]) for own in state.roles.sessions]
        state.log_probs = found
        if torch.cat(found).isnan().all():
            logger.warning(
                "rredcot: the engine cannot run probes in the log-prob pass of this model; from here on they run "
                "as rows of their own (probe_backend=batched, slower)"
            )
            self.backend = "batched"
            state.plan, state.rows = credit_workers.undelivered(), credit_workers.rows
        else:
            ranks = max(1, self.trainer.resource_pool_manager.get_n_gpus())
            metrics["timing_s/rredcot_probes"] = float(sum(float(row[0]) for row in answers)) / ranks

    def run(self, batch: Any, state: StepState) -> None:
        """Run the probes as rows of their own, with the weights that the actor has at this moment.

        Raises:
            ValueError: the model reads more than text, which these rows do not have.
        """
        rows, trainer = state.held, self.trainer
        source = self.open_rows(batch, range(state.roles.rows))
        became = "" if self.wanted == "batched" else ", which with this model is probe_backend=batched,"
        refuse_media(trainer, source, f"algorithm.rredcot.probe_backend={self.wanted}{became}")
        rollout = trainer.config.actor_rollout_ref.rollout
        multiple = trainer.resource_pool_manager.get_n_gpus() * (rollout.log_prob_micro_batch_size_per_gpu or 1)
        found = batched_log_probs(
            trainer.actor_rollout_wg,
            rows.traces(),
            state.plan.specs,
            temperature=rollout.temperature,
            multiple=multiple,
            max_tokens_per_gpu=rollout.log_prob_max_token_len_per_gpu or 0,
            axes=position_axes(trainer),
        )
        outputs = iter(found)
        state.log_probs = [[x for _ in own for x in next(outputs)] for own in state.roles.sessions]


def choose_backend(config: Any, wanted: str) -> str:
    """``choices.choose_backend`` for this run; a backend other than the wanted one is warned of."""
    choice = choices.choose_backend(wanted, why_not_in_pass(config))
    if choice.value == "batched" != wanted:
        logger.warning(
            "rredcot: probes run as rows of their own (probe_backend=batched, slower): %s", choice.reason
        )
    return str(choice.value)
