"""Ask the log-prob pass for ``attention`` and ``gradient`` scores, and read them back."""

from __future__ import annotations

from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict

from rredcot_plugin.integrations.verl import wire
from rredcot_plugin.integrations.verl.batch import BatchSource
from rredcot_plugin.integrations.verl.sessions import RowRoles
from rredcot_plugin.probing import answer_starts
from rredcot_plugin.rows import StepRows
from rredcot_plugin.types import Segments


def ask_attribution(batch: Any, kinds: set[str], roles: RowRoles, rows: StepRows, segments: Segments) -> None:
    """Tell the engine where the answer of each row begins: at its last segment, unless it is the only one."""
    starts = [-1] * len(batch.keys)
    for row, start in zip(roles.active, answer_starts(rows, segments), strict=True):
        starts[row] = start
    fields = TensorDict({wire.ANSWER_START: wire.pack_starts(starts)}, batch_size=len(starts))
    tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
    batch.extra_info[wire.ATTRIBUTION] = ",".join(sorted(kinds))


def read_attribution(source: BatchSource, kinds: set[str], width: int) -> dict[str, torch.Tensor]:
    """Scores (rows, width) of each kind; NaN where the model cannot be read."""
    names = sorted(kinds)
    return dict(zip(names, source.numbers([wire.SCORES[kind] for kind in names], width), strict=True))
