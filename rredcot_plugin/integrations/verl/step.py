"""What is known of the batch at hand between the two halves of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from rredcot_plugin.adapter.data_plane import DataPlane
from rredcot_plugin.adapter.probe_plan import ProbePlan
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.adapter.summary import BatchSummary
from rredcot_plugin.integrations.verl.session_plane import SessionLayout
from rredcot_plugin.integrations.verl.sessions import RowRoles
from rredcot_plugin.state_numbers import StateNumbers
from rredcot_plugin.types import Segments


@dataclass
class StepState:
    """Filled in as the step goes on. Everything but ``roles`` is about the sessions, in their order; ``layout`` says where the
    rows of each stand.

    ``rows`` is None where none of their tokens are needed in the driver. ``copies`` are the rewards (sessions, columns) as
    they lie in the queue, copies on earlier outputs included; None where nobody adds to them. ``versions`` (sessions,) are those of
    ``Rollouts``. ``log_probs`` are those of the probes, None
    until they are there; ``numbers`` are what credit workers, if there are any, made of tokens and signals; ``signals``
    the actor's, by the names of ``batch.SIGNALS``; ``token_scores`` what estimators without probes read.
    """

    roles: RowRoles
    layout: SessionLayout
    plane: DataPlane
    rows: PromptedRollouts | None
    summary: BatchSummary
    plan: ProbePlan
    group_ids: list[str]
    versions: torch.Tensor
    log_probs: Sequence[Sequence[float] | torch.Tensor] | None = None
    numbers: StateNumbers | None = None
    signals: dict[str, torch.Tensor] = field(default_factory=dict)
    token_scores: dict[str, torch.Tensor] = field(default_factory=dict)
    copies: torch.Tensor | None = None

    @property
    def segments(self) -> Segments:
        return self.summary.levels[-1]

    @property
    def width(self) -> int:
        return self.segments.segment_ids.shape[1]

    @property
    def held(self) -> PromptedRollouts:
        """The rows, where something is asked for that needs them."""
        assert self.rows is not None
        return self.rows
