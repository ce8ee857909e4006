"""``hybrid``: discourse markers where the model was unsure, and nothing too long in between."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rredcot_plugin.registry import register_segmenter
from rredcot_plugin.segmenters.assemble import Trace, check_limits, require_texts, segment
from rredcot_plugin.types import Rollouts, Segments

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
SENTENCE_END = re.compile(r"(?:[.!?。！？]+[\"')\]]*\s+|\n+)(?=\S)")


@register_segmenter("hybrid")
@dataclass(frozen=True)
class HybridSegmenter:
    """The paper's keyword-entropy segmentation, by one reading (RREDCoT, arXiv 2606.06475).

    A boundary stands *before* a keyword at the start of a sentence or line if the surprise (entropy, or
    negative log-prob) of the keyword's token or of the one before it reaches the ``quantile`` of the
    trace; a stretch of more than ``max_stretch_tokens`` tokens without one is split at its most
    surprising sentence or line end, again and again. Without entropies and log-probs every keyword
    counts, and a stretch is split at the sentence end nearest to its middle.

    Raises:
        ValueError: a quantile outside [0, 1], no keywords, or a stretch under 1 token.
    """

    keywords: Sequence[str] = KEYWORDS
    quantile: float = 0.8
    max_stretch_tokens: int = 256
    min_segment_tokens: int = 1
    max_segments: int = 64

    def __post_init__(self) -> None:
        check_limits(self.min_segment_tokens, self.max_segments)
        if not 0.0 <= self.quantile <= 1.0:
            raise ValueError(f"quantile={self.quantile!r}: allowed are numbers from 0 to 1")
        if not self.keywords or isinstance(self.keywords, str):
            raise ValueError(f"keywords={self.keywords!r}: expected a list of words that is not empty")
        if self.max_stretch_tokens < 1:
            raise ValueError(f"max_stretch_tokens={self.max_stretch_tokens!r}: allowed are whole numbers from 1")

    def __call__(self, rollouts: Rollouts) -> Segments:
        require_texts(rollouts, "hybrid")
        words = "|".join(re.escape(word) for word in self.keywords)
        marker = re.compile(rf"(?:^|(?<=\n)|(?<=[.!?] )|(?<=[.!?]))(?:{words})\b")

        def propose(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
            assert trace.text is not None
            score = _scores(trace)
            cuts = {trace.token_at(found.start()) for found in marker.finditer(trace.text)}
            level = np.quantile(trace.surprise, self.quantile) if trace.surprise is not None else 0.0
            cuts = {cut for cut in cuts if 0 < cut < trace.length and score[cut] >= level}
            ends = np.unique([trace.token_from(found.end()) for found in SENTENCE_END.finditer(trace.text)] or [0])
            ends = ends[(ends > 0) & (ends < trace.length)].astype(np.int64)
            cuts |= _split_long(sorted(cuts), ends, score, trace, self.max_stretch_tokens)
            chosen = np.array(sorted(cuts), dtype=np.int64)
            return chosen, score[chosen]

        return segment(rollouts, propose, self.min_segment_tokens, self.max_segments)


def _scores(trace: Trace) -> np.ndarray:
    """How surprising it is to go on at each token: the larger of its own surprise and the one before it."""
    if trace.surprise is None:
        return np.zeros(trace.length)
    own = trace.surprise.astype(np.float64)
    either: np.ndarray = np.maximum(own, np.concatenate([[-np.inf], own[:-1]]))
    return either


def _split_long(cuts: list[int], ends: np.ndarray, score: np.ndarray, trace: Trace, longest: int) -> set[int]:
    """Sentence ends that split every stretch longer than ``longest``, each at its best end, again and again."""
    edges = [0, *cuts, trace.length]
    todo = list(pairwise(edges))
    added: set[int] = set()
    while todo:
        start, stop = todo.pop()
        inner = ends[np.searchsorted(ends, start, side="right") : np.searchsorted(ends, stop, side="left")]
        if stop - start <= longest or len(inner) == 0:
            continue
        off_middle = np.abs(inner - (start + stop) / 2)
        best = int(inner[np.lexsort((off_middle, -score[inner]))[0]])
        added.add(best)
        todo += [(start, best), (best, stop)]
    return added
