"""``newline_entropy``: line ends after which the model was least sure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rredcot_plugin.registry import check_count, register_segmenter
from rredcot_plugin.segmenters.base import CutSegmenter
from rredcot_plugin.segmenters.limits import Limits
from rredcot_plugin.segmenters.quantile import running_quantile
from rredcot_plugin.segmenters.text_rules import line_ends
from rredcot_plugin.segmenters.trace import Trace


@register_segmenter("newline_entropy")
@dataclass(frozen=True)
class NewlineEntropySegmenter(CutSegmenter):
    """Line ends, with boundaries at exit points of high entropy (RREDCoT, arXiv 2606.06475, by one reading).

    A line end is a boundary if the entropy of the token after it reaches the median of the line ends before; the first 16
    line ends all are. At most ``target_segments`` segments. With log-probs alone the surprisal of the token that holds
    the line end stands in for the entropy. The paper's form merges a finished trace: `newline_entropy_retrospective`.

    Raises:
        ValueError: a target under 1; rollouts without texts, or without entropies and log-probs.
    """

    target_segments: int = 16

    needs: ClassVar[tuple[str, ...]] = ("texts", "uncertainty")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("target_segments", self.target_segments)

    def propose(self, trace: Trace) -> np.ndarray:
        assert trace.uncertainty is not None
        ends = line_ends(trace)
        signal = trace.uncertainty[ends]
        level = running_quantile(signal, 0.5)
        return ends[(signal >= level) | np.isinf(level)]

    @property
    def limits(self) -> Limits:
        most = min(self.max_segments, self.target_segments)
        return Limits(self.min_segment_tokens, most, self.max_response_tokens)
