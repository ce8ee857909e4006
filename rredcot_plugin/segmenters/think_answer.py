"""``think_answer``: the reasoning and the answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rredcot_plugin.registry import register_segmenter
from rredcot_plugin.segmenters.base import CutSegmenter
from rredcot_plugin.segmenters.trace import Trace


@register_segmenter("think_answer")
@dataclass(frozen=True)
class ThinkAnswerSegmenter(CutSegmenter):
    """A segment begins after what opens an answer, such as ``</think>`` or ``####``: two segments as a rule.

    One where there is no answer, more where a trace opens several: which is the last is not known before its end.
    """

    def propose(self, trace: Trace) -> np.ndarray:
        return np.zeros(0, dtype=np.int64)
