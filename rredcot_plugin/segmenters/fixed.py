"""``fixed``: a boundary every n tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rredcot_plugin.registry import check_count, register_segmenter
from rredcot_plugin.segmenters.assemble import Trace, cuts_at
from rredcot_plugin.segmenters.base import CutSegmenter


@register_segmenter("fixed")
@dataclass(frozen=True)
class FixedSegmenter(CutSegmenter):
    """Segments of equally many unmasked tokens (``tokens``), the last one shorter. Needs no texts.

    Raises:
        ValueError: ``tokens`` under 1.
    """

    tokens: int = 64

    needs: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("tokens", self.tokens)

    def propose(self, trace: Trace) -> tuple[np.ndarray, np.ndarray]:
        cuts = np.arange(self.tokens, trace.length, self.tokens, dtype=np.int64)
        if trace.spans is not None and len(cuts):
            cuts = _whole_characters(cuts, trace.spans)
        return cuts_at(cuts)


def _whole_characters(cuts: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Move each cut forward to the next token that begins a character."""
    free = np.flatnonzero(spans[1:, 0] >= spans[:-1, 1]) + 1
    where = np.searchsorted(free, cuts, side="left")
    moved: np.ndarray = np.unique(free[where[where < len(free)]])
    return moved
