"""``probability``: equally many improbable tokens in every segment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rredcot_plugin.registry import check_count, check_number, register_segmenter
from rredcot_plugin.segmenters.base import CutSegmenter
from rredcot_plugin.segmenters.trace import Trace


@register_segmenter("probability")
@dataclass(frozen=True)
class ProbabilitySegmenter(CutSegmenter):
    """A segment ends with every ``interval``-th cut-point, a token whose probability is below ``threshold``.

    Where the model is sure, values hardly change, so segments count decisions and not tokens (SPO, arXiv
    2505.23564, adaptive cut-points; there a segment begins at the cut-point, which makes a boundary depend on the
    token that follows it).

    Raises:
        ValueError: a threshold outside [0, 1], an interval under 1; rollouts without log-probs.
    """

    threshold: float = 0.9
    interval: int = 5

    needs: ClassVar[tuple[str, ...]] = ("log_probs",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("threshold", self.threshold, 0.0, 1.0)
        check_count("interval", self.interval)

    def propose(self, trace: Trace) -> np.ndarray:
        assert trace.log_probs is not None
        improbable = np.flatnonzero(np.exp(trace.log_probs.astype(np.float64)) < self.threshold)
        return improbable[self.interval - 1 :: self.interval] + 1
