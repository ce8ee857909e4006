"""``newline``: a boundary behind every line end."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from rredcot_plugin.registry import register_segmenter
from rredcot_plugin.segmenters.assemble import Trace, check_limits, require_texts, segment
from rredcot_plugin.types import Rollouts, Segments

LINE_END = re.compile(r"\n+(?=[^\n])")


@register_segmenter("newline")
@dataclass(frozen=True)
class NewlineSegmenter:
    """A segment is a line, blank lines counted to the line before. The token that holds the line end closes it."""

    min_segment_tokens: int = 1
    max_segments: int = 64

    def __post_init__(self) -> None:
        check_limits(self.min_segment_tokens, self.max_segments)

    def __call__(self, rollouts: Rollouts) -> Segments:
        require_texts(rollouts, "newline")
        return segment(rollouts, line_cuts, self.min_segment_tokens, self.max_segments)


def line_cuts(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """A cut behind every line end, all worth the same."""
    assert trace.text is not None
    cuts = [trace.token_from(found.end()) for found in LINE_END.finditer(trace.text)]
    return np.array(cuts, dtype=np.int64), np.ones(len(cuts))
