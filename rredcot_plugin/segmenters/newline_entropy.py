"""``newline_entropy``: line ends, of which those with the highest entropy stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rredcot_plugin.registry import check_count, register_segmenter
from rredcot_plugin.segmenters.assemble import Trace
from rredcot_plugin.segmenters.base import CutSegmenter
from rredcot_plugin.segmenters.newline import LINE_END


@register_segmenter("newline_entropy")
@dataclass(frozen=True)
class NewlineEntropySegmenter(CutSegmenter):
    """The paper's newline-entropy segmentation, by one reading (RREDCoT, arXiv 2606.06475).

    Split at line ends, then merge neighbours across the boundary of *lowest* entropy until
    ``target_segments`` remain: what is left are the line ends behind which the model was least sure.

    Raises:
        ValueError: a target under 1; rollouts without texts, or without entropies and log-probs.
    """

    target_segments: int = 16

    needs: ClassVar[tuple[str, ...]] = ("texts", "surprise")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("target_segments", self.target_segments)

    def propose(self, trace: Trace) -> tuple[np.ndarray, np.ndarray]:
        assert trace.surprise is not None
        cuts = np.unique(trace.tokens_behind(LINE_END))
        cuts = cuts[cuts < trace.length]
        return cuts, trace.surprise[cuts].astype(np.float64)

    @property
    def most_segments(self) -> int:
        return min(self.max_segments, self.target_segments)
