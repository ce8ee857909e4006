"""When ``monte_carlo`` runs inside a step: after sampling, before the servers sleep; read in the log-prob pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from verl.utils.debug import marked_timer

from rredcot_plugin.adapter.data_plane import OpenRows
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.integrations.verl.continuations import Continuations
from rredcot_plugin.integrations.verl.media import refuse_media
from rredcot_plugin.integrations.verl.session_plane import as_sessions, layout_of
from rredcot_plugin.integrations.verl.sessions import row_roles
from rredcot_plugin.types import Segments
from rredcot_plugin.values.monte_carlo import MonteCarloEstimator


class MonteCarloHook:
    """Continues each batch right after it was sampled, and keeps the values until the batch comes by again.

    Sessions are found again by their names: verl balances and pads a batch in between.
    """

    def __init__(
        self,
        trainer: Any,
        estimator: MonteCarloEstimator,
        open_rows: OpenRows,
        segmenter: Callable[[PromptedRollouts], Segments],
        first_state: int,
        *,
        keeps: bool = True,
    ) -> None:
        self._trainer, self._estimator, self._keeps = trainer, estimator, keeps
        self._open, self._segmenter, self._first_state = open_rows, segmenter, first_state
        self._continuations: Continuations | None = None
        self._sampled: Any = None
        self._values: dict[str, torch.Tensor] = {}
        self._metrics: dict[str, float] = {}
        self._remember_samples(trainer.replay_buffer)

    def _remember_samples(self, buffer: Any) -> None:
        """Keep the batch that was sampled last: verl's ``on_sample_end`` does not hand it over."""
        sample = buffer.sample

        def remember(*args: Any, **kwargs: Any) -> Any:
            result = sample(*args, **kwargs)
            self._sampled = result[0]
            return result

        buffer.sample = remember

    def on_sampled(self) -> None:
        """Continue the states of the batch that was sampled last."""
        batch, self._sampled = self._sampled, None
        if batch is None:
            return
        with marked_timer("rredcot_monte_carlo", getattr(self._trainer, "timing_raw", {})):
            if self._continuations is None:
                self._continuations = Continuations(self._trainer, self._estimator, keeps=self._keeps)
            roles = row_roles(batch.keys, batch.tags)
            active = self._open(batch, roles.active)
            if self._continuations.loop is None:
                refuse_media(self._trainer, active, "algorithm.rredcot.value_estimator=monte_carlo")
            plane = as_sessions(active, layout_of(batch, roles))
            rows, fields = plane.rows(), plane.reward_fields()
            segments = self._segmenter(rows)
            values, self._metrics = self._continuations.values(
                self._trainer.global_steps, rows, fields, segments, self._first_state
            )
        self._values = dict(zip(roles.names, values, strict=True))

    def take(self, names: list[str], width: int) -> tuple[torch.Tensor, dict[str, float]]:
        """Values (sessions, width) at the first token after each boundary, NaN elsewhere; and what they cost."""
        scores = torch.full((len(names), width), torch.nan)
        for i, name in enumerate(names):
            found = self._values.get(name)
            if found is not None:
                columns = min(len(found), width)
                scores[i, :columns] = found[:columns]
        metrics, self._values, self._metrics = self._metrics, {}, {}
        return scores, metrics
