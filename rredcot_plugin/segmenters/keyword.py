"""``keyword``: a boundary before every discourse marker."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rredcot_plugin.registry import register_segmenter
from rredcot_plugin.segmenters.assemble import Trace, cuts_at
from rredcot_plugin.segmenters.base import CutSegmenter

KEYWORDS = (
    "Wait",
    "But",
    "However",
    "Alternatively",
    "So",
    "Therefore",
    "Thus",
    "Hmm",
    "Let me",
    "Let's",
    "Next",
    "Finally",
)


@register_segmenter("keyword")
@dataclass(frozen=True)
class KeywordSegmenter(CutSegmenter):
    """A segment begins with a keyword at the start of a sentence or line.

    Raises:
        ValueError: no keywords.
    """

    keywords: Sequence[str] = KEYWORDS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_keywords(self.keywords)

    def propose(self, trace: Trace) -> tuple[np.ndarray, np.ndarray]:
        return cuts_at(keyword_cuts(trace, self.keywords))


def check_keywords(keywords: Sequence[str]) -> None:
    """Raise ``ValueError`` for an empty list, or a single text in its place."""
    if not keywords or isinstance(keywords, str):
        raise ValueError(f"keywords={keywords!r}: expected a list of words that is not empty")


def keyword_cuts(trace: Trace, keywords: Sequence[str]) -> np.ndarray:
    """The token that holds the first character of every keyword at the start of a sentence or line."""
    assert trace.text is not None
    return trace.tokens_at([found.start(1) for found in _marker(tuple(keywords)).finditer(trace.text)])


@lru_cache(maxsize=8)
def _marker(keywords: tuple[str, ...]) -> re.Pattern[str]:
    words = "|".join(re.escape(word) for word in keywords)
    return re.compile(rf"[\n.!?] ?({words})\b")  # a marker that opens the trace needs no boundary
