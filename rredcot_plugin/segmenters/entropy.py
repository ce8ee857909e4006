"""``entropy``: a boundary before the tokens at which the model could most easily have gone elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rredcot_plugin.registry import check_number, register_segmenter
from rredcot_plugin.segmenters.base import CutSegmenter
from rredcot_plugin.segmenters.quantile import running_quantile
from rredcot_plugin.segmenters.trace import Trace


@register_segmenter("entropy")
@dataclass(frozen=True)
class EntropySegmenter(CutSegmenter):
    """A segment begins where the entropy of the next token rises to a quantile of the trace so far, or above it.

    The entropy of a distribution is known before a token is drawn from it. Without entropies the surprisal of the
    token before stands in, so that a segment begins after an improbable token. The first 16 tokens open none.

    Raises:
        ValueError: a quantile outside [0, 1]; rollouts without entropies and log-probs.
    """

    quantile: float = 0.95

    needs: ClassVar[tuple[str, ...]] = ("uncertainty",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("quantile", self.quantile, 0.0, 1.0)

    def propose(self, trace: Trace) -> np.ndarray:
        signal = trace.uncertainty
        assert signal is not None
        rises = signal > np.append(np.inf, signal[:-1])
        found: np.ndarray = np.flatnonzero(rises & (signal >= running_quantile(signal, self.quantile)))
        return found
