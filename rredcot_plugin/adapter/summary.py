"""What the whole batch has to know of a part before probes are placed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rredcot_plugin.text.encoding import AnswerStyle
from rredcot_plugin.types import Segments

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

Index = list[int]
"""Which rows of the batch a part holds, in its order."""


@dataclass(frozen=True)
class BatchSummary:
    """What the whole batch has to know of a part before probes are placed: segments of every level, coarse to fine,
    how its responses answer, what they earned that is to be redistributed, and tokens of prompts and responses.
    ``lookahead`` says why the segmenter's boundaries are not stopping times; None where no reason is known. ``moved``
    is what `process_rewards.moves` found to be added to the rewards, and ``unread`` of how many rows not all could be
    read."""

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
        return row_metrics(len(self.outcomes), self.lookahead, self.moved, self.unread)


def row_metrics(
    traces: int, lookahead: str | None, moved: Float[Tensor, "B T"] | None, unread: int
) -> dict[str, float]:
    """What a step of ``traces`` rollouts logs of its rows; the rest as in `BatchSummary`."""
    reward = 0.0 if moved is None else float(moved.double().abs().sum()) / 2
    return {
        "rredcot/segments/inexact/mean": float(lookahead is not None),
        "rredcot/credit/process_rewards/mean": reward / max(1, traces),
        "rredcot/fallback/process_rewards/mean": unread / max(1, traces),
    }
