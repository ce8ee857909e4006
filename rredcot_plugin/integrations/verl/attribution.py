"""Ask the log-prob pass for ``attention`` and ``gradient`` scores, and read them back."""

from __future__ import annotations

from typing import Any

import torch

from rredcot_plugin.adapter.data_plane import DataPlane
from rredcot_plugin.adapter.probe_plan import answer_starts
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.integrations.verl import transfer_fields
from rredcot_plugin.integrations.verl.sessions import RowRoles
from rredcot_plugin.types import Segments


def ask_attribution(
    batch: Any, plane: DataPlane, kinds: set[str], roles: RowRoles, rows: PromptedRollouts, segments: Segments
) -> None:
    """Tell the engine where the answer of each session begins: at its last segment, unless it is the only one. ``plane``
    has all rows of the batch, of which the engine reads every one. The answer attends to tokens of its own output only, so
    those of earlier outputs have the score 0."""
    starts = [-1] * roles.rows
    for row, start in zip(roles.active, answer_starts(rows, segments), strict=True):
        starts[row] = start
    plane.put_answer_starts(starts)
    batch.extra_info[transfer_fields.ATTRIBUTION] = ",".join(sorted(kinds))


def read_attribution(plane: DataPlane, kinds: set[str], width: int) -> dict[str, torch.Tensor]:
    """Scores (rows, width) of each kind; NaN where the model cannot be read."""
    names = sorted(kinds)
    return dict(zip(names, plane.numbers([transfer_fields.SCORES[kind] for kind in names], width), strict=True))
