"""``adaptive``: a boundary where the model's certainty changes for good."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar

import numpy as np

from rredcot_plugin.registry import check_count, register_segmenter
from rredcot_plugin.segmenters.assemble import Trace
from rredcot_plugin.segmenters.base import CutSegmenter


@register_segmenter("adaptive")
@dataclass(frozen=True)
class AdaptiveSegmenter(CutSegmenter):
    """Change points of the mean entropy (or negative log-prob) along the trace, by PELT (arXiv 1101.1438).

    The signal is averaged over bins of ``bin_tokens``, which keeps the search linear in practice; a change point
    must lower the squared error by ``penalty`` * variance * log(bins). Uses the ``ruptures`` package.

    Raises:
        ValueError: options out of range; ruptures is not installed; rollouts without entropies and log-probs.
    """

    penalty: float = 2.0
    bin_tokens: int = 8

    needs: ClassVar[tuple[str, ...]] = ("surprise",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("bin_tokens", self.bin_tokens)
        if isinstance(self.penalty, bool) or not isinstance(self.penalty, int | float) or not self.penalty > 0:
            raise ValueError(f"penalty={self.penalty!r}: allowed are numbers above 0")
        if find_spec("ruptures") is None:
            raise ValueError("segmenter adaptive: ruptures is not installed; pip install 'rredcot[adaptive]'")

    def propose(self, trace: Trace) -> tuple[np.ndarray, np.ndarray]:
        assert trace.surprise is not None
        starts = np.arange(0, trace.length, self.bin_tokens)
        sizes = np.diff(np.append(starts, trace.length))
        signal = np.add.reduceat(trace.surprise.astype(np.float64), starts) / sizes
        cuts = _change_points(signal, self.penalty)
        edges = np.concatenate([[0], cuts, [len(signal)]])
        means = np.add.reduceat(signal, edges[:-1]) / np.diff(edges)
        return starts[cuts], np.abs(np.diff(means))


def _change_points(signal: np.ndarray, penalty: float) -> np.ndarray:
    """Indices at which a new level begins; none for a signal too short or flat."""
    import ruptures  # an extra; its import takes scipy along

    variance = float(signal.var())
    if len(signal) < 4 or variance == 0.0:
        return np.zeros(0, dtype=np.int64)
    search = ruptures.KernelCPD(kernel="linear", min_size=2).fit(signal[:, None])
    found = search.predict(pen=penalty * variance * np.log(len(signal)))
    return np.array(found[:-1], dtype=np.int64)
