"""Write the credit of a step as JSON lines, one trace a line, for reports and for reading."""

from __future__ import annotations

import json
import os
from pathlib import Path

from rredcot_plugin.alignment import TokenBytes
from rredcot_plugin.records import trace_record
from rredcot_plugin.rows import StepRows
from rredcot_plugin.types import Credit, Rollouts

MAX_ROWS = 256
"""Traces written a step; a long run would otherwise fill the disk."""


def dump_step(
    folder: Path, step: int, rows: StepRows, rollouts: Rollouts, credit: Credit, table: TokenBytes
) -> None:
    """Write ``<step>.jsonl`` in one move, so that a reader never meets half a file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{step}.jsonl"
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
        for row in range(min(MAX_ROWS, rollouts.batch_size)):
            file.write(
                json.dumps(trace_record(step, row, rows, rollouts, credit, table), ensure_ascii=False) + "\n"
            )
    os.replace(part, path)
