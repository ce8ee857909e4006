"""``newline_entropy``: line ends, of which those with the highest entropy stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rredcot_plugin.registry import register_segmenter
from rredcot_plugin.segmenters.assemble import Trace, segment
from rredcot_plugin.segmenters.base import CutSegmenter, check_count
from rredcot_plugin.segmenters.newline import line_cuts
from rredcot_plugin.types import Rollouts, Segments


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
        cuts = np.unique(line_cuts(trace))
        cuts = cuts[cuts < trace.length]
        return cuts, trace.surprise[cuts].astype(np.float64)

    def __call__(self, rollouts: Rollouts) -> Segments:
        self.check(rollouts)
        most = min(self.max_segments, self.target_segments)
        return segment(rollouts, self.propose, self.min_segment_tokens, most, self.answer_markers)
