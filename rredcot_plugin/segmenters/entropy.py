"""``entropy``: a boundary before the tokens at which the model could most easily have gone elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rredcot_plugin.registry import check_number, register_segmenter
from rredcot_plugin.segmenters.assemble import Trace
from rredcot_plugin.segmenters.base import CutSegmenter


@register_segmenter("entropy")
@dataclass(frozen=True)
class EntropySegmenter(CutSegmenter):
    """A segment begins at a forking token: a local peak of the entropy at or above a quantile of the trace.

    Reads entropies, or negative log-probs where there are none (one sample of what entropy is the mean of).

    Raises:
        ValueError: a quantile outside [0, 1]; rollouts without entropies and log-probs.
    """

    quantile: float = 0.95

    needs: ClassVar[tuple[str, ...]] = ("surprise",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("quantile", self.quantile, 0.0, 1.0)

    def propose(self, trace: Trace) -> tuple[np.ndarray, np.ndarray]:
        assert trace.surprise is not None
        signal = trace.surprise.astype(np.float64)
        before, after = np.append(np.inf, signal[:-1]), np.append(signal[1:], -np.inf)
        level = np.quantile(signal, self.quantile)
        peaks = np.flatnonzero((signal > before) & (signal >= after) & (signal >= level))
        return peaks, signal[peaks]
