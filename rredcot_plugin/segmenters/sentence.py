"""``sentence``: a boundary after every sentence or line end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rredcot_plugin.registry import register_segmenter
from rredcot_plugin.segmenters.base import CutSegmenter
from rredcot_plugin.segmenters.text_rules import sentence_ends
from rredcot_plugin.segmenters.trace import Trace


@register_segmenter("sentence")
@dataclass(frozen=True)
class SentenceSegmenter(CutSegmenter):
    """A segment is a sentence or a line, whichever ends first (`text_rules.sentence_ends`)."""

    def propose(self, trace: Trace) -> np.ndarray:
        return sentence_ends(trace)
