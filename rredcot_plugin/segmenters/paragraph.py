"""``paragraph``: a boundary after every blank line."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rredcot_plugin.registry import register_segmenter
from rredcot_plugin.segmenters.base import CutSegmenter
from rredcot_plugin.segmenters.text_rules import paragraph_ends
from rredcot_plugin.segmenters.trace import Trace


@register_segmenter("paragraph")
@dataclass(frozen=True)
class ParagraphSegmenter(CutSegmenter):
    """A segment is a paragraph. The token that completes a blank line closes it."""

    def propose(self, trace: Trace) -> np.ndarray:
        return paragraph_ends(trace)
