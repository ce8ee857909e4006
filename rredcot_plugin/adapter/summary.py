"""What the whole batch has to know of a part before probes are placed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rredcot_plugin.adapter.process_rewards import told_metrics
from rredcot_plugin.text.encoding import AnswerStyle
from rredcot_plugin.types import Segments

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

Index = list[int]
"""Which rows of the batch a part holds, in its order."""


@dataclass(frozen=True)
class BatchSummary:
    """What the whole batch has to know of a part before probes are placed: segments of every level, coarse to fine, how
    its responses answer, what they earned that is to be redistributed, and tokens of prompts and responses. ``lookahead`` says why the segmenter's
    boundaries are no stopping times; None where no reason is known. ``moved`` is what `process_rewards.moves` found to be
    added to the rewards, and ``unread`` of how many rows not all could be read."""

    levels: list[Segments]
    style: AnswerStyle
    outcomes: Float[Tensor, " B"]
    tokens: int
    lookahead: str | None = None
    moved: Float[Tensor, "B T"] | None = None
    unread: int = 0

    @property
    def metrics(self) -> dict[str, float]:
        """What a step logs of it."""
        return {
            "rredcot/segments/inexact/mean": float(self.lookahead is not None),
            **told_metrics(self.moved, self.unread, len(self.outcomes)),
        }
