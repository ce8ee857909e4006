"""``hybrid``: discourse markers where the model was unsure, and nothing too long in between."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rredcot_plugin.registry import check_count, check_number, register_segmenter
from rredcot_plugin.segmenters.base import CutSegmenter
from rredcot_plugin.segmenters.keyword import KEYWORDS, check_keywords, keyword_spans
from rredcot_plugin.segmenters.quantile import running_quantile
from rredcot_plugin.segmenters.text_rules import sentence_ends
from rredcot_plugin.segmenters.trace import Trace


@register_segmenter("hybrid")
@dataclass(frozen=True)
class HybridSegmenter(CutSegmenter):
    """Keywords and entropy, with boundaries that are stopping times (RREDCoT, arXiv 2606.06475, names a hybrid of the two).

    A boundary stands *after* a keyword at the start of a sentence or line if the model was unsure there: if the entropy
    of one of the keyword's tokens, or of the token after it, reaches the running ``quantile`` of the trace. A segment
    that has ``max_stretch_tokens`` tokens without one ends with the next sentence or line. With log-probs alone the surprisal of
    the keyword's tokens stands in for the entropy; with neither, and among the first 16 tokens, every keyword counts.

    Raises:
        ValueError: a quantile outside [0, 1], no keywords, or a stretch under 1 token.
    """

    keywords: Sequence[str] = KEYWORDS
    quantile: float = 0.8
    max_stretch_tokens: int = 64

    uses: ClassVar[tuple[str, ...]] = ("uncertainty",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_keywords(self.keywords)
        check_number("quantile", self.quantile, 0.0, 1.0)
        check_count("max_stretch_tokens", self.max_stretch_tokens)

    def propose(self, trace: Trace) -> np.ndarray:
        first, after = keyword_spans(trace, self.keywords)
        cuts = np.unique(after[_is_unsure(trace, first, after, self.quantile)])
        cuts = cuts[(cuts > 0) & (cuts < trace.length)]
        return _shorten(cuts.tolist(), sentence_ends(trace).tolist(), self.max_stretch_tokens)


def _is_unsure(trace: Trace, first: np.ndarray, after: np.ndarray, quantile: float) -> np.ndarray:
    """Whether the uncertainty of a token from ``first`` to ``after``, both included, reaches the level at ``first``."""
    signal = trace.uncertainty
    if signal is None or len(first) == 0:
        return np.ones(len(first), dtype=bool)
    level = running_quantile(signal, quantile)[first.clip(max=trace.length - 1)]
    stops = np.minimum(after + 1, trace.length)
    edges = np.stack([np.minimum(first, stops - 1), stops], axis=1).ravel()
    highest = np.maximum.reduceat(np.append(signal, -np.inf), edges)[::2]
    unsure: np.ndarray = (highest >= level) | np.isinf(level)
    return unsure


def _shorten(cuts: list[int], ends: list[int], longest: int) -> np.ndarray:
    """``cuts``, and each of the sentence ends by which the open segment has ``longest`` tokens."""
    found, last = [], 0
    for stop in [*cuts, None]:
        at = bisect_left(ends, last + longest)
        while at < len(ends) and (stop is None or ends[at] < stop):
            last = ends[at]
            found.append(last)
            at = bisect_left(ends, last + longest)
        if stop is not None:
            found.append(stop)
            last = stop
    return np.array(found, dtype=np.int64)
