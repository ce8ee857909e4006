"""``hybrid``: discourse markers where the model was unsure, and nothing too long in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from rredcot_plugin.registry import check_count, check_number, register_segmenter
from rredcot_plugin.segmenters.assemble import Trace
from rredcot_plugin.segmenters.base import CutSegmenter
from rredcot_plugin.segmenters.keyword import KEYWORDS, check_keywords, keyword_cuts
from rredcot_plugin.segmenters.sentence import SENTENCE_END


@register_segmenter("hybrid")
@dataclass(frozen=True)
class HybridSegmenter(CutSegmenter):
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

    uses: ClassVar[tuple[str, ...]] = ("surprise",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_keywords(self.keywords)
        check_number("quantile", self.quantile, 0.0, 1.0)
        check_count("max_stretch_tokens", self.max_stretch_tokens)

    def propose(self, trace: Trace) -> tuple[np.ndarray, np.ndarray]:
        score = _scores(trace)
        cuts = np.unique(keyword_cuts(trace, self.keywords))
        cuts = cuts[(cuts > 0) & (cuts < trace.length)]
        level = np.quantile(trace.surprise, self.quantile) if trace.surprise is not None else 0.0
        cuts = cuts[score[cuts] >= level]
        ends = np.unique(trace.tokens_behind(SENTENCE_END))
        ends = ends[(ends > 0) & (ends < trace.length)]
        added = _split_long(cuts.tolist(), ends, score, trace.length, self.max_stretch_tokens)
        chosen = np.union1d(cuts, np.array(added, dtype=np.int64))
        return chosen, score[chosen]


def _scores(trace: Trace) -> np.ndarray:
    """How surprising it is to go on at each token: the larger of its own surprise and the one before it."""
    if trace.surprise is None:
        return np.zeros(trace.length)
    own = trace.surprise.astype(np.float64)
    either: np.ndarray = np.maximum(own, np.concatenate([[-np.inf], own[:-1]]))
    return either


def _split_long(cuts: list[int], ends: np.ndarray, score: np.ndarray, length: int, longest: int) -> list[int]:
    """Sentence ends that split every stretch longer than ``longest``, each at its best end, again and again."""
    todo = [(start, stop) for start, stop in pairwise([0, *cuts, length]) if stop - start > longest]
    added: list[int] = []
    while todo:
        start, stop = todo.pop()
        inner = ends[np.searchsorted(ends, start, side="right") : np.searchsorted(ends, stop, side="left")]
        if len(inner) == 0:
            continue
        worth = score[inner]
        tied = inner[worth == worth.max()]
        best = int(tied[np.abs(tied - (start + stop) / 2).argmin()])
        added.append(best)
        todo += [part for part in ((start, best), (best, stop)) if part[1] - part[0] > longest]
    return added
