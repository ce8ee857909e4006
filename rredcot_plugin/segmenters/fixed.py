"""``fixed``: a boundary every n tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rredcot_plugin.registry import register_segmenter
from rredcot_plugin.segmenters.assemble import Trace, check_limits, segment
from rredcot_plugin.types import Rollouts, Segments


@register_segmenter("fixed")
@dataclass(frozen=True)
class FixedSegmenter:
    """Segments of equally many unmasked tokens (``tokens``), the last one shorter. Needs no texts.

    Raises:
        ValueError: ``tokens`` under 1.
    """

    tokens: int = 64
    min_segment_tokens: int = 1
    max_segments: int = 64

    def __post_init__(self) -> None:
        check_limits(self.min_segment_tokens, self.max_segments)
        if not isinstance(self.tokens, int) or self.tokens < 1:
            raise ValueError(f"tokens={self.tokens!r}: allowed are whole numbers from 1")

    def __call__(self, rollouts: Rollouts) -> Segments:
        def propose(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
            cuts = np.arange(self.tokens, trace.length, self.tokens, dtype=np.int64)
            if trace.spans is not None and len(cuts):
                cuts = _whole_characters(cuts, trace.spans)
            return cuts, np.ones(len(cuts))

        return segment(rollouts, propose, self.min_segment_tokens, self.max_segments)


def _whole_characters(cuts: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Move each cut forward to the next token that begins a character."""
    free = np.flatnonzero(spans[1:, 0] >= spans[:-1, 1]) + 1
    where = np.searchsorted(free, cuts, side="left")
    moved: np.ndarray = np.unique(free[where[where < len(free)]])
    return moved
