"""``sentence``: a boundary behind every sentence or line end."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from rredcot_plugin.registry import register_segmenter
from rredcot_plugin.segmenters.assemble import Trace, cuts_at
from rredcot_plugin.segmenters.base import CutSegmenter

# "3.14" and "e.g.," do not end one. One set of characters comes first, so that the search skips to them: twice as
# fast as (?:[.!?。！？]+["')\]]*\s+|\n\s*)(?=\S), which matches the same.
SENTENCE_END = re.compile(r"[.!?。！？\n](?:(?<=\n)\s*|(?<!\n)[.!?。！？]*[\"')\]]*\s+)(?=\S)")


@register_segmenter("sentence")
@dataclass(frozen=True)
class SentenceSegmenter(CutSegmenter):
    """A segment is a sentence or a line, whichever ends first. Full stops count where a space follows."""

    def propose(self, trace: Trace) -> tuple[np.ndarray, np.ndarray]:
        return cuts_at(trace.tokens_behind(SENTENCE_END))
