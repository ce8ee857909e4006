"""``keyword``: a boundary after every discourse marker."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rredcot_plugin.registry import register_segmenter
from rredcot_plugin.segmenters.base import CutSegmenter
from rredcot_plugin.segmenters.characters import WORD
from rredcot_plugin.segmenters.trace import Trace

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
    """A segment ends with a keyword at the start of a sentence or line.

    The keyword closes the segment before it: a boundary in front of it would depend on whether the model is going to
    say it. Whether a keyword goes on as another word ("So", "Some") in the token after it is not known either, so it
    counts where its token ends.

    Raises:
        ValueError: no keywords.
    """

    keywords: Sequence[str] = KEYWORDS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_keywords(self.keywords)

    def propose(self, trace: Trace) -> np.ndarray:
        return np.unique(keyword_spans(trace, self.keywords)[1])


def check_keywords(keywords: Sequence[str]) -> None:
    """Raise ``ValueError`` for an empty list, a single text in its place, or what is not a word in it."""
    if not keywords or isinstance(keywords, str):
        raise ValueError(f"keywords={keywords!r}: expected a list of words that is not empty")
    odd = [word for word in keywords if not isinstance(word, str) or not word.strip()]
    if odd:
        raise ValueError(f"keywords={keywords!r}: expected words, got {odd[0]!r}; in YAML put it into quotes")


def keyword_spans(trace: Trace, keywords: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The token that holds the first character of every keyword at the start of a sentence or line, and the token after
    the one that completes it."""
    assert trace.text is not None and trace.spans is not None
    found = [match.span(1) for match in _marker(tuple(keywords)).finditer(trace.text)]
    starts, ends = np.array(found, dtype=np.int64).reshape(-1, 2).T
    first = np.searchsorted(trace.spans[:, 1], starts, side="right")
    after = trace.tokens_from(ends)
    # a word that goes on inside the same token is another word
    token_ends = trace.spans[(after - 1).clip(min=0), 1] if trace.length else ends
    goes_on = (token_ends > ends) & (np.append(trace.kinds, 0)[ends] & WORD > 0)
    return first[~goes_on], after[~goes_on]


@lru_cache(maxsize=8)
def _marker(keywords: tuple[str, ...]) -> re.Pattern[str]:
    """Keywords that begin with another one are never seen whole: the shorter one has counted by then. Matches may overlap: one that
    lies within a longer one counts whether or not that is finished."""
    words = "|".join(re.escape(word) for word in sorted(keywords, key=len))
    return re.compile(rf"(?=[\n.!?] ?({words}))")  # a marker that opens the trace needs no boundary
