"""``adaptive``: a boundary where the model's certainty has changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rredcot_plugin.registry import check_count, register_segmenter
from rredcot_plugin.segmenters.base import CutSegmenter
from rredcot_plugin.segmenters.trace import Trace

REFERENCE_BINS = 4
BLOCK = 64


@register_segmenter("adaptive")
@dataclass(frozen=True)
class AdaptiveSegmenter(CutSegmenter):
    """Change points of the mean uncertainty, found as they happen by two one-sided cumulative sums.

    The uncertainty (entropy, or surprisal) is averaged over bins of ``bin_tokens``. The first four bins of a segment
    (more while all are equal) set its level μ, all bins so far the deviation σ; with x = (bin − μ) / σ the sums g⁺ ← max(0, g⁺ + x − drift) and
    g⁻ ← max(0, g⁻ − x − drift) grow while the level lies off, and a segment ends with the bin by which one of them
    exceeds ``threshold``. Source: E. S. Page, "Continuous inspection schemes", Biometrika 1954.

    Raises:
        ValueError: options out of range; rollouts without entropies and log-probs.
    """

    threshold: float = 5.0
    drift: float = 0.5
    bin_tokens: int = 8

    needs: ClassVar[tuple[str, ...]] = ("uncertainty",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("bin_tokens", self.bin_tokens)
        for name in ("threshold", "drift"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < np.inf:
                raise ValueError(f"{name}={value!r}: expected a number above 0")

    def propose(self, trace: Trace) -> np.ndarray:
        assert trace.uncertainty is not None
        bins = trace.length // self.bin_tokens
        means = trace.uncertainty[: bins * self.bin_tokens].reshape(bins, self.bin_tokens).mean(axis=1)
        return (np.array(_alarms(means, self.threshold, self.drift), dtype=np.int64) + 1) * self.bin_tokens


def _alarms(signal: np.ndarray, threshold: float, drift: float) -> list[int]:
    """The entries by which a change is noticed; after each the level is learned anew."""
    counts = np.arange(1, len(signal) + 1)
    mean = np.cumsum(signal) / counts
    deviation = np.sqrt(np.maximum(np.cumsum(signal**2) / counts - mean**2, 0.0))
    found: list[int] = []
    start = 0
    while (begin := start + REFERENCE_BINS) < len(signal):
        varied = np.flatnonzero(deviation[begin - 1 :] > 0)  # without any deviation there is no unit to measure by
        if not len(varied):
            break
        begin += int(varied[0])
        at = _first_alarm(signal, start, begin, float(deviation[begin - 1]), threshold, drift)
        if at is None:
            break
        found.append(at)
        start = at + 1
    return found


def _first_alarm(
    signal: np.ndarray, start: int, begin: int, spread: float, threshold: float, drift: float
) -> int | None:
    """The first entry from ``begin`` on by which one of the sums exceeds the threshold."""
    level, sums = float(signal[start:begin].mean()), np.zeros(2)
    for at in range(begin, len(signal), BLOCK):
        x = (signal[at : at + BLOCK] - level) / spread
        totals = np.cumsum(np.stack([x, -x]) - drift, axis=1)
        grown = totals - np.minimum(np.minimum.accumulate(totals, axis=1), -sums[:, None])
        over = np.flatnonzero((grown > threshold).any(axis=0))
        if len(over):
            return at + int(over[0])
        sums = grown[:, -1]
    return None
