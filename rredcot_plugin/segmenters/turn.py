"""``turn``: a boundary where the model speaks again after a tool or a user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rredcot_plugin.registry import register_segmenter
from rredcot_plugin.segmenters.base import CutSegmenter
from rredcot_plugin.segmenters.trace import Trace


@register_segmenter("turn")
@dataclass(frozen=True)
class TurnSegmenter(CutSegmenter):
    """A segment is one turn of an agent: what lies between two gaps of the response mask. Needs no texts."""

    needs: ClassVar[tuple[str, ...]] = ()

    def propose(self, trace: Trace) -> np.ndarray:
        found: np.ndarray = np.flatnonzero(np.diff(trace.columns) > 1) + 1
        return found
