"""``newline``: a boundary after every line end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rredcot_plugin.registry import register_segmenter
from rredcot_plugin.segmenters.base import CutSegmenter
from rredcot_plugin.segmenters.text_rules import line_ends
from rredcot_plugin.segmenters.trace import Trace


@register_segmenter("newline")
@dataclass(frozen=True)
class NewlineSegmenter(CutSegmenter):
    """A segment is a line. The token that holds the line end closes it; a blank line begins the segment after it."""

    def propose(self, trace: Trace) -> np.ndarray:
        return line_ends(trace)
