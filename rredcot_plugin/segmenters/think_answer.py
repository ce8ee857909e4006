"""``think_answer``: the reasoning and the answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rredcot_plugin.registry import register_segmenter
from rredcot_plugin.segmenters.assemble import Trace, cuts_at
from rredcot_plugin.segmenters.base import CutSegmenter


@register_segmenter("think_answer")
@dataclass(frozen=True)
class ThinkAnswerSegmenter(CutSegmenter):
    """Two segments: what stands before the final answer, and the answer. One where there is no answer."""

    def propose(self, trace: Trace) -> tuple[np.ndarray, np.ndarray]:
        return cuts_at(np.zeros(0, dtype=np.int64))
