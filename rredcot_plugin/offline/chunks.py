"""Groups in chunks: a chunk is to offline scoring what a step is to training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rredcot_plugin.offline.input_columns import Row, group_rows
from rredcot_plugin.offline.json_lines import BadLine


@dataclass(frozen=True)
class Chunk:
    """Rows of a few whole groups, in order of the groups' first appearance."""

    index: int
    groups: tuple[tuple[Row, ...], ...]

    @property
    def rows(self) -> list[Row]:
        return [row for group in self.groups for row in group]


def make_chunks(rows: Sequence[Row], groups_per_chunk: int) -> list[Chunk]:
    """Whole groups, ``groups_per_chunk`` at a time; the last chunk may have fewer."""
    groups = [tuple(group) for group in group_rows(rows)]
    starts = range(0, len(groups), groups_per_chunk)
    return [Chunk(i, tuple(groups[start : start + groups_per_chunk])) for i, start in enumerate(starts)]


def too_long(row: Row, tokens: int, allowed: int) -> BadLine:
    """The line of a rollout that does not fit into the model."""
    return BadLine(row.line, f"prompt and response have {tokens} tokens, the model leaves room for {allowed}")
