"""``paragraph``: a boundary behind every blank line."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from rredcot_plugin.registry import register_segmenter
from rredcot_plugin.segmenters.assemble import Trace, cuts_at
from rredcot_plugin.segmenters.base import CutSegmenter

BLANK_LINE = re.compile(r"\n[ \t]*\n\s*(?=\S)")


@register_segmenter("paragraph")
@dataclass(frozen=True)
class ParagraphSegmenter(CutSegmenter):
    """A segment is a paragraph: text up to a blank line, which belongs to it."""

    def propose(self, trace: Trace) -> tuple[np.ndarray, np.ndarray]:
        return cuts_at(trace.tokens_behind(BLANK_LINE))
