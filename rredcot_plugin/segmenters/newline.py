"""``newline``: a boundary behind every line end."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from rredcot_plugin.registry import register_segmenter
from rredcot_plugin.segmenters.assemble import Trace, cuts_at
from rredcot_plugin.segmenters.base import CutSegmenter

LINE_END = re.compile(r"\n+(?=[^\n])")


@register_segmenter("newline")
@dataclass(frozen=True)
class NewlineSegmenter(CutSegmenter):
    """A segment is a line, blank lines counted to the line before. The token that holds the line end closes it."""

    def propose(self, trace: Trace) -> tuple[np.ndarray, np.ndarray]:
        return cuts_at(trace.tokens_behind(LINE_END))
