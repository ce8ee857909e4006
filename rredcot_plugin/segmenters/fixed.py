"""``fixed``: a boundary every n tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rredcot_plugin.registry import check_count, register_segmenter
from rredcot_plugin.segmenters.base import CutSegmenter
from rredcot_plugin.segmenters.trace import Trace


@register_segmenter("fixed")
@dataclass(frozen=True)
class FixedSegmenter(CutSegmenter):
    """Segments of equally many unmasked tokens (``tokens``), the last one shorter. Needs no texts.

    A boundary that would stand inside a character stands after it.

    Raises:
        ValueError: ``tokens`` under 1.
    """

    tokens: int = 64

    needs: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("tokens", self.tokens)

    def propose(self, trace: Trace) -> np.ndarray:
        free = np.arange(1, trace.length)
        free = free[trace.may_begin(free)]
        places = np.searchsorted(free, np.arange(self.tokens, trace.length, self.tokens))
        return free[places[places < len(free)]]
